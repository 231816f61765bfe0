"""At 100,000 records every page and every inbox query reads no more rows than it returns, by an index."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection

from approvals import queries
from approvals.adapter import Adapter
from approvals.backends.database import DatabaseBackend
from approvals.queries import ApprovalFilter
from approvals.tables import RECORDS
from cadence_admin.access import EVERYTHING
from tests.approvals.filling import fill

pytestmark = pytest.mark.django_db(transaction=True)

COUNT = 100_000
LIMIT = 100


@pytest.fixture
def filled(database: Adapter) -> Adapter:
    # One record in a thousand is pending or executing, the others are done with.
    for kind, open_state, done in (("approval", "pending", "consumed"), ("effect", "executing", "committed")):
        fill(kind, COUNT // 2, f"CASE WHEN i %% 1000 = 0 THEN '{open_state}' ELSE '{done}' END")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    return database


def assert_reads_what_it_returns(sql: str, params: Any, most: int) -> None:
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute(f"EXPLAIN QUERY PLAN {sql}", params)
            steps = [row[3] for row in cursor.fetchall()]
            reads = [step for step in steps if RECORDS in step]
            assert reads
            assert all(step.startswith("SEARCH") for step in reads), steps
            return
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", params)
        plan = cursor.fetchone()[0]
    nodes: list[dict[str, Any]] = []

    def walk(node: dict[str, Any]) -> None:
        nodes.append(node)
        for child in node.get("Plans", ()):
            walk(child)

    walk((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"])
    reads = [node for node in nodes if node.get("Relation Name") == RECORDS]
    assert reads
    for node in reads:
        assert node["Actual Rows"] <= most, nodes
        # Where what is sought is dense, a sample of the statistics may favour reading on until there is enough: of 100,000 a few.
        assert node.get("Rows Removed by Filter", 0) <= most * 5, nodes


@contextmanager
def statements() -> Iterator[list[tuple[str, Any]]]:
    """What is executed meanwhile on nifra's records, with its values: a plan depends on both."""
    executed: list[tuple[str, Any]] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if RECORDS in sql:
            executed.append((sql, params))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        yield executed


def check_scans(filled: Adapter) -> None:
    backend = filled.backend
    assert isinstance(backend, DatabaseBackend)
    for kind, states in (
        ("effect", ("admission", "executing", "unknown")),
        ("effect", ("committed",)),
        ("approval", ("pending", "approved")),
    ):
        for cursor in (None, f"{kind}-025000"):
            for before in (None, COUNT):
                page = backend.scan(kind, states=states, limit=LIMIT, updated_before=before, cursor=cursor)  # type: ignore[arg-type]
                statement, values = backend.scan_statement(kind, states, LIMIT, before, cursor)  # type: ignore[arg-type]
                assert_reads_what_it_returns(statement, values, LIMIT + 1)
                assert page.records or kind == "approval" or page.unreadable
    assert backend.due_at_once(LIMIT, 5_000)


MIDDLE = COUNT // 4
INBOX = [
    (ApprovalFilter(), None),
    (ApprovalFilter(), f"{MIDDLE}.{MIDDLE}"),
    (ApprovalFilter(tenant="tenant-0"), None),
    (ApprovalFilter(capability="payments.refund"), None),
    (ApprovalFilter(principal="bot"), f"{MIDDLE}.{MIDDLE}"),
    (ApprovalFilter(text="order:2"), None),
    (ApprovalFilter(text="order:2"), "25000"),
    (ApprovalFilter(text="approval-025000"), None),
    (ApprovalFilter(view="consumed"), None),
    (ApprovalFilter(view="consumed", tenant="tenant-1"), f"{MIDDLE}.{MIDDLE}"),
    (ApprovalFilter(view="consumed", capability="payments.refund"), None),
    (ApprovalFilter(view="consumed", principal="bot"), None),
    (ApprovalFilter(view="consumed", text="order:2"), None),
    (ApprovalFilter(view="expired"), None),
    (ApprovalFilter(view="mine", mine="dana"), None),
]


def check_the_inbox() -> None:
    for wanted, after in INBOX:
        with statements() as executed:
            queries.list_approvals(wanted, 0, EVERYTHING, after=after)
        assert executed
        for sql, params in executed:
            assert_reads_what_it_returns(sql, params, queries.PAGE_SIZE + 1)
            if connection.vendor == "sqlite" and " OR " not in sql:  # what an OR of ids finds is few, and may be sorted
                with connection.cursor() as cursor:
                    cursor.execute(f"EXPLAIN QUERY PLAN {sql}", params)
                    assert not any("TEMP B-TREE" in row[3] for row in cursor.fetchall()), sql


def check_the_other_pages(filled: Adapter) -> None:
    record = filled.approvals.get("approval-025000")
    assert record is not None
    for work in (
        lambda: queries.counts(queries.APPROVAL_VIEWS, 0, "dana", EVERYTHING),
        lambda: queries.waiting(ApprovalFilter(), EVERYTHING),
        lambda: queries.about(record, 25_000, EVERYTHING),
        lambda: queries.list_effects("findings", COUNT, EVERYTHING),
        lambda: queries.list_effects("committed", COUNT, EVERYTHING),
        lambda: queries.list_sagas("findings", COUNT, EVERYTHING),
        lambda: queries.find("approval", record.id, EVERYTHING),
        lambda: queries.approvals_of_effects([record.effect_id], EVERYTHING),
    ):
        with statements() as executed:
            work()
        assert executed
        for sql, params in executed:
            assert_reads_what_it_returns(sql, params, queries.MOST_COUNTED + 1)


def test_no_query_sorts_or_reads_the_table(filled: Adapter) -> None:
    """One test, since filling the table takes longer than all of it."""
    check_scans(filled)
    check_the_inbox()
    check_the_other_pages(filled)


@pytest.mark.skipif(
    os.environ.get("CADENCE_TEST_ENGINE") != "postgresql", reason="SQLite plans by rules, not by statistics"
)
def test_our_indexes_tempt_no_statement_that_names_one_record(database: Adapter) -> None:
    """The statistics know effects only, as at a nifra application's first approval: what is looked up by its key, by us or by
    the other program, must not be read by one of our indexes, which would read all approvals."""
    fill("effect", 5_000, "CASE WHEN i %% 2 = 0 THEN 'executing' ELSE 'committed' END")
    with connection.cursor() as cursor:
        cursor.execute(f"ANALYZE {RECORDS}")
        for statement in (
            f"SELECT payload FROM {RECORDS} WHERE kind = 'approval' AND id = 'x'",
            f"UPDATE {RECORDS} SET state = 'x' WHERE kind = 'approval' AND id = 'x' AND version = 1",
        ):
            cursor.execute(f"EXPLAIN {statement}")
            plan = "\n".join(row[0] for row in cursor.fetchall())
            assert re.search(f"{RECORDS}_(pkey|reconcile) ", plan), plan
