"""When the database is away, full, locked or read-only; and whatever somebody sends."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import InterfaceError, InternalError, OperationalError, connection, transaction
from django.test import Client
from django.urls import reverse
from hypothesis import HealthCheck, given
from hypothesis import settings as trying
from hypothesis import strategies as st
from pytest_django import Settings

from approvals.adapter import Adapter
from approvals.decisions import decide
from approvals.models import Decision
from approvals.tables import RECORDS
from cadence_admin import audit
from cadence_admin.deadline import limited
from cadence_admin.models import AuditEntry
from runs.mirror import mirror_state_home
from runs.models import Run
from runs.store import RunStore
from tests.approvals.test_four_eyes import asked
from tests.approvals.test_pages import form_of
from tests.conftest import DATA
from tests.runs.threads import in_threads
from tests.test_roles import ADDRESSES

pytestmark = pytest.mark.django_db

FAULTS = (
    OperationalError("connection to server failed: Connection refused"),
    OperationalError("database or disk is full"),
    OperationalError("attempt to write a readonly database"),
    OperationalError("deadlock detected"),
    OperationalError("could not serialize access due to concurrent update"),
    OperationalError("canceling statement due to statement timeout"),
    InternalError("cannot execute UPDATE in a read-only transaction"),
    InterfaceError("connection already closed"),
)


@contextmanager
def broken(fault: Exception, from_statement: int = 1) -> Iterator[None]:
    """The database fails from the nth statement on."""
    count = 0

    def fail(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal count
        count += 1
        if count >= from_statement:
            raise fault
        return execute(sql, params, many, context)

    with connection.execute_wrapper(fail):
        yield


def quiet(client: Client) -> Client:
    client.raise_request_exception = False
    return client


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_page_says_so_and_recovers_by_itself(fault: Exception, sign_in: Callable[[str], Client]) -> None:
    client = quiet(sign_in("operator"))
    for path in ("/runs/", "/approvals/", "/leases/", "/effects/", "/sagas/", "/audit/", "/admin/"):
        with broken(fault):
            page = client.get(path)
        assert page.status_code == 503, path
        assert "The database doesn't answer right now" in page.content.decode()
        assert page["Retry-After"] == "5"
        assert str(fault) not in page.content.decode()
        assert client.get(path).status_code == 200, path


def test_a_fault_anywhere_in_a_page_is_said(sign_in: Callable[[str], Client]) -> None:
    client = quiet(sign_in("operator"))
    for statement in range(1, 9):
        with broken(FAULTS[0], statement):
            assert client.get("/audit/").status_code == (503 if statement < 9 else 200), statement


def test_what_a_page_asks_by_itself_leaves_it_as_it_is(sign_in: Callable[[str], Client]) -> None:
    client = quiet(sign_in("operator"))
    with broken(FAULTS[0]):
        page = client.get("/runs/", headers={"HX-Request": "true", "X-Background": "1"})
        asked_for = client.get("/runs/", headers={"HX-Request": "true"})
    assert (page.status_code, page["HX-Reswap"]) == (503, "none")
    assert (asked_for.status_code, asked_for["HX-Reswap"], asked_for["HX-Retarget"]) == (503, "innerHTML", "#main")
    assert "<html" not in asked_for.content.decode()


def test_after_a_change_it_leads_to_where_that_was_asked_for(sign_in: Callable[[str], Client]) -> None:
    client = quiet(sign_in("operator"))
    sent = {"Referer": "http://testserver/leases/?show=live"}
    with broken(FAULTS[0]):
        page = client.post("/leases/reclaim/", {"operation": ["1"]}, headers=sent)
        elsewhere = client.post("/leases/reclaim/", {"operation": ["1"]}, headers={"Referer": "https://evil.example/"})
    assert page.status_code == elsewhere.status_code == 503
    assert '<a href="/leases/?show=live">' in page.content.decode()
    assert "done whole or not at all" in page.content.decode()
    assert "evil" not in elsewhere.content.decode()


def test_an_error_of_ours_is_a_500(sign_in: Callable[[str], Client], monkeypatch: pytest.MonkeyPatch) -> None:
    client = quiet(sign_in("operator"))
    monkeypatch.setattr("cadence_admin.views.database_now", lambda _: 1 // 0)
    assert client.get("/leases/").status_code == 500


@pytest.mark.django_db(transaction=True)
def test_a_decision_is_whole_or_not_at_all(
    empty_tables: None, database: Adapter, sign_in: Callable[[str], Client]
) -> None:
    client = quiet(sign_in("approver"))
    record = asked(database)
    form = form_of(record)
    address = reverse("decision", args=[record.id])
    statement = 0
    while True:
        statement += 1
        before = AuditEntry.objects.count()
        with broken(FAULTS[1], statement):
            status = client.post(address, form).status_code
        found = database.approvals.get(record.id)
        assert found is not None
        if found.state == "approved":  # the fault came after it was done: in showing what was done, or never
            break
        assert status == 503
        assert Decision.objects.count() == 0
        assert AuditEntry.objects.count() == before
    assert statement > 10
    assert client.post(address, form).status_code in (200, 302), "the same again is the same decision"
    assert Decision.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_read_only_database_is_read(empty_tables: None, database: Adapter, sign_in: Callable[[str], Client]) -> None:
    client = quiet(sign_in("approver"))
    record = asked(database)
    postgresql = connection.vendor == "postgresql"
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on" if postgresql else "PRAGMA query_only = on")
    try:
        assert client.get("/approvals/").status_code == 200
        assert client.post(reverse("decision", args=[record.id]), form_of(record)).status_code == 503
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SET default_transaction_read_only = off" if postgresql else "PRAGMA query_only = off")
    assert client.post(reverse("decision", args=[record.id]), form_of(record)).status_code in (200, 302)


def slow(*_: Any, **__: Any) -> int:
    """Asks the database for what takes it a minute."""
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n LIMIT 1"
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(60)" if connection.vendor == "postgresql" else endless)
    return 0


@pytest.mark.django_db(transaction=True)
def test_a_slow_database_is_not_waited_for(
    sign_in: Callable[[str], Client], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = quiet(sign_in("operator"))
    settings.REQUEST_SECONDS = 0.2
    with monkeypatch.context() as patch:
        patch.setattr("cadence_admin.views.database_now", slow)
        assert client.get("/leases/").status_code == 503
    settings.REQUEST_SECONDS = 20
    assert client.get("/leases/").status_code == 200


@pytest.mark.django_db(transaction=True)
def test_a_decision_that_takes_too_long_is_none(
    empty_tables: None,
    database: Adapter,
    sign_in: Callable[[str], Client],
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = quiet(sign_in("approver"))
    record = asked(database)
    settings.REQUEST_SECONDS = 0.5
    with monkeypatch.context() as patch:
        patch.setattr("approvals.decisions.enter", slow)
        assert client.post(reverse("decision", args=[record.id]), form_of(record)).status_code == 503
    settings.REQUEST_SECONDS = 20
    found = database.approvals.get(record.id)
    assert found is not None
    assert found.state == "pending"
    assert client.post(reverse("decision", args=[record.id]), form_of(record)).status_code in (200, 302)


@pytest.mark.django_db(transaction=True)
def test_what_ends_in_time_is_left_alone() -> None:
    with limited(60):
        (watching,) = [thread for thread in threading.enumerate() if thread.name == "deadline"]
    watching.join(20)
    assert not watching.is_alive()


def until_somebody_waits_for_us() -> None:
    # Not in pg_stat_activity, which stays in a transaction as it was first seen.
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid))"
    with connection.cursor() as cursor:
        found = 0
        while not found:
            cursor.execute(waiting)
            (found,) = cursor.fetchone()


@pytest.fixture
def chosen(database: Adapter, accounts: dict[str, User]) -> dict[str, tuple[Callable[[], Any], str, str]]:
    """Two services of which each locks a row, then the end of the audit log; the table, and a column that changes nothing."""
    record = asked(database)
    store = RunStore("a" * 64)
    run_id = str(store.start_run("abel-implement", "start", change="x")["runId"])
    approver = User.objects.get(username="approver")
    return {
        "decide": (lambda: decide(approver, record.id, "approved", shown=None, via="page"), RECORDS, "payload"),
        "move": (lambda: store.transition(run_id, "paused", "op-1", actor="dana"), "runs_run", "changed_at"),
    }


@pytest.mark.skipif(os.environ.get("CADENCE_TEST_ENGINE") != "postgresql", reason="SQLite has one writer at a time")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("service", ["decide", "move"])
@pytest.mark.parametrize("fault", ["deadlock", "serialization failure"])
def test_what_the_database_gave_up_is_done_again(
    chosen: dict[str, tuple[Callable[[], Any], str, str]], service: str, fault: str
) -> None:
    work, table, column = chosen[service]
    before = AuditEntry.objects.count()
    holds = threading.Event()
    tries = 0

    def other() -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            if fault == "deadlock":
                # The one that waits first looks first, and is the one to give up.
                cursor.execute("SET LOCAL deadlock_timeout = '30s'")
                cursor.execute("SELECT pg_advisory_xact_lock(%s)", [audit._LOCK])
            else:
                cursor.execute(f"UPDATE {table} SET {column} = {column}")
            holds.set()
            until_somebody_waits_for_us()
            if fault == "deadlock":
                cursor.execute(f"UPDATE {table} SET {column} = {column}")

    def ours() -> Any:
        nonlocal tries

        def count(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            nonlocal tries
            tries += f"FROM {table}" in sql.replace('"', "") and "FOR NO KEY UPDATE" in sql
            return execute(sql, params, many, context)

        holds.wait(20)
        with connection.cursor() as cursor:
            level = "READ COMMITTED" if fault == "deadlock" else "REPEATABLE READ"
            cursor.execute(f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}")
        try:
            with connection.execute_wrapper(count):
                return work()
        finally:
            with connection.cursor() as cursor:
                cursor.execute("RESET default_transaction_isolation")

    found = in_threads(ours, other)
    assert not isinstance(found[0], BaseException), found[0]
    assert found[1] is None
    assert tries == 2
    assert AuditEntry.objects.count() == before + 1


HOSTILE = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        [
            "",
            "0",
            "-1",
            "9" * 30,
            "1e9",
            "٣",
            "\x00",
            "a\x00b",
            "' OR 1=1 --",
            "%s%n{0}",
            "../../etc/passwd",
            "<script>",
            "x" * 20_000,
            "\u202e\ufeff",
            "approved",
            "findings",
            "~00",
        ]
    ),
)
NAMES = [
    "q",
    "state",
    "tenant",
    "capability",
    "principal",
    "show",
    "after",
    "before",
    "upto",
    "root",
    "stage",
    "change",
    "broken",
    "expired",
    "log",
    "actor",
    "action",
    "target",
    "whole",
    "operation",
    "confirmed",
    "pause",
    "reason",
    "name",
    "owner",
    "expires_at",
    "answer",
    "version",
    "digest",
    "seen",
    "typed",
    "comment",
    "chosen",
    "effect",
    "result",
    "error_code",
    "to",
    "code",
    "sequence",
    "step",
    "next",
    "back",
    "username",
    "password",
    "confirm_password",
    "asked_for_page",
]


@pytest.fixture
def peopled(empty_tables: None, database: Adapter, accounts: dict[str, User]) -> Client:
    """An operator's client, among runs and records of every kind."""
    from django.core.management import call_command

    mirror_state_home(DATA / "cadence" / "state-home")
    call_command("import_records", str(DATA / "nifra" / "records.sqlite3"))
    client = Client()
    client.force_login(accounts["operator"])
    return client


@pytest.mark.django_db(transaction=True)
def test_nothing_that_is_sent_breaks_a_page(peopled: Client, accounts: dict[str, User]) -> None:
    run_id = Run.objects.values_list("run_id", flat=True)[0]
    known = {"run_id": [run_id, "x"], "kind": ["operations", "events", "x"]}
    records = ["a-1", "~00", "~C3~28", "x" * 300, "..."]

    def addresses(route: str) -> list[str]:
        found = [route]
        for name, values in (("<str:run_id>", known["run_id"]), ("<slug:kind>", known["kind"])):
            found = [one.replace(name, value) for one in found for value in values]
        for name in ("<id:approval_id>", "<id:effect_id>", "<id:saga_id>"):
            found = [one.replace(name, value) for one in found for value in (records if name in one else [""])]
        return found

    every = sorted({f"/{address}" for route in ADDRESSES if route != "sign-out/" for address in addresses(route)})
    assert len(every) > 40
    parameters = st.dictionaries(st.sampled_from(NAMES), HOSTILE, max_size=6)

    @trying(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(every), parameters, parameters, st.booleans(), st.booleans())
    def check(path: str, query: dict[str, str], form: dict[str, str], posts: bool, htmx: bool) -> None:
        headers = {"HX-Request": "true"} if htmx else {}
        if posts:
            response = peopled.post(path, form, query_params=query, headers=headers)
        else:
            response = peopled.get(path, query_params=query, headers=headers)
        assert response.status_code < 500 or response.status_code == 503, (path, response.status_code)

    check()
    for raw in ("%ED%A0%80", "%FF%FE", "%00", "&&&==="):
        for path in every:
            assert peopled.get(path, QUERY_STRING=f"q={raw}&after={raw}&before={raw}&root={raw}").status_code < 500, (
                path
            )
