"""Who may do what: every address and every role, against one table. A new address without an entry fails."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group, Permission, User
from django.core.management import call_command, get_commands, load_command_class
from django.http import HttpRequest
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from approvals.adapter import Adapter
from approvals.backends.database import DatabaseBackend
from approvals.conformance import FAR, approval, effect, saga
from approvals.decisions import DecisionError, decide, expire
from approvals.models import Decision
from approvals.resolutions import close_effect, free_lease, resolve_step
from cadence_admin.roles import ROLES, TABLES
from runs.store import RunStore
from tests.runs.stores import ROOT

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_tables")]

PUBLIC: Final = "public"
SIGNED_IN: Final = "signed in"
# Each address of the console: its method, and the permission that it takes.
ADDRESSES: Final = {
    "": ("GET", SIGNED_IN),
    "sign-in/": ("GET", PUBLIC),
    "sign-in/oidc/": ("GET", PUBLIC),
    "sign-in/oidc/callback/": ("GET", PUBLIC),
    "sign-out/": ("POST", SIGNED_IN),
    "runs/": ("GET", "runs.view_run"),
    "runs/<str:run_id>/": ("GET", "runs.view_run"),
    "runs/<str:run_id>/verification/": ("POST", "runs.view_run"),
    "runs/<str:run_id>/move/": ("POST", "runs.move_run"),
    "runs/<str:run_id>/<slug:kind>/": ("GET", "runs.view_run"),
    "leases/": ("GET", "runs.view_operation"),
    "leases/reclaim/": ("POST", "runs.reclaim_operation"),
    "leases/workers/free/": ("POST", "approvals.resolve_record"),
    "approvals/": ("GET", "approvals.view_approval"),
    "approvals/~waiting/": ("GET", "approvals.view_approval"),
    "approvals/~decisions/": ("POST", "approvals.decide_approval"),
    "approvals/<id:approval_id>/": ("GET", "approvals.view_approval"),
    "approvals/<id:approval_id>/decision/": ("POST", "approvals.decide_approval"),
    "audit/": ("GET", "cadence_admin.view_auditentry"),
    "audit/verify/": ("POST", "cadence_admin.view_auditentry"),
    "effects/": ("GET", "approvals.view_effect"),
    "effects/<id:effect_id>/": ("GET", "approvals.view_effect"),
    "effects/<id:effect_id>/resolution/": ("POST", "approvals.resolve_record"),
    "sagas/": ("GET", "approvals.view_saga"),
    "sagas/<id:saga_id>/": ("GET", "approvals.view_saga"),
    "sagas/<id:saga_id>/resolution/": ("POST", "approvals.resolve_record"),
}
# What each role gets there: y it may, n it may not. viewer, approver, operator, auditor.
TABLE: Final = {
    "runs.view_run": "yyyy",
    "runs.view_operation": "yyyy",
    "runs.move_run": "nnyn",
    "runs.reclaim_operation": "nnyn",
    "approvals.view_approval": "yyyy",
    "approvals.view_effect": "yyyy",
    "approvals.view_saga": "yyyy",
    "approvals.decide_approval": "nyyn",
    "approvals.resolve_record": "nnyn",
    "cadence_admin.use_admin": "nnyy",
    "cadence_admin.view_auditentry": "nnyy",
    SIGNED_IN: "yyyy",
    PUBLIC: "yyyy",
}
# Each action of the admin, and the permission that it takes.
ACTIONS: Final = {
    ("approvals.approval", "approve"): "approvals.decide_approval",
    ("approvals.approval", "deny"): "approvals.decide_approval",
    ("approvals.approval", "expire"): "approvals.decide_approval",
    ("approvals.effect", "close_as_committed"): "approvals.resolve_record",
    ("approvals.effect", "close_as_failed"): "approvals.resolve_record",
    ("approvals.reconciliationlease", "reclaim"): "approvals.resolve_record",
    ("runs.operation", "reclaim"): "runs.reclaim_operation",
    ("runs.run", "verify"): "runs.view_run",
}
NAMES: Final = ("viewer", "approver", "operator", "auditor")


def patterns(resolver: URLResolver, before: str = "") -> Iterator[tuple[str, URLPattern]]:
    for entry in resolver.url_patterns:
        route = before + str(entry.pattern)
        if isinstance(entry, URLResolver):
            yield from patterns(entry, route)
        else:
            yield route, entry


ROUTES: Final = dict(patterns(get_resolver()))
CONSOLE: Final = {route: entry for route, entry in ROUTES.items() if not route.startswith("admin/")}


@pytest.fixture
def world(transactional_db: None) -> dict[str, str]:
    """One of everything, and what stands in an address for it."""
    adapter = Adapter(DatabaseBackend())
    adapter.backend.create("approval", approval(approval_id="ap", expires_at=FAR))
    adapter.backend.create("effect", effect(effect_id="ef", tenant_id="acme", principal_id="bot"))
    adapter.backend.create("saga", saga(saga_id="sa"))
    run_id = str(RunStore(ROOT).start_run("abel-implement", "start", change="x")["runId"])
    return {"run_id": run_id, "kind": "operations", "approval_id": "ap", "effect_id": "ef", "saga_id": "sa"}


def ask(client: Client, route: str, world: dict[str, str]) -> Any:
    method, _ = ADDRESSES[route]
    address = "/" + re.sub(r"<\w+:(\w+)>", lambda match: world[match[1]], route)
    return client.get(address) if method == "GET" else client.post(address, {"answer": "approved", "expires_at": "1"})


def test_every_address_is_in_the_table() -> None:
    assert set(CONSOLE) == set(ADDRESSES)
    for route, entry in CONSOLE.items():
        needed = ADDRESSES[route][1]
        if needed not in (PUBLIC, SIGNED_IN):
            assert getattr(entry.callback, "permission", None) == needed, route


def test_each_role_gets_what_the_table_says(world: dict[str, str], accounts: dict[str, User]) -> None:
    for name in NAMES:
        client = Client()
        for route, (_, needed) in ADDRESSES.items():
            client.force_login(accounts[name])  # one address signs out
            status = ask(client, route, world).status_code
            may = TABLE[needed][NAMES.index(name)]
            assert (status != 403) == (may == "y"), (name, route, status)
            assert status != 500, (name, route)


def test_nobody_gets_anything_but_the_way_in(world: dict[str, str]) -> None:
    for route, (_, needed) in ADDRESSES.items():
        response = ask(Client(), route, world)
        if needed == PUBLIC:
            assert response.status_code == (404 if "oidc" in route else 200), (route, "no provider is set up")
        else:
            assert (response.status_code, response["Location"].split("?")[0]) == (302, "/sign-in/"), route


def test_somebody_without_a_role_gets_nothing(world: dict[str, str]) -> None:
    client, user = Client(), User.objects.create_user("new")
    for route, (_, needed) in ADDRESSES.items():
        client.force_login(user)
        status = ask(client, route, world).status_code
        assert (status == 403) == (needed not in (PUBLIC, SIGNED_IN)), (route, status)


def test_the_admin_opens_by_its_permission(accounts: dict[str, User]) -> None:
    tables = [route for route in ROUTES if re.fullmatch(r"admin/(runs|approvals|cadence_admin|auth)/\w+/", route)]
    assert len(tables) >= 19
    for name, may in zip(NAMES, TABLE["cadence_admin.use_admin"], strict=True):
        client = Client()
        client.force_login(accounts[name])
        for table in tables:
            status = client.get(f"/{table}").status_code
            own = "/runs/" in table or "/approvals/" in table or "auditentry" in table
            # Who is not let in is sent to sign in; accounts and access are for superusers.
            assert status == (302 if may == "n" else 200 if own else 403), (name, table, status)


@pytest.mark.parametrize("name", NAMES)
def test_the_admin_offers_what_the_table_says(accounts: dict[str, User], name: str) -> None:
    request = HttpRequest()
    request.user = accounts[name]
    offered = {
        (model._meta.label_lower, action)
        for model, model_admin in admin.site._registry.items()
        for action in model_admin.get_actions(request)
    }
    may = {action for action, needed in ACTIONS.items() if TABLE[needed][NAMES.index(name)] == "y"}
    assert offered == may


def test_services_ask_for_the_permission_themselves(world: dict[str, str], accounts: dict[str, User]) -> None:
    lease = Adapter(DatabaseBackend()).leases.acquire("effects", "worker", 60_000)
    assert lease is not None
    works: dict[str, Callable[[User], Any]] = {
        "approvals.decide_approval": lambda user: decide(user, "ap", "approved", shown=None, via="page"),
        "approvals.decide_approval, to expire": lambda user: expire(user, "ap", via="page"),
        "approvals.resolve_record, an effect": lambda user: close_effect(user, "ef", "failed", version=1, reason="x"),
        "approvals.resolve_record, a step": lambda user: resolve_step(
            user, "sa", "e-1", "committed", version=1, reason="x"
        ),
        "approvals.resolve_record, a lease": lambda user: free_lease(
            user, "effects", owner="worker", expires_at=lease.expires_at, reason="x"
        ),
    }
    for what, work in works.items():
        for name, may in zip(NAMES, TABLE[what.partition(",")[0]], strict=True):
            if may == "n":
                with pytest.raises(DecisionError) as refused:
                    work(accounts[name])
                assert refused.value.code == "not-permitted", (what, name)
    assert not Decision.objects.exists()


def test_every_command_names_its_permission() -> None:
    named = {
        name: load_command_class(app, name).permission  # type: ignore[attr-defined]
        for name, app in get_commands().items()
        if app in ("runs", "approvals", "cadence_admin") and name != "serve"  # which only puts the others together
    }
    assert named == {
        "audit": "cadence_admin.view_auditentry",
        "conformance": "approvals.resolve_record",
        "expire_approvals": "approvals.decide_approval",
        "import_records": "approvals.resolve_record",
        "mirror_cadence": "runs.change_stateroot",
        "reclaim_leases": "runs.reclaim_operation",
        "reconcile": "approvals.resolve_record",
        "verify_chain": "runs.view_run",
    }


def test_the_groups_are_made_from_the_table_and_made_so_again() -> None:
    operator = Group.objects.get(name="operator")
    operator.permissions.clear()
    viewer = Group.objects.get(name="viewer")
    viewer.permissions.add(Permission.objects.get(codename="decide_approval"))
    call_command("migrate", verbosity=0)
    for role, permissions in ROLES.items():
        found = Permission.objects.filter(group__name=role).values_list("content_type__app_label", "codename")
        assert {f"{app}.{name}" for app, name in found} == set(permissions)


def test_the_readme_prints_the_table() -> None:
    printed: dict[str, set[str]] = {name: set() for name in NAMES}
    for line in re.findall(r"(?m)^\| (`[a-z_]+\.[a-z_]+`.*) \|$", Path("README.md").read_text()):
        names, _, *marks = re.split(r" ?\| ?", line)
        for name, mark in zip(NAMES, marks, strict=True):
            printed[name] |= set(re.findall(r"`([a-z_.]+)`", names)) if mark == "yes" else set()
    # The tables of the admin are one line.
    assert printed == {name: set(ROLES[name]) - (set(TABLES) - {"cadence_admin.use_admin"}) for name in NAMES}
