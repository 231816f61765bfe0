"""What happens when a person decides."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction

from approvals import decisions
from approvals.adapter import Adapter
from approvals.conformance import BINDING, FAR, HASH, approval
from approvals.coordinator import ApprovalCoordinator, ApprovalError
from approvals.decisions import DecisionError, Shown, decide, expire, shown_of, state_at, token_of
from approvals.models import Approval as ApprovalRow
from approvals.models import Decision
from approvals.records import Approval, Binding, RecordError
from approvals.tables import RECORDS
from approvals.tokens import hash_token
from tests.approvals.seed import OtherPostgres, OtherSqlite
from tests.conftest import load
from tests.runs.threads import in_threads

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_tables")]


def asked(adapter: Adapter, **values: Any) -> Approval:
    record = approval(**({"expires_at": FAR} | values))
    assert adapter.backend.create("approval", record)
    return record


def current(adapter: Adapter, record: Approval) -> Approval:
    found = adapter.approvals.get(record.id)
    assert found is not None
    return found


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(DecisionError) as error:
        call()
    return error.value.code


@pytest.fixture
def approver(accounts: dict[str, User]) -> User:
    return accounts["approver"]


@pytest.fixture
def operator(accounts: dict[str, User]) -> User:
    return accounts["operator"]


def test_a_decision_changes_the_record_and_leaves_an_entry(database: Adapter, approver: User) -> None:
    record = asked(database)
    shown = shown_of(record)
    answered = decide(
        approver, record.id, "approved", shown=shown, comment=" fine ", came_from="192.0.2.7", via="inbox"
    )
    after = current(database, record)
    assert (after.state, after.decided_by, after.version) == ("approved", f"cadence-admin:{approver.pk}", 2)
    assert (answered.approval.version, answered.again) == (2, False)
    (entry,) = Decision.objects.all()
    assert (entry.kind, entry.record_id, entry.answer, entry.actor) == ("approval", record.id, "approved", "approver")
    assert (entry.comment, entry.came_from, entry.via) == ("fine", "192.0.2.7", "inbox")
    assert (entry.version_before, entry.version_after, entry.shown_digest) == (1, 2, shown.digest)
    assert entry.happened_at == after.updated_at


def test_the_token_of_a_user_is_unique_and_stays(approver: User, operator: User) -> None:
    before = token_of(approver)
    assert token_of(operator) != before
    approver.username = "somebody else"
    approver.save()
    assert token_of(User.objects.get(pk=approver.pk)) == before
    assert all("!" <= character <= "~" for character in before)


def test_the_same_again_by_the_same_person_is_the_same_decision(database: Adapter, approver: User) -> None:
    record = asked(database)
    shown = shown_of(record)
    decide(approver, record.id, "approved", shown=shown, via="page")
    assert decide(approver, record.id, "approved", shown=shown, via="page").again
    # Also after whoever asked has used it.
    assert database.approvals.consume(record.id, binding=BINDING, token_hash=HASH) == "consumed"
    assert decide(approver, record.id, "approved", shown=shown, via="page").again
    denial = lambda: decide(approver, record.id, "denied", shown=shown, comment="no", via="page")  # noqa: E731
    assert refusal(denial) == "approval-already-decided"
    assert Decision.objects.count() == 1


def test_who_comes_second_is_told_how_it_stands(database: Adapter, approver: User, operator: User) -> None:
    record = asked(database)
    decide(approver, record.id, "denied", shown=shown_of(record), comment="not today", via="page")
    with pytest.raises(DecisionError) as error:
        decide(operator, record.id, "denied", shown=shown_of(record), comment="no", via="page")
    assert error.value.code == "approval-already-decided"
    assert error.value.approval is not None
    assert error.value.approval.decided_by == token_of(approver)


def test_of_many_at_once_one_wins(database: Adapter, approver: User, operator: User) -> None:
    record = asked(database)
    shown = shown_of(record)

    def deny_or_approve(number: int) -> Callable[[], Any]:
        user, answer = ((approver, "approved"), (operator, "denied"))[number % 2]
        return lambda: decide(user, record.id, answer, shown=shown, comment="because", via="page")

    found = in_threads(*[deny_or_approve(number) for number in range(12)])
    (entry,) = Decision.objects.all()
    after = current(database, record)
    assert (after.state, after.version) == (entry.answer, 2)
    won = [answer for answer in found if not isinstance(answer, BaseException)]
    assert len(won) == 6
    assert sum(not answered.again for answered in won) == 1
    assert {error.code for error in found if isinstance(error, DecisionError)} == {"approval-already-decided"}


def test_the_clock_that_decides_is_the_databases(database: Adapter, approver: User) -> None:
    now = database.backend.now()
    past = asked(database, expires_at=now - 1)
    assert state_at(past, now) == "expired"
    assert (
        refusal(lambda: decide(approver, past.id, "approved", shown=shown_of(past), via="page")) == "approval-expired"
    )
    assert current(database, past).state == "pending"
    assert expire(approver, past.id, via="admin")
    assert not expire(approver, past.id, via="admin")
    assert current(database, past).state == "expired"
    assert [entry.answer for entry in Decision.objects.all()] == ["expired"]
    open_one = asked(database)
    assert not expire(approver, open_one.id, via="admin")


@pytest.mark.parametrize(
    ("user", "values", "given", "code"),
    [
        ("viewer", {}, {}, "not-permitted"),
        ("approver", {}, {"answer": "expired"}, "invalid-decision"),
        ("approver", {}, {"answer": "denied", "comment": "  "}, "reason-required"),
        ("approver", {"principal_id": "approver"}, {}, "own-request"),
        ("approver", {}, {"shown": Shown(2, "0" * 64)}, "approval-changed"),
        ("approver", {}, {"shown": Shown(1, "0" * 64)}, "approval-changed"),
        ("approver", {"capability": "infra.delete"}, {}, "confirmation-mismatch"),
        ("approver", {"capability": "infra.delete"}, {"typed": "T"}, "confirmation-mismatch"),
        ("approver", {"state": "consumed"}, {}, "approval-already-decided"),
    ],
)
def test_what_is_refused(
    database: Adapter, accounts: dict[str, User], user: str, values: dict[str, Any], given: dict[str, Any], code: str
) -> None:
    record = asked(database, **values)
    given = {"answer": "approved", "shown": shown_of(record), "via": "page"} | given
    assert refusal(lambda: decide(accounts[user], record.id, **given)) == code
    assert current(database, record) == record
    assert not Decision.objects.exists()


def test_what_is_not_there_is_gone(approver: User) -> None:
    assert refusal(lambda: decide(approver, "nothing", "approved", shown=None, via="page")) == "approval-not-found"
    assert refusal(lambda: expire(approver, "nothing", via="page")) == "approval-not-found"


def test_a_confirmed_capability_takes_its_target_typed(database: Adapter, approver: User, settings: Any) -> None:
    settings.CONFIRM_CAPABILITIES = ["*.delete", "db.*"]
    for capability, target, typed in (("infra.delete", "bucket:1", "bucket:1"), ("db.migrate", None, "db.migrate")):
        record = asked(database, capability=capability, target=target)
        decide(approver, record.id, "approved", shown=shown_of(record), typed=typed, via="page")
        assert current(database, record).state == "approved"
    # Denying takes only a reason.
    record = asked(database, capability="infra.delete")
    decide(approver, record.id, "denied", shown=shown_of(record), comment="no", via="page")


def test_what_was_shown_is_what_is_decided(database: Adapter, approver: User) -> None:
    """Somebody changes the payload and leaves the version: what the person read is not what stands there."""
    record = asked(database)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT payload FROM {RECORDS} WHERE id = %s", [record.id])
        text = str(ApprovalRow.objects.get(id=record.id).payload).replace("test.write", "test.wipe")
        cursor.execute(f"UPDATE {RECORDS} SET payload = %s WHERE id = %s", [text, record.id])
    given = lambda: decide(approver, record.id, "approved", shown=shown_of(record), via="page")  # noqa: E731
    assert refusal(given) == "approval-changed"


def test_a_shortened_text_is_opened_before_it_is_approved(database: Adapter, approver: User) -> None:
    record = asked(database, target="t" * 65_536)
    glance, whole = shown_of(record), shown_of(record, whole=True)
    assert glance != whole
    given = lambda: decide(approver, record.id, "approved", shown=glance, via="page")  # noqa: E731
    assert refusal(given) == "approval-not-read"
    decide(approver, record.id, "approved", shown=whole, via="page")
    assert Decision.objects.get().shown_digest == whole.digest
    denied = asked(database, target="t" * 65_536)
    decide(approver, denied.id, "denied", shown=shown_of(denied), comment="too long", via="page")


def test_a_record_that_cannot_be_read_is_not_decided(database: Adapter, approver: User) -> None:
    record = asked(database)
    with connection.cursor() as cursor:
        cursor.execute(f"""UPDATE {RECORDS} SET payload = '{{"r": 1, "n": []}}' WHERE id = %s""", [record.id])
    with pytest.raises(RecordError) as error:
        decide(approver, record.id, "approved", shown=None, via="page")
    assert error.value.code == "record-unreadable"


def test_nobody_waits_for_ever(database: Adapter, approver: User, monkeypatch: pytest.MonkeyPatch) -> None:
    record = asked(database)
    monkeypatch.setattr(decisions, "PATIENCE", "100ms")

    def impatient() -> Any:
        if connection.vendor == "sqlite":
            with connection.cursor() as cursor:
                cursor.execute("PRAGMA busy_timeout = 100")
        return decide(approver, record.id, "approved", shown=shown_of(record), via="page")

    with transaction.atomic():
        list(ApprovalRow.objects.select_for_update().filter(id=record.id))
        (found,) = in_threads(impatient)
    assert isinstance(found, DecisionError), found
    assert found.code == "record-busy"
    assert current(database, record).state == "pending"


def _other() -> OtherSqlite | OtherPostgres:
    return OtherSqlite() if connection.vendor == "sqlite" else OtherPostgres()


@pytest.mark.parametrize("answer", ["approved", "denied"])
def test_the_consuming_side_sees_it(database: Adapter, approver: User, answer: str) -> None:
    """The coordinator with the real program's own token, and the other program by its own statements."""
    found = load("nifra/approvals.json")
    entry = next(entry for entry in found["approvals"] if entry["record"]["state"] == "pending")
    other = _other()
    members = entry["record"]
    assert other.create("approval", members["approvalId"], members)
    decide(approver, members["approvalId"], answer, shown=None, comment="seen", via="admin")
    # The other program reads what we wrote, and its own members are as they were.
    theirs = other.get("approval", members["approvalId"])
    assert theirs is not None
    assert {name: theirs[name] for name in members if name not in ("state", "updatedAt", "version")} == {
        name: value for name, value in members.items() if name not in ("state", "updatedAt", "version")
    }
    assert (theirs["state"], theirs["decidedBy"], theirs["version"]) == (answer, token_of(approver), 2)
    coordinator = ApprovalCoordinator(database.approvals, found["secretUtf8"].encode())
    names = {
        "tenant_id": "tenantId",
        "principal_id": "principalId",
        "capability": "cap",
        "target": "target",
        "digest": "digest",
    }
    binding = Binding(**{name: entry.get(key) for name, key in names.items()})
    if answer == "denied":
        with pytest.raises(ApprovalError) as error:
            coordinator.authorize("again", binding, entry["token"])
        assert error.value.code == "approval-denied"
    else:
        coordinator.authorize("again", binding, entry["token"])
        with pytest.raises(ApprovalError) as error:
            coordinator.authorize("again", binding, entry["token"])
        assert error.value.code == "approval-replay"
    other.close()


def test_the_other_program_consumes_it_once(database: Adapter, approver: User) -> None:
    other = _other()
    record = asked(database, token_hash=hash_token("theirs"))
    decide(approver, record.id, "approved", shown=shown_of(record), via="page")
    theirs = other.get("approval", record.id)
    assert theirs is not None
    assert theirs["state"] == "approved"
    used = theirs | {"state": "consumed", "version": theirs["version"] + 1}
    assert other.compare_and_set("approval", record.id, theirs["version"], used)
    assert not other.compare_and_set("approval", record.id, theirs["version"], used)
    assert current(database, record).state == "consumed"
    other.close()
