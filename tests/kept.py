"""What many tests begin with: the data of the real programs, and rows that are made once in a process and then put back with
one statement for each table."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from django.apps import apps
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.db.models import QuerySet

from cadence_admin.accounts import LOCAL_ACCOUNTS, LOCAL_GROUP, ensure_local_accounts
from cadence_admin.models import RootAccess, TenantAccess
from runs.mirror import mirror_state_home

DATA = Path(os.environ.get("CADENCE_VECTORS") or Path(__file__).parent / "data")
PASSWORD = "correct horse battery staple"

_kept: dict[str, list[tuple[type[Any], list[Any]]]] = {}


def forget() -> None:
    """What they refer to was made anew."""
    _kept.clear()


@transaction.atomic
def _put(name: str, make: Callable[[], object], rows_of: Callable[[], Sequence[QuerySet[Any]]]) -> None:
    if name in _kept:
        for model, rows in _kept[name]:
            model._base_manager.bulk_create(rows)
        return
    make()
    _kept[name] = [(rows.model, list(rows)) for rows in rows_of()]


def put_accounts() -> dict[str, User]:
    """The local accounts, all with `PASSWORD`."""
    _put(
        "accounts",
        lambda: ensure_local_accounts(PASSWORD),
        lambda: [
            Group.objects.filter(name=LOCAL_GROUP),
            TenantAccess.objects.filter(group__name=LOCAL_GROUP),
            RootAccess.objects.filter(group__name=LOCAL_GROUP),
            User.objects.filter(username__in=LOCAL_ACCOUNTS),
            User.groups.through.objects.filter(user__username__in=LOCAL_ACCOUNTS),
        ],
    )
    return {user.username: user for user in User.objects.filter(username__in=LOCAL_ACCOUNTS)}


def put_sample() -> None:
    """The runs of the sample state home, mirrored where it lies. The tables of runs have to be empty."""
    _put(
        "sample",
        lambda: mirror_state_home(DATA / "cadence" / "state-home"),
        lambda: [model._base_manager.all() for model in apps.get_app_config("runs").get_models()],
    )
