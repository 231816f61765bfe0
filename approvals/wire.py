"""The wire codec of durable records: values that plain JSON would lose, as `{"r": root, "n": [nodes]}`.

Plain functions over plain data. Source: nifra's wire format. JavaScript values that Python has no twin for get the small
types below, so that nothing is lost and nothing is confused. A dict is an object, a list an array; both keep their identity:
a value that is shared or that contains itself decodes to one object, and encodes back to the same text.
"""

import base64
import binascii
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from cadence_admin.javascript import MAX_SAFE_INTEGER, JsonError, parse_json, stringify

MAX_NODES: Final = 10_000
MAX_DEPTH: Final = 256
MAX_ENTRIES: Final = 100_000
MAX_BYTES: Final = 16 * 1024 * 1024

TAG: Final = "$w"
# The typed arrays by name, with the bytes of one element.
TYPED_ARRAYS: Final = {
    "Int8Array": 1,
    "Uint8Array": 1,
    "Uint8ClampedArray": 1,
    "Int16Array": 2,
    "Uint16Array": 2,
    "Int32Array": 4,
    "Uint32Array": 4,
    "Float32Array": 4,
    "Float64Array": 8,
    "BigInt64Array": 8,
    "BigUint64Array": 8,
}

_BIGINT = re.compile(r"-?(?:0|[1-9][0-9]*)")
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_DATE = re.compile(r"([0-9]{4}|[+-][0-9]{6})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})\.([0-9]{3})Z")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:.*", re.DOTALL)
_ARRAY_INDEX = re.compile(r"0|[1-9][0-9]{0,9}")
_LAST_ARRAY_INDEX: Final = 2**32 - 2
_LAST_MOMENT: Final = 8_640_000_000_000_000
_FLAGS: Final = frozenset("dgimsuvy")
_NUMBERS: Final = {"-0": -0.0, "NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class WireError(ValueError):
    """A value that has no wire form, or text that is none."""


class WireEncodeError(WireError):
    """A value that can't be encoded, or would be too large to be decoded again."""


class WireDecodeError(WireError):
    """A wire value with an unknown tag, a bad index, a malformed shape, or past a limit."""


class WireSyntaxError(WireError):
    """Text that is no JSON."""


@dataclass(frozen=True, slots=True)
class Undefined:
    """JavaScript's `undefined`. There is one: `UNDEFINED`."""


UNDEFINED: Final = Undefined()


@dataclass(frozen=True, slots=True)
class BigInt:
    """JavaScript's `bigint`, by its decimal digits: never equal to the number of the same value."""

    digits: str


@dataclass(frozen=True, slots=True)
class Date:
    """JavaScript's `Date` as its ISO text, such as `2026-05-28T20:26:40.123Z`; None for the invalid date."""

    iso: str | None


@dataclass(frozen=True, slots=True)
class RegExp:
    """JavaScript's `RegExp`."""

    source: str
    flags: str


@dataclass(frozen=True, slots=True)
class Url:
    """JavaScript's `URL`."""

    href: str


@dataclass(frozen=True, slots=True)
class ArrayBuffer:
    """JavaScript's `ArrayBuffer`."""

    data: bytes


@dataclass(frozen=True, slots=True)
class DataView:
    """JavaScript's `DataView`."""

    data: bytes


@dataclass(frozen=True, slots=True)
class TypedArray:
    """One of JavaScript's typed arrays, by the name of its kind."""

    kind: str
    data: bytes


@dataclass(slots=True)
class Map:
    """JavaScript's `Map`: pairs in order, keys of any kind."""

    entries: list[tuple[Any, Any]] = field(default_factory=list)


@dataclass(slots=True)
class Set:
    """JavaScript's `Set`: values in order, of any kind."""

    items: list[Any] = field(default_factory=list)


class _Budget:
    """What one value may cost, the same for writing as for reading: what is written can be read."""

    def __init__(self, error: type[WireError]) -> None:
        self._error = error
        self._entries = 0
        self._bytes = 0

    def nodes(self, count: int) -> None:
        if count > MAX_NODES:
            raise self._error("wire node limit exceeded")

    def depth(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise self._error("wire depth limit exceeded")

    def entries(self, count: int) -> None:
        self._entries += count
        if self._entries > MAX_ENTRIES:
            raise self._error("wire collection entry limit exceeded")

    def bytes(self, count: int) -> None:
        self._bytes += count
        if self._bytes > MAX_BYTES:
            raise self._error("wire decoded byte limit exceeded")

    def string(self, value: str) -> None:
        self.bytes(len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass")))


# What is still to be done in one container: how to place the next value, and the value.
_Todo = Iterator[tuple[Callable[[Any], object], Any]]


def encode(value: Any) -> dict[str, Any]:
    """The wire form of a value, JSON-safe. Raises `WireEncodeError`."""
    budget = _Budget(WireEncodeError)
    nodes: list[Any] = []
    # Values are told apart by identity; they are kept here so that no identity is given out twice.
    seen: dict[int, tuple[int, Any]] = {}
    stack: list[tuple[_Todo, int]] = []

    def inline(item: Any, depth: int) -> Any:
        budget.depth(depth)
        scalar = _inline_scalar(item, budget)
        if scalar is not _NO_SCALAR:
            return scalar
        known = seen.get(id(item))
        if known is not None:
            return {TAG: "ref", "i": known[0]}
        index = len(nodes)
        budget.nodes(index + 1)
        seen[id(item)] = (index, item)
        node, todo = _open_node(item, budget)
        nodes.append(node)
        if todo is not None:
            stack.append((todo, depth + 1))
        return {TAG: "ref", "i": index}

    root = inline(value, 0)
    while stack:
        todo, depth = stack[-1]
        step = next(todo, None)
        if step is None:
            stack.pop()
            continue
        place, item = step
        place(inline(item, depth))
    return {"r": root, "n": nodes}


_NO_SCALAR: Final = object()


def _inline_scalar(value: Any, budget: _Budget) -> Any:
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        budget.string(value)
        return value
    if isinstance(value, int):
        if abs(value) > MAX_SAFE_INTEGER:
            raise WireEncodeError("an integer past 2^53 is no JavaScript number: make it a BigInt or a float")
        return value
    if isinstance(value, float):
        if math.isnan(value):
            return {TAG: "num", "v": "NaN"}
        if math.isinf(value):
            return {TAG: "num", "v": "Infinity" if value > 0 else "-Infinity"}
        return {TAG: "num", "v": "-0"} if value == 0 and math.copysign(1, value) < 0 else value
    if isinstance(value, Undefined):
        return {TAG: "undef"}
    if isinstance(value, BigInt):
        budget.string(value.digits)
        return {TAG: "bigint", "v": value.digits}
    return _NO_SCALAR


def _open_node(value: Any, budget: _Budget) -> tuple[dict[str, Any], _Todo | None]:
    """The node of a value with its members still to come."""
    match value:
        case dict():
            members: dict[str, Any] = {}
            budget.entries(len(value))
            return {TAG: "obj", "v": members}, _members_of(value, members, budget)
        case list() | tuple():
            items: list[Any] = []
            budget.entries(len(value))
            return {TAG: "arr", "v": items}, ((items.append, item) for item in value)
        case Map():
            pairs: list[Any] = []
            budget.entries(len(value.entries))
            return {TAG: "map", "v": pairs}, _pairs_of(value, pairs)
        case Set():
            values: list[Any] = []
            budget.entries(len(value.items))
            return {TAG: "set", "v": values}, ((values.append, item) for item in value.items)
        case Date():
            if value.iso is not None:
                _require_date(value.iso, WireEncodeError(f"{value.iso} is no date"))
                budget.string(value.iso)
            return {TAG: "date", "v": value.iso}, None
        case RegExp():
            budget.string(value.source)
            budget.string(value.flags)
            return {TAG: "regexp", "v": [value.source, value.flags]}, None
        case Url():
            budget.string(value.href)
            return {TAG: "url", "v": value.href}, None
        case ArrayBuffer() | DataView():
            budget.bytes(len(value.data))
            tag = "buf" if isinstance(value, ArrayBuffer) else "dv"
            return {TAG: tag, "v": base64.b64encode(value.data).decode()}, None
        case TypedArray():
            if value.kind not in TYPED_ARRAYS or len(value.data) % TYPED_ARRAYS[value.kind]:
                raise WireEncodeError(f"{value.kind} of {len(value.data)} bytes is no typed array")
            budget.bytes(len(value.data))
            return {TAG: "ta", "k": value.kind, "v": base64.b64encode(value.data).decode()}, None
    raise WireEncodeError(f"cannot encode a {type(value).__name__}")


def _members_of(value: dict[Any, Any], members: dict[str, Any], budget: _Budget) -> _Todo:
    for key in sorted(value, key=_member_order):
        budget.string(key)
        yield partial(members.__setitem__, key), value[key]


def _member_order(key: Any) -> tuple[bool, int]:
    """JavaScript's order of members: array indexes first, by number; then the others, as they were set."""
    if not isinstance(key, str):
        raise WireEncodeError("the members of an object are named by strings")
    if _ARRAY_INDEX.fullmatch(key) and int(key) <= _LAST_ARRAY_INDEX:
        return False, int(key)
    return True, 0


def _pairs_of(value: Map, pairs: list[Any]) -> _Todo:
    for key, item in value.entries:
        pair: list[Any] = []
        pairs.append(pair)
        yield pair.append, key
        yield pair.append, item


def decode(wire: Any) -> Any:
    """The value of a wire form that `parse_json` read. Raises `WireDecodeError`.

    Without recursion; every tag, index and shape is checked, and the limits above hold.
    """
    if not isinstance(wire, dict) or "r" not in wire or not isinstance(wire.get("n"), list):
        raise WireDecodeError("not a wire value: expected { r, n }")
    budget = _Budget(WireDecodeError)
    nodes: list[Any] = wire["n"]
    budget.nodes(len(nodes))
    built: dict[int, Any] = {}
    stack: list[tuple[_Todo, int]] = []

    def inline(item: Any, depth: int) -> Any:
        budget.depth(depth)
        if item is None or item is True or item is False:
            return item
        if isinstance(item, str):
            budget.string(item)
            return item
        if isinstance(item, int | float):
            if isinstance(item, float) and (not math.isfinite(item) or item == 0):
                raise WireDecodeError("malformed wire: non-JSON number inline")
            return item
        if not isinstance(item, dict):
            raise WireDecodeError("malformed wire: invalid inline value")
        tag = item.get(TAG)
        if not isinstance(tag, str):
            raise WireDecodeError("malformed wire: object without a tag inline")
        match tag:
            case "undef":
                return UNDEFINED
            case "num":
                return _number(item.get("v", UNDEFINED))
            case "bigint":
                return _bigint(item.get("v"), budget)
            case "ref":
                return resolve(item.get("i", UNDEFINED), depth)
        raise WireDecodeError(f"unexpected inline tag: {tag}")

    def resolve(raw: Any, depth: int) -> Any:
        index = 0 if isinstance(raw, float) and raw == 0 else raw
        if type(index) is not int or not 0 <= index < len(nodes):
            raise WireDecodeError(f"ref out of range: {_shown(raw)}")
        if index in built:
            return built[index]
        node = nodes[index]
        if not isinstance(node, dict):
            raise WireDecodeError(f"malformed node at {index}")
        value, todo = _shell(node, index, budget)
        # Known before its members are: that is how a cycle finds it.
        built[index] = value
        if todo is not None:
            stack.append((todo, depth + 1))
        return value

    root = inline(wire["r"], 0)
    while stack:
        todo, depth = stack[-1]
        step = next(todo, None)
        if step is None:
            stack.pop()
            continue
        place, item = step
        place(inline(item, depth))
    return root


def _shell(node: dict[str, Any], index: int, budget: _Budget) -> tuple[Any, _Todo | None]:
    """The value of a node with its members still to come."""
    tag, body = node.get(TAG, UNDEFINED), node.get("v")
    match tag:
        case "obj":
            if not isinstance(body, dict):
                raise WireDecodeError(f"malformed obj node at {index}")
            members: dict[str, Any] = {}
            budget.entries(len(body))
            return members, _members_of_node(body, members, budget)
        case "arr" | "map" | "set":
            if not isinstance(body, list):
                raise WireDecodeError(f"malformed {tag} node at {index}")
            budget.entries(len(body))
            if tag == "map":
                pairs = Map()
                return pairs, _pairs_of_node(body, pairs, index)
            items: list[Any] = []
            return items if tag == "arr" else Set(items), ((items.append, item) for item in body)
        case "date":
            if body is None:
                return Date(None), None
            malformed = WireDecodeError(f"malformed date node at {index}")
            if not isinstance(body, str):
                raise malformed
            budget.string(body)
            _require_date(body, malformed)
            return Date(body), None
        case "regexp":
            if not (isinstance(body, list) and len(body) == 2 and all(isinstance(part, str) for part in body)):
                raise WireDecodeError(f"malformed regexp node at {index}")
            budget.string(body[0])
            budget.string(body[1])
            flags = set(body[1])
            if len(flags) != len(body[1]) or not flags <= _FLAGS or {"u", "v"} <= flags:
                raise WireDecodeError(f"malformed regexp node at {index}")
            return RegExp(body[0], body[1]), None
        case "url":
            if not isinstance(body, str) or not _URL.fullmatch(body):
                raise WireDecodeError(f"malformed url node at {index}")
            budget.string(body)
            return Url(body), None
        case "buf":
            return ArrayBuffer(_data(body, index, budget)), None
        case "dv":
            return DataView(_data(body, index, budget)), None
        case "ta":
            kind = node.get("k", UNDEFINED)
            if not isinstance(kind, str) or kind not in TYPED_ARRAYS:
                raise WireDecodeError(f"unknown typed array: {_shown(kind)}")
            data = _data(body, index, budget)
            if len(data) % TYPED_ARRAYS[kind]:
                raise WireDecodeError(f"misaligned bytes for {kind}")
            return TypedArray(kind, data), None
    raise WireDecodeError(f"unknown wire tag: {_shown(tag)}")


def _members_of_node(body: dict[str, Any], members: dict[str, Any], budget: _Budget) -> _Todo:
    for key, item in body.items():
        budget.string(key)
        yield partial(members.__setitem__, key), item


def _pairs_of_node(body: list[Any], pairs: Map, index: int) -> _Todo:
    for entry in body:
        if not isinstance(entry, list) or len(entry) != 2:
            raise WireDecodeError(f"malformed map entry at {index}")
        pair: list[Any] = []
        yield pair.append, entry[0]
        yield pair.append, entry[1]
        pairs.entries.append((pair[0], pair[1]))


def _number(token: Any) -> float:
    if not isinstance(token, str) or token not in _NUMBERS:
        raise WireDecodeError(f"malformed num token: {_shown(token)}")
    return _NUMBERS[token]


def _bigint(token: Any, budget: _Budget) -> BigInt:
    if not isinstance(token, str) or not _BIGINT.fullmatch(token):
        raise WireDecodeError("malformed bigint token")
    budget.string(token)
    return BigInt(token)


def _data(body: Any, index: int, budget: _Budget) -> bytes:
    malformed = WireDecodeError(f"malformed base64 at {index}")
    if not isinstance(body, str) or len(body) % 4:
        raise malformed
    budget.bytes(len(body) // 4 * 3 - (2 if body.endswith("==") else 1 if body.endswith("=") else 0))
    if not _BASE64.fullmatch(body):
        raise malformed
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error:
        raise malformed from None


def _require_date(text: str, malformed: WireError) -> None:
    """Raises unless `text` is what JavaScript's `toISOString` prints for some date."""
    found = _DATE.fullmatch(text)
    if not found:
        raise malformed
    year, month, day, hour, minute, second, thousandth = map(int, found.groups())
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    days = (31, 29 if leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
    four_digits = 0 <= year <= 9999
    if (
        not 1 <= month <= 12
        or not 1 <= day <= days[month - 1]
        or hour > 23
        or minute > 59
        or second > 59
        or four_digits != (len(found[1]) == 4)
    ):
        raise malformed
    moment = (((_days_since_1970(year, month, day) * 24 + hour) * 60 + minute) * 60 + second) * 1000 + thousandth
    if abs(moment) > _LAST_MOMENT:
        raise malformed


def _days_since_1970(year: int, month: int, day: int) -> int:
    """The proleptic Gregorian calendar; years are counted from March, so that the leap day comes last."""
    year -= month <= 2
    era, year_of_era = divmod(year, 400)
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468


def _shown(value: Any) -> str:
    """A value as JavaScript's `String` shows it, for messages."""
    if isinstance(value, str):
        return value
    if isinstance(value, Undefined):
        return "undefined"
    if isinstance(value, dict):
        return "[object Object]"
    return ",".join(map(_shown, value)) if isinstance(value, list) else stringify(value)


def dumps(value: Any) -> str:
    """The wire text of a value. Raises `WireEncodeError`."""
    return stringify(encode(value))


def loads(text: str) -> Any:
    """The value of a wire text. Raises `WireSyntaxError` or `WireDecodeError`."""
    try:
        wire = parse_json(text)
    except JsonError as error:
        message = "Unexpected EOF" if text.strip() == "" else str(error)
        raise WireSyntaxError(f"JSON Parse error: {message}") from None
    return decode(wire)
