"""Canonical JSON and the hash chain of events.

Plain functions over plain data: no Django, no clock, no I/O. What is hashed is the canonical JSON of
`{sequence, type, payload, priorHash}`: RFC 8785, except that numbers are first read as JavaScript reads them (doubles),
an overflow prints `null`, and a lone surrogate prints its escape. Source: Cadence's run store, which hashes the same.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import rfc8785

type_name = type

ZERO_HASH = "0" * 64
MAX_SAFE_INTEGER = 2**53 - 1

_SHA256 = re.compile(r"[a-f0-9]{64}")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_SPACE = re.compile(r"[ \t\n\r]*")


class ChainError(ValueError):
    """A typed error of the rules: `code` is the stable name, the text is for people."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(message or code)
        self.code = code


class PayloadError(ChainError):
    """Text that JavaScript's `JSON.parse` would refuse. `code` is `event-payload-invalid`."""

    def __init__(self, message: str) -> None:
        super().__init__("event-payload-invalid", message)


def is_sha256(value: object) -> bool:
    """Whether `value` is a lower-case hex sha256. (`fullmatch`: a trailing newline is no hash.)"""
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None


def is_safe_integer(value: object) -> bool:
    """JavaScript's `Number.isSafeInteger` for a value that `parse_json` returned."""
    return type(value) is int and abs(value) <= MAX_SAFE_INTEGER


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() and abs(value) <= MAX_SAFE_INTEGER else value


def _refuse_constant(name: str) -> Any:
    raise PayloadError(f"{name} is not JSON")


_SCALARS = json.JSONDecoder(parse_int=_number, parse_float=_number, parse_constant=_refuse_constant)
_STRINGS = json.JSONEncoder(ensure_ascii=False)


def parse_json(text: str) -> Any:
    """Read JSON as JavaScript does, at any depth.

    Numbers are doubles: an integral one within the safe range comes back as `int`, any other as `float` (`inf` for an
    overflow). The last of duplicate members counts. Raises `PayloadError`.
    """
    # Only the nesting is done here, without recursion; every scalar is read by the standard library.
    root: list[Any] = []
    stack: list[list[Any] | dict[str, Any]] = []
    container: list[Any] | dict[str, Any] = root
    key: str | None = None
    skip = _SPACE.match
    position = _end(skip(text))
    first = True
    try:
        while True:
            if stack:
                character = text[position]
                closing = "}" if isinstance(container, dict) else "]"
                if character == closing:
                    container, key = stack.pop(), None
                    position = _end(skip(text, position + 1))
                    first = False
                    if not stack:
                        break
                    continue
                if not first:
                    if character != ",":
                        raise PayloadError(f"expected , or {closing} at character {position}")
                    position = _end(skip(text, position + 1))
                if isinstance(container, dict):
                    if text[position] != '"':
                        raise PayloadError(f"expected a member name at character {position}")
                    key, position = _SCALARS.raw_decode(text, position)
                    position = _end(skip(text, position))
                    if text[position] != ":":
                        raise PayloadError(f"expected : at character {position}")
                    position = _end(skip(text, position + 1))
            character = text[position]
            value: Any
            if character in "{[":
                value = {} if character == "{" else []
                position += 1
            else:
                value, position = _SCALARS.raw_decode(text, position)
            if isinstance(container, dict):
                container[key] = value  # type: ignore[index]
            else:
                container.append(value)
            position = _end(skip(text, position))
            if character in "{[":
                stack.append(container)
                container, first = value, True
            else:
                first = False
                if not stack:
                    break
    except IndexError:
        raise PayloadError("the text ends too early") from None
    except json.JSONDecodeError as error:
        raise PayloadError(f"{error.msg} at character {error.pos}") from None
    if position != len(text):
        raise PayloadError(f"unexpected text at character {position}")
    return root[0]


def _end(match: re.Match[str] | None) -> int:
    assert match is not None  # the pattern matches the empty string
    return match.end()


def _string(value: str) -> str:
    text = _STRINGS.encode(value)
    return text if text.isascii() else _LONE_SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _utf16(key: str) -> bytes:
    return key.encode("utf-16-be", "surrogatepass")


def _scalar(value: object) -> str:
    if isinstance(value, str):
        return _string(value)
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, int):
        value = float(value) if abs(value) > MAX_SAFE_INTEGER else value
    elif not isinstance(value, float):
        raise TypeError(f"{type(value).__name__} is not JSON")
    if value - value != 0:  # NaN and both infinities
        return "null"
    return rfc8785.dumps(value).decode("ascii")


def _write(value: Any, order: Callable[[dict[str, Any]], list[str]]) -> str:
    out: list[str] = []
    # What is still to be written, last first: text as it is, or a value in a one-element tuple.
    todo: list[str | tuple[Any]] = [(value,)]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            out.append(item)
            continue
        node = item[0]
        if isinstance(node, dict):
            keys = order(node)
            todo.append("}")
            for index in range(len(keys) - 1, -1, -1):
                todo.append((node[keys[index]],))
                todo.append(f"{',' if index else ''}{_string(keys[index])}:")
            out.append("{")
        elif isinstance(node, list | tuple):
            todo.append("]")
            for index in range(len(node) - 1, -1, -1):
                todo.append((node[index],))
                if index:
                    todo.append(",")
            out.append("[")
        else:
            out.append(_scalar(node))
    return "".join(out)


def canonical_json(value: Any) -> str:
    """The text that is hashed: members by UTF-16 code units, no white space, ECMAScript's scalars, at any depth."""
    return _write(value, lambda node: sorted(node, key=_utf16))


def stringify(value: Any) -> str:
    """The text that is stored: as `canonical_json`, but members stay in the order they were set in."""
    return _write(value, list)


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
        except PayloadError as error:
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
