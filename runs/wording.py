"""Sentences about runs: what an event did, why a run is where it is, what a verdict means."""

from collections.abc import Mapping
from typing import Any, Final

from django.utils.html import format_html
from django.utils.safestring import SafeString

from cadence_admin.javascript import JsonError, parse_json
from runs.integrity import ANCHOR_MISMATCH, DIVERGED
from runs.models import Run
from runs.verification import OK

STAGES: Final = {"abel-design": "design", "abel-implement": "implement"}

_PAUSES: Final = {
    "awaiting-operator": "it waits for an operator",
    "gate-a-approval-required": "a delivery waits for approval at gate-a",
    "gate-b-approval-required": "a delivery waits for approval at gate-b",
    "operation-interrupted": "the operation that worked on it was interrupted",
    "transport-exhausted": "the connection to the model failed too often",
}

_STATES: Final = {
    "created": "Created, and not started yet.",
    "validating-delivery": "Its delivery is being validated.",
    "ready": "Ready to be taken up.",
    "queued": "Waits for a worker.",
    "connecting": "A worker is connecting.",
    "running": "A worker is at it.",
    "validating": "Its result is being validated.",
    "verifying": "Its result is being verified.",
    "retryable": "Failed in a way that may be tried again.",
    "paused": "Paused.",
    "approval-needed": "Waits for approval of a delivery; resume and rebind work once a newer delivery is bound.",
    "change-verifying": "The whole change is being verified.",
    "ready-to-apply": "Verified, and ready to be applied to the project.",
    "applying": "Being applied to the project.",
    "recovering": "Was interrupted while it was applied, and must be recovered.",
    "completed": "Finished: completed. Nothing more happens to it.",
    "discarded": "Finished: discarded. Nothing more happens to it.",
    "rejected": "Finished: rejected. Nothing more happens to it.",
}

_VERDICTS: Final = {
    "event-integrity-hash-chain": "The chain breaks at event {at}. Every event carries a hash of what it says and of "
    "the event before it; here they don't agree. An event was changed, replaced or removed after it was written, so "
    "nothing from event {at} on proves anything.",
    "event-payload-invalid": "Event {at} can't be read: what is stored is no JSON, so its hash can't be recomputed. It "
    "was changed after it was written, or damaged.",
    "event-integrity-empty": "There is no event that says what this run is.",
    "run-projection-integrity-mismatch": "The chain holds, but it doesn't add up to the state that the store shows. "
    "Events at its end were removed, or the shown state was edited.",
    "run-projection-invalid": "The chain holds, but the state that the store shows can't be read.",
    "run-columns-mismatch": "The chain holds, but the run's row in the store was edited: it contradicts the chain.",
    "delivery-bindings-mismatch": "The chain holds, but the table of deliveries was edited: it contradicts the chain.",
    ANCHOR_MISMATCH: "The chain holds together, but it is not the one that was seen here before: event {at} had "
    "another hash then. The stored history was rewritten.",
    DIVERGED: "The history kept here holds together. But its source later showed another one, from event {at} on, so "
    "one of the two was rewritten.",
}


def stage(name: str) -> str:
    """The stage without the program's prefix."""
    return STAGES.get(name, name)


def pause(code: str) -> str:
    """A pause code in words; one we don't know is shown as it is."""
    return _PAUSES.get(code, f"its code is {code}")


def pause_code(run: Run) -> str:
    """The pause code in the stored projection, "" if there is none or it can't be read."""
    try:
        projection = parse_json(run.projection_json)
    except JsonError:
        return ""
    code = projection.get("pauseCode") if isinstance(projection, dict) else None
    return code if isinstance(code, str) else ""


def standing(run: Run) -> str:
    """Why the run is where it is, in a sentence or two."""
    sentence = _STATES[run.state]
    code = pause_code(run)
    return f"{sentence.removesuffix('.')}: {pause(code)}." if code else sentence


def verdict(run: Run) -> str:
    """What a verdict that is not ok means, in plain words."""
    if run.verdict in ("", OK):
        return ""
    text = _VERDICTS.get(
        run.verdict,
        "Event {at} does something that a run must not do there. The program that wrote it doesn't do that.",
    )
    return text.format(at=run.first_broken)


def after_the_break(run: Run) -> str:
    """Whether what follows the first broken link hangs together."""
    if run.break_count == 0:
        return ""
    if run.break_count == 1:
        return "It is the only broken link: what follows hangs together."
    return f"It is not the only one: {run.break_count:,} links are broken."


def event(type: str, payload: Any) -> SafeString:
    """What an event did, as a sentence. Nothing in it is trusted: any member may be missing or of any kind."""
    said: Mapping[str, Any] = payload if isinstance(payload, dict) else {}
    match type:
        case "run-created" if said.get("change"):
            return format_html("Run created for change <b>{}</b>", _short(said["change"]))
        case "run-created":
            return format_html("Run created for a design without a name yet")
        case "change-bound":
            return format_html("The design is now called <b>{}</b>", _short(said.get("change")))
        case "delivery-bound":
            proof = ", with approval proof" if said.get("approvalProof") else ""
            return format_html(
                "Bound delivery <b>{}</b> revision {}{}", _short(said.get("gate")), _short(said.get("revision")), proof
            )
        case "state-transitioned":
            code = format_html(": {}", _short(said["code"])) if said.get("code") else ""
            return format_html("Moved from {} to <b>{}</b>{}", _short(said.get("from")), _short(said.get("to")), code)
        case "operation-interrupted":
            return format_html("An operation was interrupted")
        case _:
            return format_html("<b>{}</b>, a kind of event that is not known here", _short(type))


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else "nothing" if value is None else "something unreadable"
    if isinstance(value, int) and not isinstance(value, bool):
        text = str(value)
    return text if len(text) <= 120 else f"{text[:119]}…"
