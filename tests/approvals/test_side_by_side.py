"""Side by side with the other program: in its tables, with its statements between ours."""

import os
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection, transaction

from approvals import tables, wire
from approvals.adapter import Adapter
from approvals.models import Approval, DurableRecord, Effect
from approvals.records import Binding, RecordError, read_record
from tests.approvals.seed import LEASES, RECORDS, OtherPostgres, OtherSqlite
from tests.conftest import load

pytestmark = pytest.mark.django_db(transaction=True)

BINDING = Binding(tenant_id="acme", principal_id="bot", capability="test.write", target="t", digest="d" * 64)


# SQLite knows one form of payloads, PostgreSQL two.
FORMS = ["object", "string"] if os.environ.get("CADENCE_TEST_ENGINE") == "postgresql" else ["object"]


@pytest.fixture(params=FORMS)
def other(request: pytest.FixtureRequest, transactional_db: None) -> Iterator[OtherSqlite | OtherPostgres]:
    if connection.vendor == "sqlite":
        program: OtherSqlite | OtherPostgres = OtherSqlite()
    else:
        program = OtherPostgres(as_string=request.param == "string")
    yield program
    program.close()


@pytest.fixture(params=["ours first", "theirs first"])
def adapter(request: pytest.FixtureRequest, other: OtherSqlite | OtherPostgres, database: Adapter) -> Adapter:
    """Tables that either side made first, and the other found."""
    if request.param == "theirs first":
        with connection.cursor() as cursor:
            cursor.execute(f"DROP TABLE {tables.RECORDS}")
            cursor.execute(f"DROP TABLE {tables.LEASES}")
        other.migrate()
        other.create("effect", "before", {"effectId": "before", "capability": "a.b", "state": "admission", "createdAt": 1,
                                          "updatedAt": 1, "version": 1})  # fmt: skip
        tables.adopt(connection)
    other.migrate()  # finds everything there
    return database


def approval(id: str = "ap1", **changed: Any) -> dict[str, Any]:
    return {
        "approvalId": id,
        "effectId": "e1",
        "capability": "test.write",
        "target": "t",
        "digest": "d" * 64,
        "tenantId": "acme",
        "principalId": "bot",
        "tokenHash": "hash",
        "state": "pending",
        "createdAt": 1,
        "expiresAt": 4_000_000_000_000,
        "updatedAt": 1,
        "version": 1,
        # What a later version might add, and we know nothing of.
        "later": {"nested": [1, 0.5, None, {"a": "b"}]},
        **changed,
    }


def version_columns(kind: str, id: str) -> tuple[Any, ...]:
    return DurableRecord.objects.filter(kind=kind, id=id).values_list("state", "updated_at", "version").get()


def test_their_question_our_decision_their_use(adapter: Adapter, other: OtherSqlite | OtherPostgres) -> None:
    asked = approval()
    assert other.create("approval", "ap1", asked)
    assert adapter.approvals.decide("ap1", tenant_id="acme", decision="approved", decided_by="dana", now=50)
    decided = other.get("approval", "ap1")
    assert decided == asked | {"state": "approved", "decidedBy": "dana", "updatedAt": 50, "version": 2}
    assert version_columns("approval", "ap1") == ("approved", 50, 2)
    # It consumes as it does: the next version over the whole record.
    consumed = decided | {"state": "consumed", "updatedAt": 60, "version": 3}
    assert other.compare_and_set("approval", "ap1", 2, consumed)
    assert adapter.approvals.consume("ap1", binding=BINDING, token_hash="hash", now=70) == "replay"
    assert not other.compare_and_set("approval", "ap1", 2, consumed)


def test_our_question_their_decision_our_use(adapter: Adapter, other: OtherSqlite | OtherPostgres) -> None:
    record = read_record("approval", approval())
    assert adapter.approvals.create(record)  # type: ignore[arg-type]
    assert not other.create("approval", "ap1", approval())
    seen = other.get("approval", "ap1")
    assert seen == approval()
    assert other.compare_and_set(
        "approval", "ap1", 1, seen | {"state": "approved", "decidedBy": "x", "updatedAt": 9, "version": 2}
    )
    assert not adapter.approvals.decide("ap1", tenant_id="acme", decision="denied", decided_by="dana", now=50)
    assert adapter.approvals.consume("ap1", binding=BINDING, token_hash="hash", now=70) == "consumed"
    assert (other.get("approval", "ap1") or {})["later"] == approval()["later"]
    assert version_columns("approval", "ap1") == ("consumed", 70, 3)


def test_effects_and_sagas_go_back_and_forth(adapter: Adapter, other: OtherSqlite | OtherPostgres) -> None:
    one = {"effectId": "e1", "capability": "a.b", "state": "executing", "createdAt": 1, "updatedAt": 5, "version": 2,
           "errorCode": "old", "extra": wire.BigInt("12345678901234567890")}  # fmt: skip
    other.create("effect", "e1", one)
    assert adapter.effects.transition("e1", version=2, origin="executing", to="committed", now=9)
    expected = {key: value for key, value in one.items() if key != "errorCode"}
    assert other.get("effect", "e1") == expected | {"state": "committed", "updatedAt": 9, "version": 3}
    for entry in load("nifra/records.json"):
        other.create(entry["kind"], entry["id"], wire.loads(entry["payload"]))
        record = adapter.backend.get(entry["kind"], entry["id"])
        assert record is not None
        assert record == read_record(entry["kind"], wire.loads(entry["payload"]))
    assert other.scan("saga", ["running", "compensating"], 100) == sorted(
        entry["id"] for entry in load("nifra/records.json")
        if entry["kind"] == "saga" and entry["state"] in ("running", "compensating")
    )  # fmt: skip


def test_the_form_of_a_payload_stays(adapter: Adapter, other: OtherSqlite | OtherPostgres) -> None:
    other.create("approval", "ap1", approval())
    form = other.payload("approval", "ap1")[0]
    adapter.approvals.decide("ap1", tenant_id="acme", decision="approved", decided_by="dana", now=50)
    adapter.approvals.consume("ap1", binding=BINDING, token_hash="hash", now=60)
    assert other.payload("approval", "ap1")[0] == form
    assert (other.get("approval", "ap1") or {})["state"] == "consumed"


def test_our_columns_follow_what_they_write(adapter: Adapter, other: OtherSqlite | OtherPostgres) -> None:
    other.create("approval", "ap1", approval())
    row = Approval.objects.get(id="ap1")
    found = (row.tenant_id, row.principal_id, row.capability, row.target, row.effect_id, row.expires_at)
    assert found == ("acme", "bot", "test.write", "t", "e1", 4_000_000_000_000)
    assert row.decided_by is None
    changed = approval(state="denied", decidedBy="x", tenantId="globex", version=2)
    other.compare_and_set("approval", "ap1", 1, changed)
    row = Approval.objects.get(id="ap1")
    assert (row.tenant_id, row.decided_by, row.state) == ("globex", "x", "denied")
    assert row.record.version == 2
    assert Effect.objects.filter(id="ap1").count() == 0


HOSTILE = [
    {"expiresAt": "soon"},
    {"expiresAt": 1.5},
    {"expiresAt": 1e300},
    {"expiresAt": -1},
    {"expiresAt": 2**53 - 1},
    {"expiresAt": wire.BigInt("9" * 40)},
    {"expiresAt": None},
    {"tenantId": 7},
    {"tenantId": {"a": 1}},
    {"tenantId": "x" * 100_000},
    {"tenantId": wire.UNDEFINED},
    {"target": "\u2028 \U0001f600 '\"\\"},
    {"capability": [["deep"] * 10]},
]


@pytest.mark.parametrize("members", HOSTILE, ids=lambda members: str(members)[:40])
def test_our_columns_never_make_their_insert_fail(
    adapter: Adapter, other: OtherSqlite | OtherPostgres, members: dict[str, Any]
) -> None:
    assert other.create("approval", "ap1", approval(**members))
    assert DurableRecord.objects.filter(id="ap1").count() == 1


@pytest.mark.parametrize(
    "payload", ['"text"', "[]", "{}", "null", "1", '{"n":[]}', '{"n":[{"v":7}]}', '{"n":{"0":{"v":{}}}}']
)
def test_nor_does_any_other_json(adapter: Adapter, other: OtherSqlite | OtherPostgres, payload: str) -> None:
    other.insert_payload("ap1", payload)
    row = DurableRecord.objects.get(id="ap1")
    assert (row.tenant_id, row.expires_at) == (None, None)
    with pytest.raises(RecordError) as error:
        adapter.approvals.get("ap1")
    assert error.value.code == "record-unreadable"
    # It is reported and passed, and the ones beside it are read.
    other.create("approval", "ap2", approval("ap2"))
    page = adapter.approvals.scan(["pending"], 10)
    assert (page.unreadable, [record.id for record in page.records]) == (("ap1",), ["ap2"])


@pytest.mark.parametrize("text", ["no json", '{"r":{"$w":"ref","i":0},"n":[{"$w":"obj","v":{"tenantId":"a\\u0000b"}}]}',
                                  '{"r":"\\ud800","n":[]}', "{" * 5_000])  # fmt: skip
def test_nor_does_text_that_jsonb_would_refuse(adapter: Adapter, other: OtherSqlite | OtherPostgres, text: str) -> None:
    if isinstance(other, OtherPostgres) and "text" not in other._as_payload:
        with pytest.raises(psycopg.DataError):  # JSONB itself refuses this, whatever stands beside it
            other.insert_payload("ap1", text)
        return
    other.insert_payload("ap1", text)
    assert DurableRecord.objects.filter(id="ap1").count() == 1


@pytest.mark.skipif(os.environ.get("CADENCE_TEST_ENGINE") != "postgresql", reason="SQLite has no search path")
def test_nor_does_their_search_path(adapter: Adapter, other: OtherSqlite | OtherPostgres) -> None:
    """A restore from a dump has none either."""
    other.create("approval", "ap1", approval())
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL search_path = ''")
        cursor.execute(
            f"INSERT INTO public.{RECORDS} (kind, id, state, updated_at, version, payload) "
            f"SELECT kind, 'ap2', state, updated_at, version, payload FROM public.{RECORDS} WHERE id = 'ap1'"
        )
    row = Approval.objects.get(id="ap2")
    assert (row.tenant_id, row.expires_at) == ("acme", 4_000_000_000_000)


def test_a_column_alone_decides_nothing(adapter: Adapter, other: OtherSqlite | OtherPostgres) -> None:
    """What the payload says counts; the version column is for compare-and-set."""
    other.create("approval", "ap1", approval(state="denied"))
    DurableRecord.objects.filter(id="ap1").update(state="pending")
    assert not adapter.approvals.decide("ap1", tenant_id="acme", decision="approved", decided_by="dana", now=50)
    assert adapter.approvals.consume("ap1", binding=BINDING, token_hash="hash", now=50) == "denied"


def test_leases_are_shared(adapter: Adapter, other: OtherSqlite | OtherPostgres) -> None:
    now = adapter.backend.now()
    assert other.acquire("w", "theirs", "t1", now, 60_000)
    assert adapter.leases.acquire("w", "ours", 60_000) is None
    assert other.acquire("v", "theirs", "t2", now - 120_000, 60_000)
    lease = adapter.leases.acquire("v", "ours", 60_000)
    assert lease is not None
    assert not other.acquire("v", "theirs", "t3", now, 60_000)
    assert adapter.leases.release(lease)
    assert other.acquire("v", "theirs", "t4", now, 60_000)


def test_a_lease_without_an_owner_is_free(adapter: Adapter) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {LEASES} (name, owner, token, expires_at) VALUES ('w', NULL, NULL, 4000000000000)")
    assert adapter.leases.acquire("w", "ours", 1_000) is not None


def test_nul_is_refused_with_a_sentence_where_jsonb_refuses_it(database: Adapter) -> None:
    record = read_record("saga", {"sagaId": "s", "definition": "d", "state": "running", "input": "\0", "steps": [],
                                  "createdAt": 1, "updatedAt": 1, "version": 1})  # fmt: skip
    if connection.vendor == "sqlite":
        assert database.sagas.create(record)  # type: ignore[arg-type]
        return
    with pytest.raises(RecordError) as error:
        database.sagas.create(record)  # type: ignore[arg-type]
    assert error.value.code == "record-not-storable"


# Adoption


def columns() -> set[str]:
    return tables._columns(connection)


def test_adoption_keeps_every_row_and_may_be_repeated(other: OtherSqlite | OtherPostgres, database: Adapter) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {RECORDS}")
    other.migrate()
    entries = load("nifra/records.json")
    for entry in entries:
        other.create(entry["kind"], entry["id"], wire.loads(entry["payload"]))
    before = {(entry["kind"], entry["id"]): other.payload(entry["kind"], entry["id"]) for entry in entries}
    plain = columns()
    for _ in range(2):
        tables.create(connection)
        tables.adopt(connection)
    assert DurableRecord.objects.count() == len(entries)
    assert Approval.objects.filter(tenant_id="acme", state="pending").count() == len(
        [entry for entry in entries if entry["state"] == "pending" and entry["record"]["tenantId"] == "acme"]
    )
    assert {key: other.payload(*key) for key in before} == before
    tables.release(connection)
    assert columns() >= plain - {"rowid"}
    assert not columns() & set(tables.TEXTS)
    assert {key: other.payload(*key) for key in before} == before
    other.migrate()
    tables.adopt(connection)
    assert DurableRecord.objects.count() == len(entries)


def test_migrating_back_and_forth_leaves_their_rows(other: OtherSqlite | OtherPostgres, database: Adapter) -> None:
    other.create("approval", "ap1", approval())
    call_command("migrate", "approvals", "zero", verbosity=0)
    assert other.get("approval", "ap1") == approval()
    assert other.create("approval", "ap2", approval("ap2"))
    call_command("migrate", "approvals", verbosity=0)
    assert sorted(Approval.objects.values_list("id", "tenant_id")) == [("ap1", "acme"), ("ap2", "acme")]


@pytest.mark.skipif(os.environ.get("CADENCE_TEST_ENGINE") != "postgresql", reason="SQLite keeps no functions")
def test_migrating_back_leaves_no_function_of_ours(database: Adapter) -> None:
    def functions() -> set[str]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT proname FROM pg_proc WHERE proname LIKE 'nifra%'")
            return {name for (name,) in cursor.fetchall()}

    with connection.cursor() as cursor:  # as the columns of an earlier version had it
        cursor.execute(
            "CREATE FUNCTION nifra_durable_document(payload JSONB) RETURNS JSONB LANGUAGE sql IMMUTABLE AS 'SELECT payload'"
        )
    call_command("migrate", "approvals", "zero", verbosity=0)
    assert functions() == set()
    call_command("migrate", "approvals", verbosity=0)
    assert functions() == {tables.MEMBER, tables.MOMENT}


def test_their_create_statements_find_our_names(other: OtherSqlite | OtherPostgres, database: Adapter) -> None:
    def names() -> list[str]:
        listed = "SELECT name FROM sqlite_master" if connection.vendor == "sqlite" else "SELECT relname FROM pg_class"
        with connection.cursor() as cursor:
            cursor.execute(listed)
            return sorted(name for (name,) in cursor.fetchall() if name.startswith("nifra_durable"))

    before = names()
    other.migrate()
    assert names() == before
    assert f"{RECORDS}_reconcile" in before
