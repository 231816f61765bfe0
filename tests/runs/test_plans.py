"""The indexes are used: the plans of the pages' queries, at a size at which the planner has to choose."""

import json
import re
from typing import Any

import pytest
from django.db import connection
from django.db.models import QuerySet

from runs.models import BROKEN, Event, Operation, Run, StateRoot
from runs.queries import RunFilter, expired_leases, list_runs
from runs.scope import EVERYTHING
from runs.verification import OK
from tests.runs.stores import ROOT

pytestmark = pytest.mark.django_db

RUNS = 20_000
NOW = 1_000_000


@pytest.fixture
def filled(db: None) -> None:
    roots = [
        StateRoot(root_hash=ROOT if number == 0 else f"{number:064d}", first_seen_at=0, checked_at=0)
        for number in range(50)
    ]
    StateRoot.objects.bulk_create(roots)
    Run.objects.bulk_create(
        (
            Run(
                state_root=roots[number % 50],
                run_id=f"run-{number}",
                root_hash=ROOT,
                stage="abel-design" if number % 50 == 0 else "abel-implement",
                lookup_key=f"change:c{number}",
                change_name=f"c{number}",
                state="paused" if number % 50 == 7 else "completed",
                sequence=1,
                event_hash="a" * 64,
                projection_json=json.dumps({"runId": f"run-{number}", "filling": "x" * 800}),  # as wide as real ones
                first_seen_at=0,
                changed_at=0,
                verdict="event-integrity-hash-chain" if number % 50 == 3 else OK,
            )
            for number in range(RUNS)
        ),
        batch_size=2_000,
    )
    pks = list(Run.objects.order_by("pk").values_list("pk", flat=True))
    Operation.objects.bulk_create(
        (
            Operation(
                run_id=pk,
                operation_id="op",
                kind="lease",
                state="running" if index % 500 == 0 else "committed",
                lease_expires_at=index if index % 500 == 0 else None,
            )
            for index, pk in enumerate(pks)
        ),
        batch_size=2_000,
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def explain(rows: QuerySet[Run] | QuerySet[Event] | QuerySet[Operation]) -> str:
    return rows.explain()


def plan_of_list(wanted: RunFilter, before: int | None = None) -> str:
    """The plan of a list as it is executed, with its values bound: a partial index must be found all the same."""
    executed: list[tuple[str, Any]] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        executed.append((sql, params))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        page = list_runs(wanted, NOW, EVERYTHING, before=before)
    assert page.items
    ((sql, params),) = executed
    with connection.cursor() as cursor:
        cursor.execute(("EXPLAIN QUERY PLAN " if connection.vendor == "sqlite" else "EXPLAIN ") + sql, params)
        return "\n".join(str(row) for row in cursor.fetchall())


def assert_bounded(found: str) -> None:
    """No table is sorted, and none that grows is read from end to end."""
    assert "TEMP B-TREE FOR ORDER BY" not in found, found
    assert not re.search(r"\bSort\b", found), found
    assert not re.search(r"Seq Scan on runs_(run|event|operation)\b", found), found


@pytest.mark.usefixtures("filled")
def test_the_pages_queries_use_indexes() -> None:
    check_lists()
    check_leases()
    check_a_window_of_a_chain()


def check_lists() -> None:
    root = StateRoot.objects.get(root_hash=ROOT)
    middle = Run.objects.order_by("pk")[RUNS // 2].pk
    for wanted, index in [
        (RunFilter(), None),
        (RunFilter(state="paused"), "run_by_state"),
        (RunFilter(stage="abel-design"), "run_by_stage"),
        (RunFilter(root_id=root.pk), "run_by_root"),
        (RunFilter(broken=True), "run_broken"),
    ]:
        for before in (None, middle):
            found = plan_of_list(wanted, before)
            assert_bounded(found)
            if index:
                assert index in found, found


def check_leases() -> None:
    assert "operation_lease" in explain(expired_leases(NOW).order_by("lease_expires_at", "id")[:50])
    run = Run.objects.order_by("pk")[0]
    assert re.search(
        "operation_(lease_by_run|lease_by_expiry|by_run|unique)", explain(expired_leases(NOW).filter(run=run))
    )
    assert "operation_lease" in plan_of_list(RunFilter(expired=True))


def check_a_window_of_a_chain() -> None:
    run = Run.objects.order_by("pk")[0]
    Event.objects.bulk_create(
        (
            Event(run=run, sequence=number, type="x", payload_json="{}", prior_hash="a" * 64,
                  event_hash=f"{number:064d}", first_seen_at=0)
            for number in range(1, 5_001)
        ),
        batch_size=1_000,
    )  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    found = explain(run.events.filter(sequence__lte=2_500).order_by("-sequence")[:51])
    assert_bounded(found)
    # SQLite gives the index behind a constraint a name of its own.
    assert re.search("event_sequence_unique|sqlite_autoindex_runs_event_1", found)


def test_the_partial_index_covers_what_the_filter_asks() -> None:
    assert next(index for index in Run._meta.indexes if index.name == "run_broken").condition == BROKEN
