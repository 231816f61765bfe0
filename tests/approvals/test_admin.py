"""Django's admin over nifra's tables: looked at, never edited; actions by the services."""

from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from approvals.adapter import Adapter
from approvals.conformance import FAR, approval, effect
from approvals.importer import import_records
from approvals.models import Approval, Decision, DurableRecord, Effect, ReconciliationLease
from tests.conftest import DATA

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_tables")]

TABLES = ["approval", "effect", "saga", "reconciliationlease", "decision"]


@pytest.fixture
def superuser(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root", password="x"))
    return client


@pytest.fixture
def sample(database: Adapter) -> Adapter:
    import_records(Path(DATA / "nifra" / "records.sqlite3"))
    database.leases.acquire("effects", "worker-a", 600_000)
    return database


def act(client: Client, table: str, action: str, chosen: list[Any], reason: str = "") -> str:
    form = {"action": action, "_selected_action": chosen, "reason": reason}
    return client.post(f"/admin/approvals/{table}/", form, follow=True).content.decode()


@pytest.mark.parametrize("table", TABLES)
def test_tables_open_at_a_fixed_cost_and_cannot_be_edited(sample: Adapter, superuser: Client, table: str) -> None:
    with CaptureQueriesContext(connection) as queries:
        response = superuser.get(f"/admin/approvals/{table}/?q=x")
    assert response.status_code == 200
    assert len(queries) <= 6
    assert superuser.get(f"/admin/approvals/{table}/").status_code == 200
    assert superuser.get(f"/admin/approvals/{table}/add/").status_code == 403
    model = {"approval": Approval, "effect": Effect, "reconciliationlease": ReconciliationLease}.get(table)
    if model is None:
        return
    row = model.objects.first()
    assert row is not None
    before = list(DurableRecord.objects.order_by("rowid").values_list("rowid", "state", "version", "payload"))
    page = superuser.get(f"/admin/approvals/{table}/{row.pk}/change/")
    assert page.status_code == 200
    for secret in Approval.objects.all()[:50]:
        assert getattr(secret.record, "token_hash", "?") not in page.content.decode()
    assert superuser.post(f"/admin/approvals/{table}/{row.pk}/change/", {"state": "approved"}).status_code == 403
    assert superuser.post(f"/admin/approvals/{table}/{row.pk}/delete/", {"post": "yes"}).status_code == 403
    assert list(DurableRecord.objects.order_by("rowid").values_list("rowid", "state", "version", "payload")) == before


def test_approvals_are_decided_by_the_service(database: Adapter, superuser: Client) -> None:
    good, risky, past = (
        approval(expires_at=FAR),
        approval(expires_at=FAR, capability="infra.delete"),
        approval(expires_at=2),
    )
    for record in (good, risky, past):
        database.backend.create("approval", record)
    rowids = list(Approval.objects.order_by("rowid").values_list("rowid", flat=True))
    said = act(superuser, "approval", "approve", rowids)
    assert f"{good.id}: approved" in said
    assert "confirmation-mismatch" in said
    assert "approval-expired" in said
    assert "reason-required" in act(superuser, "approval", "deny", rowids[1:2])
    assert f"{risky.id}: denied" in act(superuser, "approval", "deny", rowids[1:2], "too risky")
    said = act(superuser, "approval", "expire", rowids)
    assert f"{past.id}: expired" in said
    assert f"{good.id}: its time isn&#x27;t up" in said
    assert sorted(Decision.objects.values_list("answer", "via")) == [
        ("approved", "admin"), ("denied", "admin"), ("expired", "admin"),
    ]  # fmt: skip


def test_effects_and_leases_are_settled_by_the_service(sample: Adapter, superuser: Client) -> None:
    unknown = effect(state="unknown")
    sample.backend.create("effect", unknown)
    rowid = Effect.objects.get(id=unknown.id).rowid
    assert "reason-required" in act(superuser, "effect", "close_as_failed", [rowid])
    assert f"{unknown.id}: failed" in act(superuser, "effect", "close_as_failed", [rowid], "asked the provider")
    assert "Lease effects: free" in act(superuser, "reconciliationlease", "reclaim", ["effects"], "host is gone")
    assert ReconciliationLease.objects.get(name="effects").owner is None
    assert "lease-changed" in act(superuser, "reconciliationlease", "reclaim", ["effects"], "again")


def test_who_may_look_but_not_decide_finds_no_action(sample: Adapter, sign_in: Callable[[str], Client]) -> None:
    auditor = sign_in("auditor")
    page = auditor.get("/admin/approvals/approval/").content.decode()
    assert 'value="approve"' not in page
    rowid = Approval.objects.filter(state="pending").first()
    assert rowid is not None
    act(auditor, "approval", "approve", [rowid.pk])
    assert not Decision.objects.exists()


def test_the_command_writes_down_what_has_expired(database: Adapter) -> None:
    record = approval(expires_at=2)
    database.backend.create("approval", record)
    out = StringIO()
    call_command("expire_approvals", stdout=out)
    assert out.getvalue() == "approvals: 1 expired\n"
    after = database.approvals.get(record.id)
    assert after is not None
    assert after.state == "expired"
