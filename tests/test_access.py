"""Tenants: what somebody isn't to know is nowhere to be found."""

import html
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import TextField, Value
from django.test import Client
from django.urls import reverse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from approvals import queries
from approvals.adapter import Adapter
from approvals.backends.database import DatabaseBackend
from approvals.conformance import FAR, approval, effect, saga
from approvals.decisions import DecisionError, decide, shown_of
from approvals.models import Decision, DurableRecord
from approvals.queries import ApprovalFilter
from approvals.records import Approval, SagaStep
from approvals.resolutions import close_effect, free_lease
from cadence_admin.access import EVERYTHING, Access, Seen, access_of
from cadence_admin.models import RootAccess, TenantAccess
from cadence_admin.patterns import matches
from runs.leases import note_refused
from runs.models import Operation, Run, StateRoot
from runs.store import RunStore

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_tables")]

TEXTS = st.text(st.sampled_from("aA-*?[]%_\\.b\n"), max_size=6)
ONE, TWO = "1" * 64, "2" * 64


def text_of(response: Any) -> str:
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", response.content.decode())))


@pytest.fixture
def member(accounts: dict[str, User]) -> Callable[..., User]:
    """An operator who sees only what is given."""

    def made(*tenants: tuple[str, str, bool], roots: tuple[tuple[str, bool], ...] = ()) -> User:
        user = User.objects.create_user(f"member-{User.objects.count()}")
        user.groups.set([Group.objects.get(name="operator")])
        for tenant, capability, may_decide in tenants:
            TenantAccess.objects.create(user=user, tenant=tenant, capability=capability, may_decide=may_decide)
        for root, may_change in roots:
            RootAccess.objects.create(user=user, root=root, may_change=may_change)
        return user

    return made


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def asked(adapter: Adapter, **values: Any) -> Approval:
    record = approval(**({"expires_at": FAR} | values))
    assert adapter.backend.create("approval", record)
    return record


@given(TEXTS, TEXTS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_a_pattern_means_the_same_in_python_and_in_the_database(pattern: str, text: str) -> None:
    row = Group.objects.order_by("pk").annotate(text=Value(text, output_field=TextField()))
    assert row.filter(text__pattern=pattern).exists() == matches(pattern, text)


GRANTS = st.builds(
    Seen,
    st.sampled_from(["acme", "globex", "acme-*", "*", "*x", "none"]),
    st.sampled_from(["*", "payments.*", "mail.send", "*.delete"]),
    st.booleans(),
)


def test_what_a_query_finds_is_what_may_be_seen(database: Adapter) -> None:
    """All views, filters and counts, against the rule for one record."""
    tenants = ["acme", "globex", "acme-eu", "Acme", "x"]
    capabilities = ["payments.refund", "mail.send", "infra.delete"]
    records = [
        asked(database, tenant_id=tenant, capability=capability, effect_id=f"e-{number}", state=state, decided_by="me")
        for number, (tenant, capability, state) in enumerate(
            (tenant, capability, state)
            for tenant in tenants
            for capability in capabilities
            for state in ("pending", "consumed")
        )
    ]
    for record in records:
        values = {"tenant_id": record.tenant_id, "principal_id": "bot", "capability": record.capability}
        database.backend.create("effect", effect(effect_id=record.effect_id, **values))
    database.backend.create("saga", saga())

    @given(st.lists(GRANTS, max_size=4))
    @settings(max_examples=25, deadline=None)
    def holds(grants: list[Seen]) -> None:
        access = Access(tuple(grants))
        seen = {record.id for record in records if access.may_see(record.tenant_id, record.capability)}
        of_state = {
            state: {record.id for record in records if record.id in seen and record.state == state}
            for state in ("pending", "consumed")
        }
        for view, expected in (("waiting", of_state["pending"]), ("consumed", of_state["consumed"]), ("mine", seen)):
            for text in ("", "t"):
                wanted = ApprovalFilter(view=view, mine="me", text=text)
                found = [row.id for row in queries.list_approvals(wanted, 0, access).rows]
                assert sorted(found) == sorted(expected), (view, text)
            assert queries.counts([view], 0, "me", access) == {view: len(expected)}
        assert set(queries.waiting(ApprovalFilter(), access).ids) == of_state["pending"]
        effects = {row.id for row in queries.list_effects("findings", 10**12, access).rows}
        assert effects == {record.effect_id for record in records if record.id in seen}
        assert set(queries.effect_states([record.effect_id for record in records], access)) == effects
        assert bool(queries.list_sagas("running", 10**12, access).rows) == access.is_whole
        for record in records:
            exact = queries.list_approvals(ApprovalFilter(text=record.id), 0, access).rows
            assert bool(exact) == (record.id in seen)
            assert bool(queries.approvals_of_effects([record.effect_id], access)) == (record.id in seen)

    holds()


def test_nothing_of_another_tenant_is_on_any_page(database: Adapter, member: Callable[..., User]) -> None:
    mine = asked(database, tenant_id="acme", target="shared", effect_id="e-mine")
    theirs = asked(database, tenant_id="globex", target="shared", principal_id="secret-agent", effect_id="e-theirs")
    database.backend.create("effect", effect(effect_id="e-theirs", tenant_id="globex", principal_id="secret-agent"))
    database.backend.create("effect", effect(effect_id="e-nobody"))
    database.backend.create("saga", saga(saga_id="saga-of-all"))
    database.leases.acquire("effects", "worker-of-all", 60_000)
    user = member(("acme", "*", True))
    decide(member(("*", "*", True)), theirs.id, "denied", shown=None, comment="a secret reason", via="page")
    client = signed_in(user)
    pages = ["/approvals/", "/approvals/?show=denied", "/approvals/?q=shared", f"/approvals/?q={theirs.id}",
             "/approvals/?tenant=globex", "/approvals/~waiting/", "/effects/?show=admission", "/sagas/?show=running", "/leases/",
             reverse("approval", args=[mine.id]), "/admin/approvals/approval/", "/admin/approvals/effect/",
             "/admin/approvals/saga/", "/admin/approvals/decision/", "/admin/approvals/reconciliationlease/",
             f"/admin/approvals/approval/?q={theirs.id}", "/admin/approvals/approval/?q=shared"]  # fmt: skip
    for page in pages:
        response = client.get(page)
        assert response.status_code == 200, page
        shown = re.sub(r'(value|href|action)="[^"]*"', "", response.content.decode())
        for word in ("secret", theirs.id, "e-theirs", "e-nobody", "saga-of-all", "worker-of-all"):
            assert word not in shown, (page, word)
    # What hangs together by an id only.
    step = SagaStep(name="s", effect_id="e-theirs", compensation_effect_id="c", state="executing")
    database.backend.create("saga", saga(saga_id="saga-with-step", steps=(step,)))
    borrowed = asked(database, tenant_id="acme", effect_id="e-theirs")
    page = text_of(client.get(reverse("approval", args=[borrowed.id])))
    assert "not in the journal" in page
    assert "saga-with-step" not in page
    for code, call in (
        ("approval-not-found", lambda: decide(user, theirs.id, "approved", shown=None, via="page")),
        ("effect-not-found", lambda: close_effect(user, "e-theirs", "failed", version=1, reason="x")),
    ):
        with pytest.raises(DecisionError) as error:
            call()
        assert error.value.code == code
    for address in (
        reverse("approval", args=[theirs.id]),
        "/effects/e-theirs/",
        "/effects/e-nobody/",
        "/sagas/saga-of-all/",
    ):
        assert client.get(address).status_code == 404, address
    # Not to be there and not to be for you is the same answer.
    form = {"answer": "approved", "version": 1, "digest": "0" * 64, "comment": "x", "reason": "x"}
    for address in ("decision", "nothing"):
        id = theirs.id if address == "decision" else "nothing"
        answer = client.post(reverse("decision", args=[id]), form)
        assert (answer.status_code, "secret" in text_of(answer)) == (404, False)
    assert client.post("/effects/e-theirs/resolution/", form).status_code == 404
    assert client.post("/sagas/saga-of-all/resolution/", form).status_code == 404
    rowid = DurableRecord.objects.get(id=theirs.id).rowid
    assert client.get(f"/admin/approvals/approval/{rowid}/change/").status_code == 302
    client.post("/admin/approvals/approval/", {"action": "approve", "_selected_action": [rowid]})
    assert Decision.objects.count() == 1


def test_seeing_is_not_deciding(database: Adapter, member: Callable[..., User]) -> None:
    user = member(("acme", "*", False), ("acme", "payments.*", True))
    seen, decidable = asked(database, tenant_id="acme"), asked(database, tenant_id="acme", capability="payments.refund")
    client = signed_in(user)
    assert client.get("/approvals/").content.decode().count("data-approve") == 1
    assert "not decide them" in text_of(client.get(reverse("approval", args=[seen.id])))
    with pytest.raises(DecisionError) as error:
        decide(user, seen.id, "approved", shown=shown_of(seen), via="page")
    assert error.value.code == "not-permitted"
    decide(user, decidable.id, "approved", shown=shown_of(decidable), via="page")
    database.backend.create("effect", effect(effect_id="e", state="unknown", tenant_id="acme", principal_id="bot"))
    with pytest.raises(DecisionError) as error:
        close_effect(user, "e", "failed", version=1, reason="x")
    assert error.value.code == "not-permitted"
    with pytest.raises(DecisionError) as error:
        free_lease(user, "effects", owner="w", expires_at=1, reason="x")
    assert error.value.code == "not-permitted"


def test_grants_come_by_group_too_and_go_to_one_holder(member: Callable[..., User]) -> None:
    user = member()
    assert access_of(user) == Access(())
    assert not access_of(user).may_see("acme", "a.b")
    TenantAccess.objects.create(group=user.groups.get(), tenant="acme")
    assert access_of(user).may_see("acme", "a.b")
    assert access_of(User.objects.create_superuser("root")) == EVERYTHING
    for holder in ({}, {"user": user, "group": user.groups.get()}):
        with pytest.raises(ValidationError):
            TenantAccess(**holder).full_clean()
        with pytest.raises(IntegrityError), transaction.atomic():
            RootAccess.objects.create(**holder)


def test_runs_are_scoped_by_project(member: Callable[..., User]) -> None:
    ids = {}
    for root, name in ((ONE, "storefront"), (TWO, "warehouse")):
        store = RunStore(root)
        ids[name] = str(store.start_run("abel-implement", "start", change=f"change-of-{name}")["runId"])
        RunStore(root, now=lambda: 5_000).acquire_lease(ids[name], f"op-{name}", 1)
        StateRoot.objects.filter(root_hash=root).update(name=name)
    client = signed_in(member(roots=(("store*", False),)))
    for page in ("/runs/", "/leases/", "/runs/?expired=on", "/admin/runs/run/", "/admin/runs/operation/",
                 "/admin/runs/event/", "/admin/runs/stateroot/"):  # fmt: skip
        shown = client.get(page).content.decode()
        assert "warehouse" not in shown, page
        assert TWO not in shown, page
        assert ids["warehouse"] not in shown, page
    assert "change-of-storefront" in text_of(client.get("/runs/")).lower().replace(" ", "-")
    for tail in ("", "operations/"):
        assert client.get(f"/runs/{ids['storefront']}/{tail}").status_code == 200
        assert client.get(f"/runs/{ids['warehouse']}/{tail}").status_code == 404
    assert client.get(f"/runs/?root={TWO}").status_code == 422
    assert client.get(f"/leases/?root={TWO}").status_code == 404
    for action in ("verification", "move"):
        form = {"to": "paused", "code": "x", "sequence": "1"}
        assert client.post(f"/runs/{ids['warehouse']}/{action}/", form).status_code == 404
    # Seen, and not to be changed.
    assert (
        client.post(f"/runs/{ids['storefront']}/move/", {"to": "paused", "code": "x", "sequence": "1"}).status_code
        == 403
    )
    mine, theirs = (Operation.objects.get(operation_id=f"op-{name}").pk for name in ("storefront", "warehouse"))
    assert client.post("/leases/reclaim/", {"operation": [mine], "confirmed": "yes"}).status_code == 403
    unknown = client.post("/leases/reclaim/", {"operation": [10**9]})
    hidden = client.post("/leases/reclaim/", {"operation": [theirs]})
    assert (hidden.status_code, text_of(hidden)) == (unknown.status_code, text_of(unknown)) == (422, text_of(unknown))
    client.post("/leases/reclaim/", {"operation": [theirs], "confirmed": "yes"})
    client.post("/admin/runs/operation/", {"action": "reclaim", "_selected_action": [mine, theirs]})
    assert Operation.objects.filter(state="running", operation_id__startswith="op-").count() == 2
    note_refused(Run.objects.get(run_id=ids["warehouse"]), "op-warehouse", "commit", 1)
    assert "op-warehouse" not in client.get("/leases/?show=live").content.decode()
    TenantAccess.objects.create(user=User.objects.latest("pk"))
    record = asked(Adapter(DatabaseBackend()), effect_id="op-warehouse")
    assert "change-of" not in client.get(reverse("approval", args=[record.id])).content.decode()
    allowed = signed_in(member(roots=((ONE, True),)))
    assert allowed.post("/leases/reclaim/", {"operation": [mine], "confirmed": "yes"}).status_code == 200
    assert Operation.objects.get(pk=mine).state == "interrupted"


def test_every_table_of_runs_in_the_admin_is_scoped() -> None:
    from django.contrib import admin

    from runs.admin import ScopedAdmin

    for model, table in admin.site._registry.items():
        if model._meta.app_label == "runs":
            assert isinstance(table, ScopedAdmin), model
            assert table.root_path, model
