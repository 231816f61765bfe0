"""Approvals, effects and sagas in words: what will happen, what a list shows, what a value of the wire is."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from approvals.wire import (
    UNDEFINED,
    ArrayBuffer,
    BigInt,
    DataView,
    Date,
    Map,
    RegExp,
    Set,
    TypedArray,
    Url,
)
from cadence_admin.javascript import stringify

APPROVAL_VIEWS: Final = {
    "waiting": "Waiting",
    "approved": "Approved",
    "denied": "Denied",
    "consumed": "Consumed",
    "expired": "Expired",
    "mine": "Decided by me",
}
NOTHING: Final = {
    "waiting": "Nothing waits for a decision.",
    "approved": "No approval waits to be used.",
    "denied": "Nothing was denied.",
    "consumed": "No approval was used yet.",
    "expired": "Nothing has expired.",
    "mine": "You have decided nothing yet.",
}
STATES: Final = {
    "pending": "It waits for a decision.",
    "approved": "Approved. Whoever asked has not used it yet.",
    "denied": "Denied. The effect doesn't happen.",
    "consumed": "Approved, and used once. It can't be used again.",
    "expired": "Its time was up. Whoever asked has to ask again.",
}
ANSWERS: Final = {
    "committed": "It happened",
    "failed": "It didn't happen",
    "not-committed": "It didn't happen",
    "compensated": "It was undone",
    "not-compensated": "It was not undone",
    "undone-by-hand": "I undid it by hand",
    "try-again": "Try to undo it again",
}
DECISIONS: Final = ANSWERS | {
    "approved": "Approved",
    "denied": "Denied",
    "expired": "Marked as expired",
    "freed": "Freed",
}
MEMBERS: Final = {
    "approvalId": "id",
    "capability": "capability",
    "target": "target",
    "digest": "digest of the arguments",
    "tenantId": "tenant",
    "principalId": "who asks",
    "effectId": "effect",
    "createdAt": "when it was asked",
    "expiresAt": "when it expires",
    "version": "version",
}

_SECRET: Final = re.compile(
    r'("(?:[A-Za-z]*[Tt]oken(?:Hash)?|[A-Za-z]*[Ss]ecret|[A-Za-z]*[Pp]assword)"\s*:\s*)"(?:[^"\\]|\\.)*"', re.DOTALL
)
LONGEST_RAW: Final = 100_000
_MOST_LINES: Final = 400
_DEEPEST: Final = 12
_WORD: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")


def deed(capability: str) -> str:
    """What a capability does, as the verb it ends with: `payments.refund` is `Refund`."""
    word = capability.rpartition(".")[2].replace("-", " ")
    return word[:1].upper() + word[1:]


def raw(text: str) -> str:
    """A stored record as it is, without the values of members that are secrets."""
    return _SECRET.sub(r'\1"(left out)"', text)[:LONGEST_RAW]


def described(value: Any) -> str:
    """A value of the wire in JavaScript's own notation, types included, one member a line; cut where it gets too long."""
    lines: list[str] = []
    for line in _lines(value, 0):
        if len(lines) == _MOST_LINES:
            lines.append("…")
            break
        lines.append(line)
    return "\n".join(lines)


def _lines(value: Any, depth: int, before: str = "", after: str = "") -> Iterator[str]:
    indent = "  " * depth
    opened = _opened(value)
    if opened is None:
        yield f"{indent}{before}{_scalar(value)}{after}"
        return
    start, entries, end = opened
    if not entries:
        yield f"{indent}{before}{start}{end}{after}"
    elif depth == _DEEPEST:
        yield f"{indent}{before}{start} … {end}{after}"
    else:
        yield f"{indent}{before}{start}"
        for index, (name, entry) in enumerate(entries):
            yield from _lines(entry, depth + 1, name, "," if index + 1 < len(entries) else "")
        yield f"{indent}{end}{after}"


def _opened(value: Any) -> tuple[str, list[tuple[str, Any]], str] | None:
    match value:
        case Mapping():
            members = [(f"{key if _WORD.fullmatch(key) else stringify(key)}: ", entry) for key, entry in value.items()]
            return "{", members, "}"
        case list():
            return "[", [("", entry) for entry in value], "]"
        case Map():
            return "Map {", [(f"{_key(key)} => ", entry) for key, entry in value.entries], "}"
        case Set():
            return "Set {", [("", entry) for entry in value.items], "}"
    return None


def _key(key: Any) -> str:
    return "…" if _opened(key) else _scalar(key)


def _scalar(value: Any) -> str:
    if value is UNDEFINED:
        return "undefined"
    match value:
        case BigInt():
            return f"{value.digits}n"
        case Date():
            return f"Date {value.iso or 'invalid'}"
        case RegExp():
            return f"RegExp /{value.source}/{value.flags}"
        case Url():
            return f"URL {value.href}"
        case ArrayBuffer() | DataView():
            return f"{type(value).__name__} of {len(value.data):,} bytes"
        case TypedArray():
            return f"{value.kind} of {len(value.data):,} bytes"
        case float() if (
            value != value or value in (float("inf"), float("-inf")) or (value == 0 and str(value)[0] == "-")
        ):
            return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(str(value), "-0")
    return stringify(value)
