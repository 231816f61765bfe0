"""What a run may do: states, legal moves, legal commands, and how its events add up to a projection.

Plain functions over plain data. Source: Cadence's run states and event reducer; the error codes are its own.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from cadence_admin.javascript import canonical_json, is_safe_integer
from runs.chain import ChainError, Event, check_links, is_sha256

Projection = dict[str, Any]

STAGES: Final = ("abel-design", "abel-implement")
GATES: Final = ("gate-a", "gate-b")
OPERATION_STATES: Final = ("running", "committed", "interrupted")
COMMANDS: Final = ("status", "resume", "rebind", "cancel", "discard")
TERMINAL_STATES: Final = ("completed", "discarded", "rejected")
EVENT_TYPES: Final = ("run-created", "change-bound", "delivery-bound", "state-transitioned", "operation-interrupted")
TASK_STATES: Final = (
    "pending",
    "queued",
    "phase-ready",
    "phase-running",
    "validating",
    "phase-verified",
    "repairable",
    "retryable",
    "paused",
    "approval-needed",
    "verified",
)

LEGAL_MOVES: Final[Mapping[str, tuple[str, ...]]] = {
    "created": ("validating-delivery", "paused", "discarded", "rejected"),
    "validating-delivery": ("ready", "paused", "approval-needed", "discarded", "rejected"),
    "ready": ("queued", "running", "paused", "discarded", "rejected"),
    "queued": ("connecting", "running", "paused", "discarded"),
    "connecting": ("running", "retryable", "paused", "discarded"),
    "running": (
        "validating",
        "verifying",
        "queued",
        "retryable",
        "paused",
        "approval-needed",
        "change-verifying",
        "discarded",
    ),
    "validating": ("running", "verifying", "retryable", "paused", "approval-needed", "discarded"),
    "verifying": ("running", "retryable", "paused", "approval-needed", "change-verifying", "discarded"),
    "retryable": ("queued", "connecting", "running", "paused", "discarded"),
    "paused": (
        "paused",
        "validating-delivery",
        "ready",
        "queued",
        "connecting",
        "running",
        "approval-needed",
        "recovering",
        "completed",
        "discarded",
        "rejected",
    ),
    "approval-needed": ("validating-delivery", "paused", "discarded", "rejected"),
    "change-verifying": ("running", "retryable", "paused", "approval-needed", "ready-to-apply", "discarded"),
    "ready-to-apply": ("applying", "paused", "discarded"),
    "applying": ("recovering", "completed"),
    "recovering": ("applying", "paused", "completed", "discarded", "rejected"),
    "completed": (),
    "discarded": (),
    "rejected": (),
}
RUN_STATES: Final = tuple(LEGAL_MOVES)

_WAITING_STATES: Final = ("paused", "retryable", "approval-needed")


class LifecycleError(ChainError):
    """A chain, or a move, that breaks the rules of a run; `code` is Cadence's own."""


def legal_commands(state: str) -> tuple[str, ...]:
    """The control commands that an operator may give in `state`, as Cadence lists them."""
    if state in TERMINAL_STATES:
        return ("status",)
    if state in _WAITING_STATES:
        return ("status", "resume", "rebind", "discard")
    if state == "recovering":
        return ("status", "resume", "discard")
    return ("status", "cancel", "discard")


def commands_awaiting_delivery(state: str) -> tuple[str, ...]:
    """Those of `legal_commands` that Cadence lists but refuses until a newer delivery is bound."""
    return ("resume", "rebind") if state == "approval-needed" else ()


def require_move(origin: str, target: str) -> None:
    """Raises `LifecycleError` (`invalid-run-transition:<from>:<to>`) unless the move is legal."""
    if target not in LEGAL_MOVES.get(origin, ()):
        raise LifecycleError(f"invalid-run-transition:{origin}:{target}", f"a run can't move from {origin} to {target}")


def _text(payload: Mapping[str, Any], key: str) -> str:
    value = payload.get(key)
    if not isinstance(value, str) or not value:
        raise LifecycleError(f"event-integrity-invalid-{key}")
    return value


def _is_proof(value: object) -> bool:
    return (
        isinstance(value, dict)
        and is_safe_integer(value.get("revision"))
        and value["revision"] >= 1
        and is_sha256(value.get("contractHash"))
        and is_sha256(value.get("recordHash"))
    )


class Reducer:
    """Adds up events, one after the other, in memory that doesn't grow with the chain (only with its deliveries).

    The caller has checked that each event links to the one before (`check_links`).
    """

    def __init__(self, projection: Projection | None = None) -> None:
        """Start before the first event, or go on from a `projection` that was reduced earlier."""
        self._members: Projection | None = None
        self._bindings: dict[tuple[int, str], dict[str, Any]] = {}
        if projection is not None:
            self._members = {name: value for name, value in projection.items() if name != "deliveryBindings"}
            self._bindings = {(entry["revision"], entry["gate"]): entry for entry in projection["deliveryBindings"]}

    def apply(self, event: Event, payload: Any) -> None:
        """Take the next event in. Raises `LifecycleError`, and is then of no further use."""
        members = payload if isinstance(payload, dict) else {}
        match event.type:
            case "run-created":
                self._create(event, members)
            case "change-bound":
                self._bind_change(members)
            case "delivery-bound":
                self._bind_delivery(members)
            case "state-transitioned":
                self._move(members)
            case "operation-interrupted":
                self._interrupt()
            case _:
                # Cadence loses its projection here and answers with the code of an empty chain; so do we.
                self._members = None
        if self._members is not None:
            self._members["sequence"] = event.sequence
            self._members["eventHash"] = event.event_hash

    def projection(self) -> Projection:
        """What the events so far add up to. Raises `LifecycleError` (`event-integrity-empty`)."""
        if self._members is None:
            raise LifecycleError("event-integrity-empty", "no event, or none that Cadence knows")
        return {**self._members, "deliveryBindings": [self._bindings[key] for key in sorted(self._bindings)]}

    def _run(self) -> Projection:
        if self._members is None:
            raise LifecycleError("event-integrity-missing-run")
        return self._members

    def _create(self, event: Event, payload: Mapping[str, Any]) -> None:
        if self._members is not None or event.sequence != 1:
            raise LifecycleError("event-integrity-duplicate-create")
        if payload.get("stage") not in STAGES:
            raise LifecycleError("event-integrity-invalid-stage")
        names = {name: payload[name] for name in ("change", "provisionalKey") if isinstance(payload.get(name), str)}
        if sum(map(bool, names.values())) != 1:
            raise LifecycleError("event-integrity-invalid-run-key")
        self._members = {
            "runId": _text(payload, "runId"),
            "rootHash": _text(payload, "rootHash"),
            "stage": payload["stage"],
            **names,
            "state": "created",
        }

    def _bind_change(self, payload: Mapping[str, Any]) -> None:
        if self._members is None or self._members["stage"] != "abel-design":
            raise LifecycleError("event-integrity-change-binding")
        self._members["change"] = _text(payload, "change")
        self._members.pop("provisionalKey", None)

    def _bind_delivery(self, payload: Mapping[str, Any]) -> None:
        run = self._run()
        gate, revision, receipt = payload.get("gate"), payload.get("revision"), payload.get("receiptHash")
        if (
            gate not in GATES
            or not is_safe_integer(revision)
            or revision < 1  # type: ignore[operator]
            or not is_sha256(receipt)
            or ("approvalProof" in payload and not _is_proof(payload["approvalProof"]))
        ):
            raise LifecycleError("event-integrity-delivery-binding")
        binding = {"gate": gate, "revision": revision, "receiptHash": receipt}
        if "approvalProof" in payload:
            binding["approvalProof"] = payload["approvalProof"]
        existing = self._bindings.setdefault((revision, gate), binding)  # type: ignore[arg-type]
        if existing is not binding and canonical_json(existing) != canonical_json(binding):
            raise LifecycleError("event-integrity-delivery-conflict")
        run["deliveryRevision"] = max(run.get("deliveryRevision", 0), revision)

    def _move(self, payload: Mapping[str, Any]) -> None:
        run = self._run()
        target = payload.get("to")
        if payload.get("from") != run["state"] or not isinstance(target, str) or target not in LEGAL_MOVES:
            raise LifecycleError("event-integrity-state-mismatch")
        require_move(run["state"], target)
        run["state"] = target
        run.pop("pauseCode", None)
        run.pop("terminal", None)
        if isinstance(payload.get("code"), str):
            run["pauseCode"] = payload["code"]
        if target in TERMINAL_STATES:
            run["terminal"] = target

    def _interrupt(self) -> None:
        if self._members is None or self._members["state"] in TERMINAL_STATES:
            raise LifecycleError("event-integrity-interruption")
        run = self._members
        target = "recovering" if run["state"] == "applying" else "paused"
        if target != run["state"]:
            require_move(run["state"], target)
        run["state"] = target
        run["pauseCode"] = "operation-interrupted"


def reduce_events(events: Iterable[Event]) -> Projection:
    """The projection of a whole chain. Raises `ChainError` with the code of the first thing that breaks."""
    reducer = Reducer()
    for link in check_links(events):
        if link.code:
            raise LifecycleError(link.code, f"the chain breaks at event {link.expected_sequence}")
        reducer.apply(link.event, link.payload)
    return reducer.projection()
