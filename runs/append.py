"""Append one event to a run of ours: the one way in which a chain grows here.

It costs the same at any length: the head and the stored projection are enough, under the lock of the run's row. The whole
chain is for verifying.
"""

from typing import Any

from cadence_admin.errors import ServiceError
from cadence_admin.javascript import JsonError, parse_json, stringify
from runs.chain import create_event
from runs.lifecycle import Projection, Reducer
from runs.models import Event, Run
from runs.verification import OK


class StoreError(ServiceError):
    """What the run store refuses. `code` is Cadence's own."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(code, message or code)


def parse_projection(text: str) -> Projection:
    """A stored projection. Raises `StoreError` (`run-projection-invalid`)."""
    try:
        found = parse_json(text)
    except JsonError:
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("runId"), str):
        raise StoreError("run-projection-invalid", "the stored projection can't be read")
    return found


def require_ours(run: Run) -> None:
    """Raises `StoreError` (`run-mirrored`): the chain of a mirrored run has its owner."""
    if run.state_root.path:
        raise StoreError("run-mirrored", f"{run} is mirrored from its own store, which alone writes its chain")


def append_event(run: Run, type: str, payload: dict[str, Any], now: int) -> Projection:
    """Append to `run`, whose row the caller has locked in a transaction, and return the new projection.

    `now` is when it happens, in milliseconds. Raises `LifecycleError` for what the rules don't allow, and `StoreError`
    (`event-integrity-hash-chain`) if the stored head is not the chain's.
    """
    require_ours(run)
    current = parse_projection(run.projection_json)
    head = run.events.order_by("-sequence").values_list("sequence", "event_hash").first()
    if head != (current["sequence"], current["eventHash"]):
        raise StoreError("event-integrity-hash-chain", "the chain doesn't end where the stored projection says")
    event = create_event(current["sequence"] + 1, type, payload, current["eventHash"])
    reducer = Reducer(current)
    reducer.apply(event, payload)
    projection = reducer.projection()
    store_event(run, event.sequence, type, event.payload_json, event.prior_hash, event.event_hash, now)
    verified = run.verdict == OK and run.verified_sequence == current["sequence"]
    run.state = projection["state"]
    run.sequence = projection["sequence"]
    run.event_hash = projection["eventHash"]
    run.delivery_revision = projection.get("deliveryRevision")
    run.projection_json = stringify(projection)
    run.terminal_tombstone = projection.get("terminal")
    run.changed_at = now
    if verified:  # and so is what was just linked to it
        mark_verified(run, projection, now)
    run.save()
    return projection


def store_event(
    run: Run, sequence: int, type: str, payload_json: str, prior_hash: str, event_hash: str, now: int
) -> None:
    """Store one event of a run."""
    Event.objects.using(run._state.db).create(
        run=run,
        sequence=sequence,
        type=type,
        payload_json=payload_json,
        prior_hash=prior_hash,
        event_hash=event_hash,
        first_seen_at=now,
    )


def mark_verified(run: Run, projection: Projection, now: int) -> None:
    """Remember that the chain was recomputed up to this projection."""
    run.verdict = OK
    run.verified_at = now
    run.verified_sequence = projection["sequence"]
    run.verified_projection_json = stringify(projection)
