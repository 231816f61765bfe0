"""Leases of operations: acquire, renew, check, commit, interrupt, inspect; and reclaim what expired.

A lease is live until its last millisecond is over. On PostgreSQL the database's clock decides, read when the row is locked;
a caller may pass a time. Locks are taken in one order: a run, then its operations.
"""

import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import psycopg.errors
from django.db import OperationalError, connections, transaction
from django.db.models import Q, QuerySet

from cadence_admin import audit
from cadence_admin.clock import database_now
from cadence_admin.javascript import MAX_SAFE_INTEGER, JsonError, is_safe_integer, parse_json, stringify
from cadence_admin.retrying import retried
from runs.append import StoreError, append_event
from runs.lifecycle import OPERATION_STATES, TERMINAL_STATES, LifecycleError
from runs.models import PRESENT, LeaseEvent, Operation, Run

BATCH: Final = 500
LEASE_KIND: Final = "lease"

# JavaScript's /[a-z]/iu also takes these two letters, which fold to s and k.
_LETTER: Final = "A-Za-z0-9\u017f\u212a"
_IDENTIFIER = re.compile(rf"[{_LETTER}](?:[{_LETTER}._:-]{{0,126}}[{_LETTER}])?")


@dataclass(frozen=True, slots=True)
class OperationLease:
    """A lease as its holder has it. The token is the holder's secret."""

    run_id: str
    operation_id: str
    token: str = field(repr=False)
    expires_at: int


@dataclass(frozen=True, slots=True)
class OperationStatus:
    """What an operation is at; `outcome` of a committed one, `expires_at` of a running one."""

    state: str
    outcome: dict[str, Any] | None = None
    expires_at: int | None = None


def require_identifier(value: object, label: str) -> None:
    """Raises `StoreError` (`invalid-<label>`)."""
    if not isinstance(value, str) or not _IDENTIFIER.fullmatch(value):
        raise StoreError(f"invalid-{label}")


def require_ttl(ttl_ms: object, now: int = 0) -> None:
    """Raises `StoreError` (`invalid-lease-ttl`): no whole milliseconds, or an end that can't be told."""
    if not is_safe_integer(ttl_ms) or not 1 <= ttl_ms <= MAX_SAFE_INTEGER - now:  # type: ignore[operator]
        raise StoreError("invalid-lease-ttl")


def is_live(operation: Operation, now: int) -> bool:
    """Whether somebody holds the operation's lease at `now`."""
    return (
        operation.state == "running"
        and operation.lease_token is not None
        and operation.lease_expires_at is not None
        and operation.lease_expires_at >= now
    )


def acquire(
    run: Run,
    operation_id: str,
    ttl_ms: int,
    *,
    clock: Callable[[], int],
    preempt: bool = False,
    exclusive: bool = False,
    new_token: Callable[[], str] = lambda: str(uuid.uuid4()),
) -> OperationLease:
    """Take or share the lease of an operation; the caller has locked the run.

    A live lease is shared (its own token is given), taken from its holder with `preempt`, and refused with `exclusive`
    (`operation-already-running`). Acquiring a committed operation starts it anew and drops its outcome.
    """
    existing = locked(run, operation_id)
    now = clock()
    require_ttl(ttl_ms, now)
    if existing is not None and is_live(existing, now) and not preempt:
        if exclusive:
            raise StoreError("operation-already-running", f"operation {operation_id} is running under a live lease")
        assert existing.lease_token is not None
        assert existing.lease_expires_at is not None
        return OperationLease(run.run_id, operation_id, existing.lease_token, existing.lease_expires_at)
    operation = existing or Operation(run=run, operation_id=operation_id, kind=LEASE_KIND)
    operation.state = "running"
    operation.outcome_json = None
    operation.lease_token = new_token()
    operation.lease_held = True
    operation.lease_expires_at = now + ttl_ms
    operation.save(using=run._state.db)
    return OperationLease(run.run_id, operation_id, operation.lease_token, operation.lease_expires_at)


def locked(run: Run, operation_id: str) -> Operation | None:
    """The operation, with its row locked."""
    rows = Operation.objects.using(run._state.db).select_for_update(no_key=True, of=("self",))
    return rows.filter(run=run, operation_id=operation_id).first()


def held(run: Run, lease: OperationLease, clock: Callable[[], int]) -> Operation:
    """The operation of a live lease, with its row locked. The clock is read once it is: a lease may end while somebody
    waits for the lock. Raises `StoreError` (`lease-fenced`)."""
    operation = locked(run, lease.operation_id)
    if operation is None or not is_live(operation, clock()) or operation.lease_token != lease.token:
        raise StoreError("lease-fenced", f"the lease of operation {lease.operation_id} is not held any more")
    return operation


def settle(operation: Operation, state: Literal["committed", "interrupted"], outcome: str | None) -> None:
    """End a locked operation: its lease is gone, its outcome stays."""
    operation.state = state
    operation.outcome_json = outcome
    operation.lease_token = None
    operation.lease_held = False
    operation.lease_expires_at = None
    operation.save(using=operation._state.db)


def status_of(operation: Operation) -> OperationStatus:
    """Raises `StoreError` (`operation-state-invalid`, `operation-outcome-invalid`)."""
    if operation.state not in OPERATION_STATES:
        raise StoreError("operation-state-invalid")
    outcome = None
    if operation.outcome_json is not None:
        try:
            outcome = parse_json(operation.outcome_json)
        except JsonError:
            outcome = None
        if not isinstance(outcome, dict):
            raise StoreError("operation-outcome-invalid")
    return OperationStatus(operation.state, outcome, operation.lease_expires_at)


def outcome_text(outcome: object) -> str:
    """Raises `StoreError` (`operation-outcome-invalid`)."""
    if not isinstance(outcome, dict):
        raise StoreError("operation-outcome-invalid", "an outcome is an object")
    return stringify(outcome)


# Reclaiming

Result = Literal["reclaimed", "renewed", "busy", "gone"]


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """What became of one operation: reclaimed; renewed meanwhile (or never expired); busy, locked by somebody right now;
    gone, not running any more. `paused` tells whether its run was paused with it."""

    run_id: str
    operation_id: str
    result: Result
    overdue_ms: int = 0
    paused: bool = False


def ran_out(before: int) -> Q:
    """Leases that ended before a moment, and those without an end: their holder can neither renew nor commit them, so a
    running operation with such a lease would run for ever."""
    return Q(lease_expires_at__lt=before) | Q(lease_expires_at__isnull=True)


def expired(
    using: str = "default", *, now: int, root_hash: str = "", older_than_ms: int = 0, mirrored: bool = False
) -> QuerySet[Operation]:
    """Operations whose lease ran out more than `older_than_ms` ago, the longest first: of runs of ours, or of mirrored
    runs as the mirror last saw them."""
    rows = Operation.objects.using(using).filter(PRESENT, ran_out(now - older_than_ms), state="running")
    if mirrored:
        rows = rows.filter(run__missing_since=None).exclude(run__state_root__path="")
    else:
        rows = rows.filter(run__state_root__path="")
    if root_hash:
        rows = rows.filter(run__state_root__root_hash=root_hash)
    return rows.order_by("lease_expires_at", "id")


def reclaim(
    *,
    using: str = "default",
    operations: Iterable[int] | None = None,
    root_hash: str = "",
    older_than_ms: int = 0,
    limit: int | None = None,
    pause: bool = False,
    actor: str = "",
    reason: str = "",
    now: int | None = None,
    dry_run: bool = False,
) -> Iterator[Reclaimed]:
    """Interrupt operations whose lease ran out: those named by primary key, or all that match. With `pause` their runs are
    paused too, by an `operation-interrupted` event.

    A live lease is never taken: expiry is decided under the row's lock. Several reclaimers share the work, in bounded
    batches, and never wait for each other or for a worker; what somebody has locked right now is reported as busy. Who did
    it and why is kept with each operation.
    """
    chosen = None if operations is None else list(operations)
    if dry_run:
        moment = database_now(using) if now is None else now
        for row in _selected(using, moment, chosen, root_hash, older_than_ms)[:limit].iterator():
            yield as_reclaimed(row, moment, "reclaimed")
        return
    settled: set[int] = set()
    busy: set[int] = set()
    left = limit
    while left is None or left > 0:
        size = BATCH if left is None else min(BATCH, left)
        moment = database_now(using) if now is None else now
        rows = _selected(using, moment, chosen, root_hash, older_than_ms).exclude(pk__in=busy)
        batch = _reclaim_batch(rows, size, moment, pause, actor, reason)
        yield from (result for _, result in batch)
        busy.update(pk for pk, result in batch if result.result == "busy")
        if chosen is not None:
            settled.update(pk for pk, _ in batch)
        left = None if left is None else left - len(batch)
        if len(batch) < size:
            break
    moment = database_now(using) if now is None else now
    if chosen is not None:
        yield from _rest([pk for pk in chosen if pk not in settled], using, moment)
    elif limit is None:
        for row in _selected(using, moment, None, root_hash, older_than_ms).exclude(pk__in=busy)[:BATCH]:
            yield as_reclaimed(row, moment, "busy")


@retried
def _reclaim_batch(
    rows: QuerySet[Operation], size: int, moment: int, pause: bool, actor: str, reason: str
) -> list[tuple[int, Reclaimed]]:
    """Reclaim the first of `rows` that nobody has locked, in one transaction: for each its key and what became of it."""
    using = rows.db
    with transaction.atomic(using=using):
        rows = rows.select_for_update(no_key=True, skip_locked=connections[using].vendor == "postgresql", of=("self",))
        found = list(rows[:size])
        if pause:
            batch = [(row.pk, _reclaim_and_pause(row, moment, actor, reason)) for row in found]
        else:
            _interrupt(found, using)
            batch = [(row.pk, as_reclaimed(row, moment, "reclaimed")) for row in found]
            note_reclaimed([(row, done[1]) for row, done in zip(found, batch, strict=True)], moment, actor, reason)
        audit_reclaimed([result for _, result in batch], actor, reason, using)
    return batch


def _selected(
    using: str, moment: int, chosen: list[int] | None, root_hash: str, older_than_ms: int
) -> QuerySet[Operation]:
    rows = expired(using, now=moment, root_hash=root_hash, older_than_ms=older_than_ms)
    if chosen is not None:
        rows = rows.filter(pk__in=chosen)
    return rows.select_related("run").only("operation_id", "lease_expires_at", "run__run_id")


def as_reclaimed(row: Operation, moment: int, result: Result) -> Reclaimed:
    """What became of a row whose lease had run out at `moment`."""
    return Reclaimed(row.run.run_id, row.operation_id, result, overdue_ms(row, moment))


def overdue_ms(row: Operation, moment: int) -> int:
    """How long ago the lease ran out; 0 for one without an end."""
    return 0 if row.lease_expires_at is None else moment - row.lease_expires_at


def _interrupt(rows: list[Operation], using: str) -> None:
    """As `settle`, for rows that are all locked and have all run out."""
    Operation.objects.using(using).filter(pk__in=[row.pk for row in rows]).update(
        state="interrupted", outcome_json=None, lease_token=None, lease_held=False, lease_expires_at=None
    )


def _reclaim_and_pause(row: Operation, moment: int, actor: str, reason: str) -> Reclaimed:
    using = row._state.db or "default"
    try:
        # Its own savepoint: the run may be locked by somebody who then asks for this operation. Nobody waits.
        with transaction.atomic(using=using):
            paused = _pause(row, moment)
            result = Reclaimed(row.run.run_id, row.operation_id, "reclaimed", overdue_ms(row, moment), paused)
            _interrupt([row], using)
            note_reclaimed([(row, result)], moment, actor, reason)
    except OperationalError as error:
        if not isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
            raise
        return as_reclaimed(row, moment, "busy")
    return result


def note_reclaimed(done: Sequence[tuple[Operation, Reclaimed]], moment: int, actor: str, reason: str) -> None:
    """Keep who reclaimed operations, and why."""
    LeaseEvent.objects.using(done[0][0]._state.db if done else None).bulk_create(
        LeaseEvent(
            operation=row,
            kind=LeaseEvent.RECLAIMED,
            actor=actor,
            reason=reason,
            overdue_ms=result.overdue_ms,
            paused=result.paused,
            happened_at=moment,
        )
        for row, result in done
    )


def audit_reclaimed(results: Sequence[Reclaimed], actor: str, reason: str, using: str = "default") -> None:
    """The audit log's entries of those that were reclaimed: the last thing of their transaction."""
    audit.record(
        *(
            audit.Entry(
                "operation.reclaimed",
                "operation",
                f"{result.operation_id} of {result.run_id}",
                after={"state": "interrupted", "overdueMs": result.overdue_ms, "runPaused": result.paused},
                reason=reason,
                actor=actor,
            )
            for result in results
            if result.result == "reclaimed"
        ),
        using=using,
    )


def note_refused(run: Run, operation_id: str, tried: str, moment: int) -> None:
    """Keep that a holder came too late, and what it tried."""
    operation = Operation.objects.using(run._state.db).filter(run=run, operation_id=operation_id).first()
    if operation is not None:
        operation.lease_events.create(kind=LeaseEvent.REFUSED, reason=tried, happened_at=moment)


def _pause(row: Operation, moment: int) -> bool:
    runs = Run.objects.using(row._state.db).select_related("state_root")
    nowait = connections[row._state.db or "default"].vendor == "postgresql"
    run = runs.select_for_update(no_key=True, nowait=nowait, of=("self",)).get(pk=row.run_id)
    if run.state in TERMINAL_STATES:
        return False
    try:
        append_event(run, "operation-interrupted", {"operationId": row.operation_id}, moment)
    except LifecycleError:
        return False
    return True


def _rest(operations: list[int], using: str, moment: int) -> Iterator[Reclaimed]:
    """What was asked for and not reclaimed, and why."""
    rows = Operation.objects.using(using).select_related("run")
    for row in rows.filter(pk__in=operations).order_by("pk"):
        result: Result = "gone"
        if row.state == "running":
            result = "renewed" if row.lease_expires_at is not None and row.lease_expires_at >= moment else "busy"
        yield Reclaimed(row.run.run_id, row.operation_id, result)
