"""Fixtures of all tests, and where the data of the real programs is."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.core.management.commands import flush
from django.db import connection
from django.test import Client
from pytest_django import Settings

from approvals import tables
from approvals.adapter import Adapter
from approvals.backends.database import DatabaseBackend
from cadence_admin import throttle
from cadence_admin.accounts import ensure_local_accounts
from cadence_admin.roles import ROLES, ensure_roles
from tests.provider import CLIENT_ID, CLIENT_SECRET, Provider, running

DATA = Path(os.environ.get("CADENCE_VECTORS") or Path(__file__).parent / "data")
KEPT = {"django_content_type", "auth_permission", "auth_group", "auth_group_permissions"}
PASSWORD = "correct horse battery staple"


def load(name: str) -> Any:
    """A file of the vectors, None if the folder doesn't have it."""
    path = DATA / name
    return json.loads(path.read_text("utf-8")) if path.exists() else None


def entries(name: str) -> list[Any]:
    """The entries of a vector file as parameters; a missing file is one skipped test that names it."""
    found = load(name)
    if found is None:
        return [pytest.param(None, marks=pytest.mark.skip(f"{DATA / name} is not there"), id=f"{name} not there")]
    pairs = found.items() if isinstance(found, dict) else enumerate(found)
    return [pytest.param(value, id=f"{name}-{key}") for key, value in pairs]


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are processors: browsers, and processes that tests start, keep a worker waiting."""
    return len(os.sched_getaffinity(0)) + 1 if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On PostgreSQL only tests that touch the database run again, and not for their layout: the others would do the same twice."""
    if os.environ.get("CADENCE_TEST_ENGINE") != "postgresql":
        return
    kept = [
        item
        for item in items
        if (item.get_closest_marker("django_db") or _wants_database(item)) and not item.get_closest_marker("layout")
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def _wants_database(item: pytest.Item) -> bool:
    return bool({"db", "transactional_db", "live_server"} & set(getattr(item, "fixturenames", ())))


@pytest.fixture(scope="session", autouse=True)
def _quick_emptying() -> Iterator[None]:
    """Django empties all tables after a test with transactions of its own. The audit log's refuses, except for this; those
    that every test finds as `migrate` made them are left, and made so again if a test changed them."""
    as_made = {(role, permission) for role, permissions in ROLES.items() for permission in permissions}

    def sql_flush(style: Any, connection: Any, **_: Any) -> list[str]:
        emptied = sorted(
            set(connection.introspection.django_table_names(only_existing=True, include_views=False)) - KEPT
        )
        if connection.vendor == "postgresql":
            # Without triggers, those of foreign keys included. Tables that hold a few rows are emptied sooner than truncated.
            deleted = (f"DELETE FROM {connection.ops.quote_name(table)}" for table in emptied)
            return ["SET LOCAL session_replication_role = replica", *deleted]
        statements = connection.ops.sql_flush(style, emptied)
        with connection.cursor() as cursor:
            cursor.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
            triggers = cursor.fetchall()
        return [*(f"DROP TRIGGER {name}" for name, _ in triggers), *statements, *(sql for _, sql in triggers)]

    def make_roles(verbosity: int, interactive: bool, database: str) -> None:
        Group.objects.exclude(name__in=ROLES).delete()
        rows = Group.objects.values_list("name", "permissions__content_type__app_label", "permissions__codename")
        if {(name, f"{app}.{codename}") for name, app, codename in rows} != as_made:
            Group.objects.all().delete()
            ensure_roles(database)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flush, "sql_flush", sql_flush)
        patch.setattr(flush, "emit_post_migrate_signal", make_roles)
        yield


@pytest.fixture(autouse=True)
def _nobody_was_here() -> None:
    """What the tests before asked for isn't counted."""
    throttle.counted.reset()


@pytest.fixture
def state_home(tmp_path: Path) -> Path:
    """A copy of the sample state home that may be written to."""
    shutil.copytree(DATA / "cadence" / "state-home", tmp_path / "state-home")
    return tmp_path / "state-home"


@pytest.fixture
def empty_tables(transactional_db: None) -> None:
    """nifra's tables without rows: Django empties only tables that it manages."""
    with connection.cursor() as cursor:
        for table in (tables.RECORDS, tables.LEASES):
            cursor.execute(f"DELETE FROM {table}")


@pytest.fixture
def database(empty_tables: None) -> Adapter:
    """The stores over the database under test."""
    return Adapter(DatabaseBackend())


@pytest.fixture
def accounts(db: None) -> dict[str, User]:
    """The local accounts, all with `PASSWORD`."""
    ensure_local_accounts(PASSWORD)
    return {user.username: user for user in User.objects.all()}


@pytest.fixture
def sign_in(accounts: dict[str, User]) -> Callable[[str], Client]:
    """A client that is signed in as viewer, approver or operator."""

    def signed_in(name: str = "viewer") -> Client:
        client = Client()
        client.force_login(accounts[name])
        return client

    return signed_in


@pytest.fixture
def provider(settings: Settings, accounts: dict[str, User]) -> Iterator[Provider]:
    """An OpenID Connect provider that the console is set up for."""
    with running() as provider:
        settings.OIDC_ISSUER = provider.issuer
        settings.OIDC_CLIENT_ID = CLIENT_ID
        settings.OIDC_CLIENT_SECRET = CLIENT_SECRET
        settings.OIDC_NAME = "Acme"
        settings.OIDC_GROUPS = {"ops": "operator", "CN=audit,O=acme": "auditor"}
        yield provider
