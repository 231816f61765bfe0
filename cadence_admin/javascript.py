"""JSON as JavaScript reads and writes it, for the rules of both apps: no Django, no clock, no I/O."""

import json
import re
from collections.abc import Callable
from typing import Any

import rfc8785

MAX_SAFE_INTEGER = 2**53 - 1

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_SPACE = re.compile(r"[ \t\n\r]*")


class JsonError(ValueError):
    """Text that JavaScript's `JSON.parse` would refuse."""


def is_safe_integer(value: object) -> bool:
    """JavaScript's `Number.isSafeInteger` for a value that `parse_json` returned."""
    return type(value) is int and abs(value) <= MAX_SAFE_INTEGER


def _number(text: str) -> int | float:
    value = float(text)
    if value == 0 and text[0] == "-":
        return -0.0
    return int(value) if value.is_integer() and abs(value) <= MAX_SAFE_INTEGER else value


def _refuse_constant(name: str) -> Any:
    raise JsonError(f"{name} is not JSON")


_SCALARS = json.JSONDecoder(parse_int=_number, parse_float=_number, parse_constant=_refuse_constant)
_STRINGS = json.JSONEncoder(ensure_ascii=False)


def parse_json(text: str) -> Any:
    """Read JSON as JavaScript does, at any depth.

    Numbers are doubles: an integral one within the safe range comes back as `int`, any other as `float` (`inf` for an
    overflow). The last of duplicate members counts. Raises `JsonError`.
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
                        raise JsonError(f"expected , or {closing} at character {position}")
                    position = _end(skip(text, position + 1))
                if isinstance(container, dict):
                    if text[position] != '"':
                        raise JsonError(f"expected a member name at character {position}")
                    key, position = _SCALARS.raw_decode(text, position)
                    position = _end(skip(text, position))
                    if text[position] != ":":
                        raise JsonError(f"expected : at character {position}")
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
        raise JsonError("the text ends too early") from None
    except json.JSONDecodeError as error:
        raise JsonError(f"{error.msg} at character {error.pos}") from None
    if position != len(text):
        raise JsonError(f"unexpected text at character {position}")
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
