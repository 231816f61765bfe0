"""Canonical JSON and the hash chain of events.

Plain functions over plain data: no Django, no clock, no I/O. What is hashed is the canonical JSON of
`{sequence, type, payload, priorHash}`: RFC 8785, except that numbers are first read as JavaScript reads them (doubles),
an overflow prints `null`, and a lone surrogate prints its escape. Source: Cadence's run store, which hashes the same.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from cadence_admin.javascript import JsonError, canonical_json, is_safe_integer, parse_json, stringify

ZERO_HASH = "0" * 64

_SHA256 = re.compile(r"[a-f0-9]{64}")


class ChainError(ValueError):
    """A typed error of the rules: `code` is the stable name, the text is for people."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(message or code)
        self.code = code


def is_sha256(value: object) -> bool:
    """Whether `value` is a lower-case hex sha256. (`fullmatch`: a trailing newline is no hash.)"""
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None


def sha256_hex(text: str) -> str:
    """Lower-case hex sha256 of the UTF-8 text."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


@dataclass(frozen=True, slots=True)
class Event:
    """One event as it is stored. `payload_json` is the text it came in."""

    sequence: int
    type: str
    payload_json: str
    prior_hash: str
    event_hash: str


def event_hash(sequence: int, type: str, payload: Any, prior_hash: str) -> str:
    """The hash of an event: sha256 of the canonical JSON of its other four fields."""
    return sha256_hex(canonical_json({"sequence": sequence, "type": type, "payload": payload, "priorHash": prior_hash}))


def create_event(sequence: int, type: str, payload: dict[str, Any], prior_hash: str) -> Event:
    """Make the next event of a chain. Raises `ChainError` (`event-integrity-invalid-header`)."""
    if not is_safe_integer(sequence) or sequence < 1 or not is_sha256(prior_hash):
        raise ChainError("event-integrity-invalid-header", "an event needs a sequence from 1 and the hash before it")
    return Event(sequence, type, stringify(payload), prior_hash, event_hash(sequence, type, payload, prior_hash))


@dataclass(frozen=True, slots=True)
class Link:
    """One event held against the one before it: what was recomputed, and whether it holds."""

    event: Event
    expected_sequence: int
    sequence_holds: bool
    prior_holds: bool
    hash_holds: bool
    payload: Any
    payload_problem: str

    @property
    def holds(self) -> bool:
        return self.sequence_holds and self.prior_holds and self.hash_holds

    @property
    def code(self) -> str:
        """Empty, or the code of what is wrong with this link."""
        if self.holds:
            return ""
        return "event-payload-invalid" if self.payload_problem else "event-integrity-hash-chain"


def check_links(
    events: Iterable[Event], *, after_sequence: int = 0, after_hash: str | None = ZERO_HASH
) -> Iterator[Link]:
    """Recompute every link, one event in memory at a time.

    Goes on after a broken link: what follows is measured against the event that stands before it, so that one changed
    event is one break. `after_hash` None means the hash before the first event isn't known, and is taken as right.
    """
    expected_sequence, prior_hash = after_sequence + 1, after_hash
    for event in events:
        payload: Any = None
        problem = ""
        recomputed = ""
        try:
            payload = parse_json(event.payload_json)
        except JsonError as error:
            problem = str(error)
        else:
            recomputed = event_hash(event.sequence, event.type, payload, event.prior_hash)
        yield Link(
            event=event,
            expected_sequence=expected_sequence,
            sequence_holds=event.sequence == expected_sequence,
            prior_holds=prior_hash is None or event.prior_hash == prior_hash,
            hash_holds=recomputed == event.event_hash,
            payload=payload,
            payload_problem=problem,
        )
        expected_sequence, prior_hash = event.sequence + 1, event.event_hash
