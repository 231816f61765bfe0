"""The audit log: who did what, in the transaction of what they did, and no way to change it unseen."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from django.contrib.auth.models import Group, User
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, transaction
from django.test import Client

from approvals.adapter import Adapter
from approvals.decisions import decide, shown_of
from approvals.models import Decision
from cadence_admin import audit
from cadence_admin.audit import Entry, record, verify
from cadence_admin.models import ApprovalPolicy, AuditEntry, OwnedPrincipal, RootAccess, TenantAccess
from cadence_admin.origin import Origin, acting
from runs.mirror import mirror_state_home
from runs.models import Operation
from runs.reclaiming import reclaim
from runs.store import RunStore
from tests.approvals.test_four_eyes import asked
from tests.approvals.test_pages import form_of
from tests.conftest import DATA, PASSWORD
from tests.runs.stores import ROOT
from tests.runs.threads import in_threads

pytestmark = pytest.mark.django_db


def write(*targets: str) -> None:
    with transaction.atomic():
        for target in targets:
            record(Entry("thing.done", "thing", target, before=1, after={"x": 2}, reason="because", actor="dana"))


def said(action: str) -> list[AuditEntry]:
    return list(AuditEntry.objects.filter(action=action).order_by("sequence"))


@pytest.fixture
def unguarded(db: None) -> None:
    """An attacker who owns the database: the guards are gone until the end of the test's transaction."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("ALTER TABLE cadence_admin_auditentry DISABLE TRIGGER USER")
        else:
            cursor.execute("DROP TRIGGER cadence_admin_auditentry_update_refused")
            cursor.execute("DROP TRIGGER cadence_admin_auditentry_delete_refused")


def test_entries_are_a_chain() -> None:
    with acting(Origin("erin", "10.0.0.7", "request-1")):
        write("a", "b")
        with transaction.atomic():
            record(Entry("thing.seen", "thing", "c"))
    assert verify().ok
    assert [row.target for row in audit.stream()] == ["a", "b", "c"]
    last = said("thing.seen")[0]
    assert audit.payload_of(last) == {
        "happenedAt": last.happened_at,
        "actor": "erin",
        "targetKind": "thing",
        "target": "c",
        "address": "10.0.0.7",
        "requestId": "request-1",
    }
    assert audit.payload_of(said("thing.done")[0])["actor"] == "dana"


@pytest.mark.django_db(transaction=True)
def test_an_entry_alone_is_refused() -> None:
    with pytest.raises(RuntimeError, match="part of the transaction"):
        record(Entry("thing.done", "thing", "a"))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE cadence_admin_auditentry SET actor = 'mallory'",
        "DELETE FROM cadence_admin_auditentry",
        "INSERT INTO cadence_admin_auditentry SELECT * FROM cadence_admin_auditentry",
        "TRUNCATE cadence_admin_auditentry",
    ],
)
def test_the_database_refuses_to_change_it(statement: str) -> None:
    write("a")
    with pytest.raises(DatabaseError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement)
    assert verify().checked == 1


@pytest.mark.usefixtures("unguarded")
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"actor": "mallory"}, "entry 2 shows something else"),
        ({"happened_at": 1}, "entry 2 shows something else"),
        ({"target": "z"}, "entry 2 shows something else"),
        ({"action": "thing.undone"}, "entry 2 is not what was hashed"),
        ({"payload_json": "{}"}, "entry 2 is not what was hashed"),
        ({"payload_json": "{"}, "entry 2 is not what was hashed"),
        ({"prior_hash": "0" * 64}, "entry 2 is not what was hashed"),
        ({"event_hash": "1" * 64}, "entry 2 is not what was hashed"),
    ],
)
def test_a_changed_entry_is_found(change: dict[str, object], problem: str) -> None:
    write("a", "b", "c")
    AuditEntry.objects.filter(sequence=2).update(**change)
    assert problem in verify().problems[0]
    assert not audit.holds(AuditEntry.objects.get(sequence=2)) or "prior_hash" in change


@pytest.mark.usefixtures("unguarded")
def test_what_was_cut_is_found_by_the_chain_or_by_an_anchor() -> None:
    write("a", "b", "c")
    kept = audit.anchor()
    AuditEntry.objects.filter(sequence=2).delete()
    assert "entry 3 stands where 2 is due" in verify().problems[0]
    AuditEntry.objects.filter(sequence=3).delete()
    assert verify().ok, "nothing within the log tells that its end is gone"
    assert "its end was cut off" in verify(anchors=[kept]).problems[0]
    # A history made up anew has right hashes, and isn't the one that was anchored.
    write("x", "y")
    assert verify().ok
    assert "entry 3 is not the one that was anchored" in verify(anchors=[kept]).problems[0]
    AuditEntry.objects.all().delete()
    assert "its end was cut off" in verify(anchors=[kept]).problems[0]


def test_a_part_is_verified_with_its_link() -> None:
    write("a", "b", "c")
    part = verify(after=2)
    assert (part.ok, part.checked, part.first, part.sequence) == (True, 1, 3, 3)
    assert verify(after=9).problems == ["entry 9 is missing"]


@pytest.mark.django_db(transaction=True)
def test_writers_at_once_make_one_chain() -> None:
    before, _ = audit.head()

    def work() -> None:
        for number in range(10):
            write(str(number))

    assert in_threads(*[work] * 16) == [None] * 16
    assert verify().checked == before + 160
    assert verify().ok


@pytest.mark.django_db(transaction=True)
def test_what_is_undone_leaves_no_entry(empty_tables: None, database: Adapter, accounts: dict[str, User]) -> None:
    approval = asked(database, approval_id="a-1")
    before = audit.head()
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        decide(accounts["approver"], "a-1", "approved", shown=shown_of(approval), via="page")
        assert audit.head() != before
        raise ZeroDivisionError
    assert audit.head() == before
    assert not Decision.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_without_an_entry_nothing_is_done(
    empty_tables: None, database: Adapter, accounts: dict[str, User], monkeypatch: pytest.MonkeyPatch
) -> None:
    approval = asked(database, approval_id="a-1")
    monkeypatch.setattr("cadence_admin.audit.create_event", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        decide(accounts["approver"], "a-1", "approved", shown=shown_of(approval), via="page")
    found = database.approvals.get("a-1")
    assert found is not None
    assert found.state == "pending"


def test_a_decision_is_told(empty_tables: None, database: Adapter, sign_in: Callable[[str], Client]) -> None:
    approval = asked(database, approval_id="a-1")
    form = form_of(approval, "denied", comment="no budget")
    response = sign_in("approver").post("/approvals/a-1/decision/", form)
    assert response.status_code in (200, 302), response.content
    (row,) = said("approval.denied")
    found = audit.payload_of(row)
    assert found["actor"] == "approver"
    assert found["before"] == {"state": "pending", "version": 1}
    assert found["after"] == {"state": "denied", "version": 2}
    assert found["reason"] == "no budget"
    assert found["address"] == "127.0.0.1"
    assert found["requestId"] == response["X-Request-ID"]


def test_moves_and_reclaims_are_told(accounts: dict[str, User]) -> None:
    store = RunStore(ROOT)
    run = store.start_run("abel-implement", operation_id="op-1", change="c")
    store.transition(run["runId"], "validating-delivery", "op-2")
    assert not said("run.moved"), "what workers do is told by the chain itself"
    store.transition(run["runId"], "paused", "op-3", code="asked", actor="dana")
    assert audit.payload_of(said("run.moved")[0]) | {"happenedAt": 0} == {
        "happenedAt": 0,
        "actor": "dana",
        "targetKind": "run",
        "target": run["runId"],
        "before": "validating-delivery",
        "after": "paused",
        "reason": "asked",
    }
    store.acquire_lease(run["runId"], "op-4", 1_000)
    Operation.objects.update(lease_expires_at=1)
    assert [done.result for done in reclaim(actor="dana", reason="dead")] == ["reclaimed"]
    assert said("operation.reclaimed")[0].target == f"op-4 of {run['runId']}"


def test_what_a_mirror_finds_is_told_once(state_home: Path) -> None:
    mirror_state_home(state_home)
    roots = len(said("root.added"))
    assert roots
    mirror_state_home(state_home)
    assert len(said("root.added")) == roots
    store = next((state_home / "abel-cadence" / "roots").glob("*/control.sqlite3"))
    store.write_bytes(b"no database")
    for _ in range(2):
        mirror_state_home(state_home)
    assert len(AuditEntry.objects.filter(action__startswith="mirror.")) == 1
    store.unlink()
    for _ in range(2):
        mirror_state_home(state_home)
    assert len(said("mirror.state-component-missing")) == 1


def test_an_import_is_told(empty_tables: None) -> None:
    path = DATA / "nifra" / "records.sqlite3"
    call_command("import_records", str(path))
    found = audit.payload_of(said("records.imported")[0])
    assert found["actor"] == "manage.py import_records"
    assert found["after"] == {"created": 73, "kept": 0, "problems": 0}


def test_sign_ins_are_told(accounts: dict[str, User]) -> None:
    client = Client()
    client.post("/sign-in/", {"username": "viewer", "password": "Wrong-guess-1"})
    client.post("/sign-in/", {"username": "viewer", "password": PASSWORD})
    client.post("/sign-out/")
    told = [(row.action, row.target, row.actor) for row in audit.stream() if row.target_kind == "account"]
    assert told == [
        ("account.sign-in-failed", "viewer", "nobody"),
        ("account.signed-in", "viewer", "viewer"),
        ("account.signed-out", "viewer", "viewer"),
    ]
    assert not any("Wrong-guess" in row.payload_json or PASSWORD in row.payload_json for row in audit.stream())


def test_changes_of_rights_are_told() -> None:
    user = User.objects.create_user("frank", password="one long password")
    group, auditors = Group.objects.create(name="team"), Group.objects.get(name="auditor")
    user.groups.add(group)
    group.user_set.add(User.objects.create_user("gina"))
    user.groups.set([auditors])
    user.groups.clear()
    user.is_active = False
    user.set_password("another long password")
    user.save()
    access = TenantAccess.objects.create(user=user, tenant="acme")
    access.tenant = "*"
    access.save()
    access.save()
    access.delete()
    RootAccess.objects.create(group=group, root="shop")
    policy = ApprovalPolicy.objects.create(capability="*.delete", needed=2)
    policy.excluded.add(group)
    ApprovalPolicy.objects.get(pk=policy.pk).delete()
    OwnedPrincipal.objects.create(user=user, principal="bot-7")
    told = [(row.action, audit.payload_of(row)) for row in audit.stream()]
    short = [(action, found.get("before"), found.get("after")) for action, found in told]
    assert [action for action, _, _ in short] == [
        "user.created",
        "group.created",
        "user.group-put-in",
        "user.created",
        "group.user-put-in",
        "user.group-taken-out",
        "user.group-put-in",
        "user.group-taken-out",
        "user.changed",
        "user.password-changed",
        "tenantaccess.created",
        "tenantaccess.changed",
        "tenantaccess.deleted",
        "rootaccess.created",
        "approvalpolicy.created",
        "approvalpolicy.group-put-in",
        "approvalpolicy.deleted",
        "ownedprincipal.created",
    ]
    assert short[2] == ("user.group-put-in", None, ["team"])
    assert short[7] == ("user.group-taken-out", ["auditor"], None)
    assert short[8] == ("user.changed", {"is_active": True}, {"is_active": False})
    assert short[11] == ("tenantaccess.changed", {"tenant": "acme"}, {"tenant": "*"})
    assert short[14][2] == {"capability": "*.delete", "needed": 2}
    assert "pbkdf2" not in json.dumps(told)
    assert "md5$" not in json.dumps(told)


def test_a_policy_changed_in_the_admin_is_told_with_its_request(accounts: dict[str, User]) -> None:
    root = User.objects.create_superuser("root", password=PASSWORD)
    client = Client()
    client.force_login(root)
    response = client.post("/admin/cadence_admin/approvalpolicy/add/", {"capability": "pay.*", "needed": 3})
    assert response.status_code == 302
    found = audit.payload_of(said("approvalpolicy.created")[0])
    assert (found["actor"], found["requestId"]) == ("root", response["X-Request-ID"])


def test_a_role_that_is_made_so_again_is_told() -> None:
    Group.objects.get(name="viewer").permissions.clear()
    call_command("migrate", verbosity=0)
    assert said("group.permission-taken-out")
    assert said("group.made-so-again")[0].target == "viewer"
    call_command("migrate", verbosity=0)
    assert len(said("group.made-so-again")) == 1


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write("a")
    call_command("audit", "anchor")
    anchors = tmp_path / "anchors"
    anchors.write_text(capsys.readouterr().out)
    write("b")
    call_command("audit", "anchor")
    anchors.write_text(anchors.read_text() + capsys.readouterr().out)
    call_command("audit", "verify", "--anchors", str(anchors))
    assert "ok  2 entries, 2 anchors" in capsys.readouterr().out
    call_command("audit", "export", "--after", "1")
    (line,) = capsys.readouterr().out.splitlines()
    exported = json.loads(line)
    assert exported["sequence"] == 2
    assert json.loads(exported["payload"])["target"] == "b"
    anchors.write_text(anchors.read_text().replace(" 2 ", " 1 "))
    with pytest.raises(SystemExit):
        call_command("audit", "verify", "--anchors", str(anchors))
    assert "is not the one that was anchored" in capsys.readouterr().out
    anchors.write_text("not one")
    with pytest.raises(CommandError, match="anchors-unreadable"):
        call_command("audit", "verify", "--anchors", str(anchors))


def test_a_command_on_behalf_of_an_account_needs_its_permission(accounts: dict[str, User]) -> None:
    path = str(DATA / "nifra" / "records.sqlite3")
    with pytest.raises(CommandError, match="not-permitted: viewer"):
        call_command("import_records", path, "--as", "viewer")
    with pytest.raises(CommandError, match="not-permitted: nobody"):
        call_command("import_records", path, "--as", "nobody")
    call_command("import_records", path, "--as", "operator")
    assert said("records.imported")[0].actor == "operator"
    RootAccess.objects.all().update(root="shop")
    with pytest.raises(CommandError, match="all tenants and projects"):
        call_command("import_records", path, "--as", "operator")


def test_the_page(sign_in: Callable[[str], Client]) -> None:
    client = sign_in("auditor")
    write(*(f"t-{number}" for number in range(60)), "<script>alert(1)</script>")
    page = client.get("/audit/")
    assert "&lt;script&gt;" in page.content.decode()
    assert "<script>alert" not in page.content.decode()
    assert len(page.context["entries"]) == 50
    earlier = client.get(f"/audit/?before={page.context['next_key']}")
    assert len(earlier.context["entries"]) + 50 == AuditEntry.objects.count()
    assert [entry["row"].target for entry in client.get("/audit/?target=t-7").context["entries"]] == ["t-7"]
    assert not client.get("/audit/?actor=nobody-else").context["entries"]
    assert len(client.get("/audit/?action=account.signed-in&actor=auditor").context["entries"]) == 1
    assert "hold." in client.post("/audit/verify/").content.decode()
    for wrong in ("?before=x", "?log=other", "?before=-1"):
        assert client.get(f"/audit/{wrong}").status_code == 404


def test_the_page_is_for_those_who_see_everything(sign_in: Callable[[str], Client]) -> None:
    assert sign_in("viewer").get("/audit/").status_code == 403
    client = sign_in("auditor")
    assert client.get("/audit/").status_code == 200
    TenantAccess.objects.all().update(tenant="acme")
    assert client.get("/audit/").status_code == 403
    assert client.post("/audit/verify/").status_code == 403
    TenantAccess.objects.all().update(tenant="*")
    RootAccess.objects.all().update(root="shop")
    assert client.get("/audit/").status_code == 403


@pytest.mark.usefixtures("unguarded")
def test_the_page_says_what_was_changed(sign_in: Callable[[str], Client]) -> None:
    client = sign_in("auditor")
    write("a", "b")
    AuditEntry.objects.filter(target="a").update(actor="mallory")
    assert "was changed" in client.get("/audit/").content.decode()
    assert "The audit log was changed." in client.post("/audit/verify/").content.decode()


def test_no_page_of_the_log_reads_all_of_it(
    sign_in: Callable[[str], Client], django_assert_num_queries: Callable[[int], object]
) -> None:
    client = sign_in("auditor")
    with transaction.atomic():
        record(*(Entry("thing.done", "thing", str(number), actor="dana") for number in range(3_000)))
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE cadence_admin_auditentry")
    for wanted, index in (
        ({}, "auditentry"),
        ({"actor": "x"}, "audit_by_actor"),
        ({"target": "7"}, "audit_by_target"),
        ({"action": "x"}, "audit_by_action"),
    ):
        rows = AuditEntry.objects.filter(**wanted, sequence__lt=2_000).order_by("-sequence")[:51]
        plan = rows.explain()
        assert index in plan
        assert "Seq Scan" not in plan
        assert "TEMP B-TREE" not in plan
    # PostgreSQL is asked for its clock.
    with django_assert_num_queries(9 if connection.vendor == "postgresql" else 8):
        client.get("/audit/")
