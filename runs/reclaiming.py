"""Reclaim expired leases wherever their operations live: our own runs here, mirrored ones in the store they come from."""

import os
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from django.db import transaction

from cadence_admin import audit
from cadence_admin.clock import now_ms
from runs import leases
from runs.leases import Reclaimed, Result
from runs.mirror import mirror_store
from runs.models import Operation
from runs.source import BUSY_TIMEOUT_S, Source, SourceError, fingerprint

# Of one source so many at once: its own program waits while they are written.
MOST_AT_ONCE: Final = 500

_INTERRUPT: Final = (
    "UPDATE operations SET state = 'interrupted', lease_token = NULL, lease_expires_at = NULL "
    "WHERE run_id = ? AND operation_id = ? AND state = 'running' AND (lease_expires_at < ? OR lease_expires_at IS NULL)"
)


def why_not_here(path: str) -> str:
    """Why a source can't be written to from here, "" if it can."""
    try:
        fingerprint(Path(path))
    except SourceError as error:
        return str(error)
    if not os.access(path, os.W_OK) or not os.access(Path(path).parent, os.W_OK):
        return f"{path} can't be written to by this console."
    return ""


def reclaim(
    *,
    operations: Iterable[int] | None = None,
    root_hash: str = "",
    older_than_ms: int = 0,
    limit: int | None = None,
    pause: bool = False,
    actor: str = "",
    reason: str = "",
    dry_run: bool = False,
) -> Iterator[Reclaimed]:
    """As `runs.leases.reclaim`, for runs of ours and mirrored ones. Of a mirrored run only the operation is interrupted,
    never the run paused: that chain has its owner. A source that can't be written to raises `SourceError`."""
    chosen = None if operations is None else list(operations)
    left = limit
    for result in leases.reclaim(
        operations=chosen if chosen is None else _ours(chosen),
        root_hash=root_hash,
        older_than_ms=older_than_ms,
        limit=limit,
        pause=pause,
        actor=actor,
        reason=reason,
        dry_run=dry_run,
    ):
        left = left if left is None else left - 1
        yield result
    moment = now_ms()
    rows = leases.expired(now=moment, root_hash=root_hash, older_than_ms=older_than_ms, mirrored=True)
    if chosen is not None:
        rows = Operation.objects.filter(pk__in=chosen).exclude(run__state_root__path="").order_by("pk")
    picked = list(rows.select_related("run__state_root")[: MOST_AT_ONCE if left is None else min(left, MOST_AT_ONCE)])
    if dry_run:
        for row in picked:
            yield leases.as_reclaimed(row, moment, "reclaimed")
        return
    by_source: dict[str, list[Operation]] = defaultdict(list)
    for row in picked:
        by_source[row.run.state_root.path].append(row)
    for path, its_own in by_source.items():
        yield from reclaim_in_source(Path(path), its_own, moment - older_than_ms, actor=actor, reason=reason)


def _ours(chosen: list[int]) -> list[int]:
    return list(Operation.objects.filter(pk__in=chosen, run__state_root__path="").values_list("pk", flat=True))


def reclaim_in_source(
    path: Path, operations: list[Operation], before: int, *, actor: str = "", reason: str = ""
) -> list[Reclaimed]:
    """Interrupt operations in a `control.sqlite3` whose leases ran out before `before` (ms), as its own program does: one
    immediate transaction, expiry decided in the statement, nothing else touched. The mirror follows at once.

    Raises `SourceError` (`run-store-unwritable`, or why it can't be read).
    """
    with Source.open(path):
        pass  # refuses links, other schemas, and what is no store
    refusal = why_not_here(str(path))
    if refusal:
        raise SourceError("run-store-unwritable", refusal)
    # Another program's file can't share our transaction: what is about to be done is said before, what was done after.
    with transaction.atomic():
        asked = [f"{row.operation_id} of {row.run.run_id}" for row in operations]
        audit.record(audit.Entry("store.reclaim-asked", "store", str(path), after=asked, reason=reason, actor=actor))
    try:
        uri = f"{path.absolute().as_uri()}?mode=rw"
        with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            try:
                results = [_interrupt(database, row, before) for row in operations]
                database.execute("COMMIT")
            except BaseException:
                if database.in_transaction:
                    database.execute("ROLLBACK")
                raise
    except sqlite3.OperationalError as error:
        if "locked" not in str(error):
            raise SourceError("run-store-unwritable", f"{path} can't be written to: {error}.") from error
        return [Reclaimed(row.run.run_id, row.operation_id, "busy") for row in operations]
    except sqlite3.Error as error:
        raise SourceError("run-store-unwritable", f"{path} can't be written to: {error}.") from error
    mirror_store(path, recheck=False)
    done = [pair for pair in zip(operations, results, strict=True) if pair[1].result == "reclaimed"]
    with transaction.atomic():
        leases.note_reclaimed(done, now_ms(), actor, reason)
        leases.audit_reclaimed(results, actor, reason)
    return results


def _interrupt(database: sqlite3.Connection, row: Operation, before: int) -> Reclaimed:
    run_id, operation_id = row.run.run_id, row.operation_id
    query = "SELECT state, lease_expires_at FROM operations WHERE run_id = ? AND operation_id = ?"
    found = database.execute(query, (run_id, operation_id)).fetchone()
    if database.execute(_INTERRUPT, (run_id, operation_id, before)).rowcount == 1:
        return Reclaimed(run_id, operation_id, "reclaimed", 0 if found[1] is None else now_ms() - found[1])
    result: Result = "renewed" if found is not None and found[0] == "running" else "gone"
    return Reclaimed(run_id, operation_id, result)
