"""Words for people: durations, and JSON laid out for reading."""

import re
from typing import Final

_UNITS: Final = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second"))
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"?|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_DEEPEST_INDENT: Final = 40


def duration(milliseconds: int) -> str:
    """A length of time in its largest unit, such as `4 minutes`."""
    for length, unit in _UNITS:
        if milliseconds >= length:
            number = milliseconds // length
            return f"{number} {unit}{'' if number == 1 else 's'}"
    return "under a second"


def ago(moment: int, now: int) -> str:
    """A moment seen from `now`, both in ms: `4 minutes ago`, `in 2 hours`, `just now`."""
    if abs(now - moment) < 5_000:
        return "just now"
    return f"{duration(now - moment)} ago" if moment < now else f"in {duration(moment - now)}"


def time_left(milliseconds: int) -> str:
    """How long something is still open: `2 min 40 s left`, `expired`."""
    seconds = milliseconds // 1_000
    if milliseconds <= 0:
        return "expired"
    if seconds < 60:
        return f"{seconds} s left"
    if seconds < 600:
        return f"{seconds // 60} min {seconds % 60} s left"
    if seconds < 3_600:
        return f"{seconds // 60} min left"
    if seconds < 86_400:
        return f"{seconds // 3_600} h {seconds % 3_600 // 60} min left"
    return "over a year left" if seconds >= 365 * 86_400 else f"{duration(milliseconds)} left"


def urgency(milliseconds: int) -> str:
    """The tone in which that is shown."""
    if milliseconds < 3 * 60_000:
        return "bad"
    return "wait" if milliseconds < 15 * 60_000 else "off"


def laid_out(text: str) -> str:
    """JSON text with line breaks and indents, token by token as it is stored: numbers, escapes and duplicates stay what
    they are. Text that is no JSON, or was cut off, comes out readable too."""
    out: list[str] = []
    depth = 0
    previous = ""
    for match in _TOKEN.finditer(text):
        part = match[0]
        if part in ("}", "]"):
            depth = max(depth - 1, 0)
            if previous not in ("{", "["):
                out.append(_line(depth))
        elif previous in ("{", "[", ","):
            out.append(_line(depth))
        out.append(": " if part == ":" else part)
        if part in ("{", "["):
            depth += 1
        previous = part
    return "".join(out)


def _line(depth: int) -> str:
    return "\n" + "  " * min(depth, _DEEPEST_INDENT)
