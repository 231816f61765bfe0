"""Verdicts on a run: what is found, in which order, and from a checkpoint."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runs.chain import ZERO_HASH, Event, create_event
from runs.source import Source
from runs.verification import Checkpoint, Verdict, verify_run
from tests.runs.stores import PROOF, ROOT, Store, chain


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.in_state_home(tmp_path)
    store.add_run("run-1", "x", ["validating-delivery", "ready"])
    store.bind("run-1", "gate-a", 1)
    store.bind("run-1", "gate-b", 1, proof=PROOF)
    store.move("run-1", "paused", code="awaiting-operator")
    return store


def verdict(store: Store) -> Verdict:
    with Source.open(store.path) as source, source.snapshot():
        row = source.run("run-1")
        assert row is not None
        return verify_run(
            source.events("run-1"),
            row,
            source.rows_of("delivery_bindings", "run_id", "run-1"),
            has_proof_columns=source.has_proof_columns,
        )


def test_an_untouched_run_is_ok(store: Store) -> None:
    found = verdict(store)
    assert (found.code, found.sequence, found.first_broken, found.break_count) == ("ok", 6, None, 0)
    assert found.projection == store.projection("run-1")


@pytest.mark.parametrize(
    ("statement", "code", "first_broken"),
    [
        ("UPDATE events SET payload_json = '{\"from\":\"created\",\"to\":\"paused\"}' WHERE sequence = 2", "event-integrity-hash-chain", 2),
        ("UPDATE events SET payload_json = '{' WHERE sequence = 3", "event-payload-invalid", 3),
        ("UPDATE events SET type = 'made-up' WHERE sequence = 2", "event-integrity-hash-chain", 2),
        ("UPDATE events SET prior_hash = event_hash WHERE sequence = 3", "event-integrity-hash-chain", 3),
        ("DELETE FROM events WHERE sequence = 1", "event-integrity-hash-chain", 1),
        ("DELETE FROM events WHERE sequence = 4", "event-integrity-hash-chain", 4),
        ("DELETE FROM events WHERE sequence = 6", "run-projection-integrity-mismatch", None),
        ("DELETE FROM events", "event-integrity-empty", None),
        ("UPDATE runs SET projection_json = '{}'", "run-projection-invalid", None),
        ("UPDATE runs SET projection_json = 'no'", "run-projection-invalid", None),
        ("UPDATE runs SET projection_json = json_set(projection_json, '$.state', 'ready')", "run-projection-integrity-mismatch", None),
        ("UPDATE runs SET projection_json = json_set(projection_json, '$.sequence', json('true'))", "run-projection-integrity-mismatch", None),
        ("UPDATE runs SET state = 'ready'", "run-columns-mismatch", None),
        ("UPDATE runs SET sequence = 5", "run-columns-mismatch", None),
        ("UPDATE runs SET event_hash = replace(event_hash, substr(event_hash, 1, 1), '0')||''", "run-columns-mismatch", None),
        ("UPDATE runs SET change_name = 'y'", "run-columns-mismatch", None),
        ("UPDATE runs SET lookup_key = 'change:y'", "run-columns-mismatch", None),
        ("UPDATE runs SET lookup_key = 'terminal:run-1'", "run-columns-mismatch", None),
        ("UPDATE runs SET root_hash = replace(root_hash, '2', '3')", "run-columns-mismatch", None),
        ("UPDATE runs SET delivery_revision = 2", "run-columns-mismatch", None),
        ("UPDATE runs SET terminal_tombstone = 'completed'", "run-columns-mismatch", None),
        ("UPDATE runs SET provisional_key = 'p'", "run-columns-mismatch", None),
        ("DELETE FROM delivery_bindings WHERE gate = 'gate-a'", "delivery-bindings-mismatch", None),
        ("UPDATE delivery_bindings SET receipt_hash = contract_hash WHERE gate = 'gate-b'", "delivery-bindings-mismatch", None),
        ("UPDATE delivery_bindings SET approval_revision = 2 WHERE gate = 'gate-b'", "delivery-bindings-mismatch", None),
        ("UPDATE delivery_bindings SET record_hash = NULL WHERE gate = 'gate-b'", "delivery-bindings-mismatch", None),
        ("INSERT INTO delivery_bindings SELECT run_id, gate, 9, receipt_hash, NULL, NULL, NULL, 'other' FROM delivery_bindings LIMIT 1", "delivery-bindings-mismatch", None),
    ],
)  # fmt: skip
def test_each_tampering_gets_its_verdict(store: Store, statement: str, code: str, first_broken: int | None) -> None:
    store.execute(statement)
    found = verdict(store)
    assert (found.code, found.first_broken) == (code, first_broken)


def test_the_real_programs_verdict_comes_first(store: Store) -> None:
    store.execute("UPDATE runs SET state = 'ready'")
    store.execute("DELETE FROM delivery_bindings")
    assert verdict(store).code == "run-columns-mismatch"
    store.execute("UPDATE runs SET projection_json = json_set(projection_json, '$.state', 'ready')")
    assert verdict(store).code == "run-projection-integrity-mismatch"
    store.execute("UPDATE events SET payload_json = '{}' WHERE sequence = 3")
    assert verdict(store).code == "event-integrity-hash-chain"


def test_the_old_form_has_no_proofs_to_compare(tmp_path: Path) -> None:
    store = Store.in_state_home(tmp_path, form="2")
    store.add_run("run-1", "x")
    store.bind("run-1", "gate-a", 1)
    assert verdict(store).ok
    store.execute("UPDATE delivery_bindings SET receipt_hash = '" + "e" * 64 + "'")
    assert verdict(store).code == "delivery-bindings-mismatch"


def test_bytes_that_are_no_text_get_a_verdict(store: Store) -> None:
    store.execute("UPDATE events SET payload_json = CAST(x'7b22ff227d' AS TEXT) WHERE sequence = 3")
    assert verdict(store).code == "event-payload-invalid"
    store.execute("UPDATE events SET payload_json = CAST(x'7b2261223a22ff227d' AS TEXT) WHERE sequence = 3")
    assert verdict(store).code == "event-integrity-hash-chain"
    store.execute("UPDATE events SET payload_json = CAST(x'7b2261223a220022' AS TEXT) WHERE sequence = 3")
    assert verdict(store).code == "event-payload-invalid"


def test_it_goes_on_after_the_first_break() -> None:
    events = chain(30)
    for index in (9, 19):
        broken = events[index]
        events[index] = Event(broken.sequence, broken.type, "{}", broken.prior_hash, broken.event_hash)
    found = verify_run(events, {}, [])
    assert (found.first_broken, found.breaks, found.break_count) == (10, (10, 20), 2)
    assert found.sequence == 30


def test_a_checkpoint_saves_the_way_to_it_and_changes_nothing_else(store: Store) -> None:
    with Source.open(store.path) as source, source.snapshot():
        row = source.run("run-1")
        assert row is not None
        bindings = list(source.rows_of("delivery_bindings", "run_id", "run-1"))
        events = list(source.events("run-1"))
    whole = verify_run(events, row, bindings)
    half = verify_run(events[:4], row, bindings).projection
    # Cut short, the stored projection can't fit; what the events add up to is there all the same.
    assert half is not None
    resumed = verify_run(events[4:], row, bindings, after=Checkpoint(4, events[3].event_hash, half))
    assert resumed == whole
    forged = create_event(5, "state-transitioned", {"from": "ready", "to": "paused"}, ZERO_HASH)
    assert verify_run([forged], row, bindings, after=Checkpoint(4, events[3].event_hash, half)).first_broken == 5


def test_memory_stays_flat_whatever_the_length() -> None:
    def endless(length: int) -> Iterator[Event]:
        payload: dict[str, Any] = {"runId": "r", "rootHash": ROOT, "stage": "abel-implement", "change": "x"}
        event = create_event(1, "run-created", payload, ZERO_HASH)
        yield event
        state = "created"
        for sequence in range(2, length + 1):
            event = create_event(sequence, "state-transitioned", {"from": state, "to": "paused"}, event.event_hash)
            state = "paused"
            yield event

    def peak(length: int) -> int:
        tracemalloc.start()
        verify_run(endless(length), {"projection_json": "{}"}, [])
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(10)
    assert peak(5_000) < peak(50) + 20_000
