"""The run store: appends at several chain lengths, verifying, and reclaiming next to one bare UPDATE of the same rows."""

import time
from typing import Final

ROOT: Final = "c" * 64
LENGTHS: Final = (10, 1_000, 10_000, 100_000)
APPENDS: Final = 200
LEASES: Final = 10_000


def grow(run_id: str, length: int) -> None:
    """Bring a new run's chain to `length` events at once, with the projection that belongs to it."""
    from runs.append import mark_verified, parse_projection
    from runs.chain import create_event
    from runs.lifecycle import Reducer
    from runs.models import Event, Run

    run = Run.objects.get(run_id=run_id)
    reducer = Reducer(parse_projection(run.projection_json))
    events = []
    prior, state = run.event_hash, run.state
    for sequence in range(2, length + 1):
        payload = {"from": state, "to": "paused"}
        event = create_event(sequence, "state-transitioned", payload, prior)
        reducer.apply(event, payload)
        prior, state = event.event_hash, "paused"
        events.append(
            Event(
                run=run,
                sequence=sequence,
                type=event.type,
                payload_json=event.payload_json,
                prior_hash=event.prior_hash,
                event_hash=event.event_hash,
                first_seen_at=0,
            )
        )
    Event.objects.bulk_create(events, batch_size=5_000)
    mark_verified(run, reducer.projection(), 0)
    run.state, run.sequence, run.event_hash = state, length, prior
    run.projection_json = run.verified_projection_json
    run.save()


def appends() -> None:
    """What one transition costs, whatever came before it; the lengths take turns, so that all meet the same machine."""
    from django.db import connection

    from runs.integrity import verify_stored
    from runs.models import Run
    from runs.store import RunStore

    store = RunStore(ROOT)
    runs = {}
    for length in LENGTHS:
        runs[length] = str(store.start_run("abel-implement", "start", change=f"chain-of-{length}")["runId"])
        grow(runs[length], length)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    taken = dict.fromkeys(LENGTHS, 0.0)
    for number in range(-10, APPENDS):
        for length, run_id in runs.items():
            begin = time.perf_counter()
            store.transition(run_id, "paused", f"op-{number}")
            if number >= 0:
                taken[length] += time.perf_counter() - begin
    print(f"{'append one event to a chain of':<36} {'ms':>8}  {'ratio to 10':>11}")
    for length, seconds in taken.items():
        print(f"{length:<36,} {seconds * 1_000 / APPENDS:>8.2f}  {seconds / taken[LENGTHS[0]]:>11.2f}")
    longest = Run.objects.get(run_id=runs[LENGTHS[-1]])
    begin = time.perf_counter()
    assert verify_stored(longest).ok
    print(
        f"verified events per second: {longest.sequence / (time.perf_counter() - begin):,.0f} (real program: 130,000)"
    )


def reclaiming() -> None:
    """`LEASES` expired leases by the service, and the same rows by one statement that asks and keeps nothing."""
    from django.db import connection

    from runs.leases import reclaim
    from runs.models import LeaseEvent, Operation, Run
    from runs.store import RunStore

    run_id = RunStore(ROOT).start_run("abel-implement", "start", change="leases")["runId"]
    run = Run.objects.get(run_id=run_id)
    Operation.objects.bulk_create(
        (
            Operation(
                run=run,
                operation_id=f"dead-{number}",
                kind="lease",
                state="running",
                lease_token=f"token-{number}",
                lease_held=True,
                lease_expires_at=1_000 + number,
            )
            for number in range(LEASES)
        ),
        batch_size=2_000,
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    begin = time.perf_counter()
    assert sum(found.result == "reclaimed" for found in reclaim(reason="bench")) == LEASES
    ours = time.perf_counter() - begin
    assert LeaseEvent.objects.count() == LEASES
    dead = Operation.objects.filter(run=run, operation_id__startswith="dead-")
    dead.update(state="running", lease_token="token", lease_held=True, lease_expires_at=1_000)
    begin = time.perf_counter()
    dead.update(state="interrupted", lease_token=None, lease_held=False, lease_expires_at=None, outcome_json=None)
    bare = time.perf_counter() - begin
    print(
        f"reclaim {LEASES:,} expired leases: {ours * 1_000:,.0f} ms, with an entry for each; "
        f"one bare UPDATE: {bare * 1_000:,.0f} ms ({ours / bare:.1f} times)"
    )
