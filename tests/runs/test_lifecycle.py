"""The reducer: every rule and every error code, and whatever a legal run may do."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.chain import ZERO_HASH, ChainError, Event, create_event
from runs.lifecycle import (
    LEGAL_MOVES,
    RUN_STATES,
    TERMINAL_STATES,
    LifecycleError,
    Projection,
    commands_awaiting_delivery,
    legal_commands,
    reduce_events,
    require_move,
)
from tests.runs.stores import PROOF, ROOT

HASH = "a" * 64
CREATED: dict[str, Any] = {"runId": "r", "rootHash": ROOT, "stage": "abel-implement", "change": "x"}
DESIGN: dict[str, Any] = {"runId": "r", "rootHash": ROOT, "stage": "abel-design", "provisionalKey": HASH}
DELIVERY: dict[str, Any] = {"gate": "gate-a", "revision": 1, "receiptHash": HASH}


def events(*steps: tuple[str, Any]) -> list[Event]:
    made: list[Event] = []
    for type, payload in steps:
        prior = made[-1].event_hash if made else ZERO_HASH
        made.append(create_event(len(made) + 1, type, payload, prior))
    return made


def reduced(*steps: tuple[str, Any]) -> Projection:
    return reduce_events(events(*steps))


def moves(*states: str) -> list[tuple[str, Any]]:
    return [("state-transitioned", {"from": a, "to": b}) for a, b in pairwise(states)]


def without(payload: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in payload.items() if key != name}


@pytest.mark.parametrize(
    ("steps", "code"),
    [
        ([], "event-integrity-empty"),
        ([("run-created", CREATED), ("run-created", CREATED)], "event-integrity-duplicate-create"),
        ([("run-created", CREATED | {"stage": "abel-deploy"})], "event-integrity-invalid-stage"),
        ([("run-created", without(CREATED, "stage"))], "event-integrity-invalid-stage"),
        ([("run-created", CREATED | {"provisionalKey": HASH})], "event-integrity-invalid-run-key"),
        ([("run-created", without(CREATED, "change"))], "event-integrity-invalid-run-key"),
        ([("run-created", CREATED | {"change": ""})], "event-integrity-invalid-run-key"),
        ([("run-created", CREATED | {"change": 1})], "event-integrity-invalid-run-key"),
        ([("run-created", without(CREATED, "runId"))], "event-integrity-invalid-runId"),
        ([("run-created", CREATED | {"runId": 7})], "event-integrity-invalid-runId"),
        ([("run-created", CREATED | {"rootHash": ""})], "event-integrity-invalid-rootHash"),
        ([("run-created", None)], "event-integrity-invalid-stage"),
        ([("run-created", [1])], "event-integrity-invalid-stage"),
        ([("run-created", CREATED), ("change-bound", {"change": "y"})], "event-integrity-change-binding"),
        ([("change-bound", {"change": "y"})], "event-integrity-change-binding"),
        ([("run-created", DESIGN), ("change-bound", {"change": ""})], "event-integrity-invalid-change"),
        ([("run-created", DESIGN), ("change-bound", {})], "event-integrity-invalid-change"),
        ([("delivery-bound", DELIVERY)], "event-integrity-missing-run"),
        ([("state-transitioned", {"from": "created", "to": "paused"})], "event-integrity-missing-run"),
        ([("operation-interrupted", {})], "event-integrity-interruption"),
        (
            [("run-created", CREATED), ("state-transitioned", {"from": "ready", "to": "paused"})],
            "event-integrity-state-mismatch",
        ),
        (
            [("run-created", CREATED), ("state-transitioned", {"from": "created", "to": "nowhere"})],
            "event-integrity-state-mismatch",
        ),
        (
            [("run-created", CREATED), ("state-transitioned", {"from": "created", "to": ["paused"]})],
            "event-integrity-state-mismatch",
        ),
        ([("run-created", CREATED), *moves("created", "running")], "invalid-run-transition:created:running"),
        (
            [("run-created", CREATED), *moves("created", "discarded", "paused")],
            "invalid-run-transition:discarded:paused",
        ),
        (
            [("run-created", CREATED), *moves("created", "rejected"), ("operation-interrupted", {})],
            "event-integrity-interruption",
        ),
        ([("run-created", CREATED), ("made-up", {})], "event-integrity-empty"),
        ([("run-created", CREATED), ("made-up", {}), *moves("created", "paused")], "event-integrity-missing-run"),
    ],
)
def test_each_broken_rule_has_its_code(steps: list[tuple[str, Any]], code: str) -> None:
    with pytest.raises(ChainError) as error:
        reduced(*steps)
    assert error.value.code == code


@pytest.mark.parametrize(
    "payload",
    [
        DELIVERY | {"gate": "gate-c"},
        without(DELIVERY, "gate"),
        DELIVERY | {"gate": ["gate-a"]},
        DELIVERY | {"revision": 0},
        DELIVERY | {"revision": 1.5},
        DELIVERY | {"revision": True},
        DELIVERY | {"revision": "1"},
        DELIVERY | {"revision": 2**53},
        DELIVERY | {"receiptHash": HASH.upper()},
        DELIVERY | {"receiptHash": HASH + "\n"},
        DELIVERY | {"approvalProof": None},
        DELIVERY | {"approvalProof": []},
        DELIVERY | {"approvalProof": PROOF | {"revision": 0}},
        DELIVERY | {"approvalProof": PROOF | {"contractHash": "short"}},
        DELIVERY | {"approvalProof": without(PROOF, "recordHash")},
    ],
)
def test_a_delivery_must_be_whole(payload: dict[str, Any]) -> None:
    with pytest.raises(LifecycleError) as error:
        reduced(("run-created", CREATED), ("delivery-bound", payload))
    assert error.value.code == "event-integrity-delivery-binding"


def test_the_same_delivery_again_must_be_identical() -> None:
    twice = reduced(("run-created", CREATED), ("delivery-bound", DELIVERY), ("delivery-bound", DELIVERY))
    assert twice["deliveryBindings"] == [DELIVERY]
    for other in (DELIVERY | {"receiptHash": "b" * 64}, DELIVERY | {"approvalProof": PROOF}):
        with pytest.raises(LifecycleError) as error:
            reduced(("run-created", CREATED), ("delivery-bound", DELIVERY), ("delivery-bound", other))
        assert error.value.code == "event-integrity-delivery-conflict"


def test_deliveries_are_sorted_by_revision_then_gate() -> None:
    order = [("gate-b", 2), ("gate-a", 2), ("gate-b", 1), ("gate-a", 10)]
    projection = reduced(
        ("run-created", CREATED),
        *(("delivery-bound", DELIVERY | {"gate": gate, "revision": revision}) for gate, revision in order),
    )
    found = [(entry["gate"], entry["revision"]) for entry in projection["deliveryBindings"]]
    assert found == [("gate-b", 1), ("gate-a", 2), ("gate-b", 2), ("gate-a", 10)]
    assert projection["deliveryRevision"] == 10


def test_naming_a_design_drops_its_provisional_key() -> None:
    projection = reduced(("run-created", DESIGN), ("change-bound", {"change": "named"}))
    assert projection["change"] == "named"
    assert "provisionalKey" not in projection


def test_a_pause_code_lives_until_the_next_move() -> None:
    paused = ("state-transitioned", {"from": "created", "to": "paused", "code": "awaiting-operator"})
    assert reduced(("run-created", CREATED), paused)["pauseCode"] == "awaiting-operator"
    assert "pauseCode" not in reduced(("run-created", CREATED), paused, *moves("paused", "ready"))
    numeric = ("state-transitioned", {"from": "created", "to": "paused", "code": 7})
    assert "pauseCode" not in reduced(("run-created", CREATED), numeric)


@pytest.mark.parametrize("state", [state for state in RUN_STATES if state not in TERMINAL_STATES])
def test_an_interruption_pauses_or_recovers(state: str) -> None:
    projection = reduced(("run-created", CREATED), *moves(*path_to(state)), ("operation-interrupted", {}))
    assert projection["state"] == ("recovering" if state == "applying" else "paused")
    assert projection["pauseCode"] == "operation-interrupted"


def path_to(target: str) -> list[str]:
    paths = [["created"]]
    for path in paths:
        if path[-1] == target:
            return path
        paths.extend([*path, state] for state in LEGAL_MOVES[path[-1]] if state not in path)
    raise AssertionError(target)


@pytest.mark.parametrize("state", TERMINAL_STATES)
def test_a_terminal_state_is_said(state: str) -> None:
    assert reduced(("run-created", CREATED), *moves(*path_to(state)))["terminal"] == state


@pytest.mark.parametrize("origin", RUN_STATES)
@pytest.mark.parametrize("target", RUN_STATES)
def test_only_the_legal_moves_are_legal(origin: str, target: str) -> None:
    if target in LEGAL_MOVES[origin]:
        require_move(origin, target)
        return
    with pytest.raises(LifecycleError) as error:
        require_move(origin, target)
    assert error.value.code == f"invalid-run-transition:{origin}:{target}"


def test_resume_and_rebind_wait_for_a_delivery_where_one_is_needed() -> None:
    assert set(commands_awaiting_delivery("approval-needed")) < set(legal_commands("approval-needed"))
    assert all(not commands_awaiting_delivery(state) for state in RUN_STATES if state != "approval-needed")


@given(st.data())
def test_any_legal_walk_reduces_to_where_it_went(data: st.DataObject) -> None:
    walk = ["created"]
    while LEGAL_MOVES[walk[-1]] and len(walk) < 12:
        walk.append(data.draw(st.sampled_from(LEGAL_MOVES[walk[-1]])))
    made = events(("run-created", CREATED), *moves(*walk))
    projection = reduce_events(made)
    assert projection["state"] == walk[-1]
    assert (projection["sequence"], projection["eventHash"]) == (len(made), made[-1].event_hash)
    assert projection.get("terminal") == (walk[-1] if walk[-1] in TERMINAL_STATES else None)
