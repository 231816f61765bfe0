"""Texts from elsewhere, made safe to look at: what can't be seen is shown, what could deceive is said.

A text is cut into parts, each plain or a mark. Control and format characters (right-to-left overrides, zero-width letters,
NUL), lone surrogates and long runs of spaces become marks; letters of any alphabet stay what they are, with a warning where
alphabets that look alike are mixed.
"""

import re
import unicodedata
from dataclasses import dataclass
from typing import Final

# What people read in one glance; a longer text is shortened, and whoever decides opens it first.
GLANCE: Final = 160
_LONGEST_RUN: Final = 2
_PIECES: Final = re.compile(rf" {{{_LONGEST_RUN + 1},}}|^ +| +$|[^ ]+| +")
_HIDDEN_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# Spaces that aren't the space, and letters that are drawn as nothing at all.
_BLANK: Final = frozenset("\u00a0\u115f\u1160\u3164\uffa0\u2800\u034f\u17b4\u17b5\u180b\u180c\u180d\ufe0e\ufe0f")
_LOOK_ALIKE: Final = ("CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "COPTIC", "LISU")
_SCRIPT: Final = re.compile(r"(?:MODIFIER LETTER |MATHEMATICAL |FULLWIDTH |HALFWIDTH )?([A-Z]+)")


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a text; `mark` tells that it stands for something that can't be seen."""

    text: str
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Visible:
    """A text as it is shown. `hidden` counts the characters that were left out at the end."""

    parts: tuple[Part, ...]
    warnings: tuple[str, ...]
    hidden: int


def visible(text: str, limit: int | None = GLANCE) -> Visible:
    """`text` as people may see it: at most `limit` characters of it (None: all). The warnings are about the whole text."""
    shown = text if limit is None else text[:limit]
    if shown and shown.isascii() and shown.isprintable() and " " not in shown:  # what nearly all texts are
        return Visible((Part(shown),), tuple(warnings(text)), len(text) - len(shown))
    return Visible(tuple(_parts(shown)), tuple(warnings(text)), len(text) - len(shown))


def plain(text: str, limit: int = 60) -> str:
    """`text` for places that hold no marks, such as the title of a window."""
    return _marked(visible(text, limit))


def plain_lines(text: str) -> str:
    """A text in lines, likewise."""
    return _marked(visible_lines(text))


def _marked(found: Visible) -> str:
    return "".join(f"[{part.text}]" if part.mark else part.text for part in found.parts) + ("…" if found.hidden else "")


def visible_lines(text: str) -> Visible:
    """As `visible`, for a text that is laid out in lines: their breaks and indents stay."""
    parts: list[Part] = []
    for index, line in enumerate(text.split("\n")):
        parts += [Part("\n")] if index else []
        parts += _letters(line)
    return Visible(tuple(parts), (), 0)


def warnings(text: str) -> list[str]:
    """What somebody who reads `text` should know, as sentences."""
    found: list[str] = []
    if text.isascii() and text.isprintable() and " " not in text:
        return found
    if any(_is_hidden(character) for character in set(text)):
        found.append("It has characters that can't be seen or that change the order of others.")
    if text.startswith(" ") or text.endswith(" ") or " " * (_LONGEST_RUN + 1) in text:
        found.append("It has spaces that are easy to overlook.")
    scripts = {_script(character) for character in set(text) if character.isalpha()} - {""}
    alike = sorted(scripts & set(_LOOK_ALIKE))
    if alike and "LATIN" in scripts:
        found.append(f"It mixes {' and '.join(name.capitalize() for name in alike)} letters with Latin ones.")
    elif alike:
        found.append(f"It is written in {' and '.join(name.capitalize() for name in alike)} letters.")
    if unicodedata.normalize("NFKC", text) != text:
        found.append("It has letters in unusual forms, which may look like other ones.")
    return found


def can_be_sent(text: str) -> bool:
    """Whether a database takes a text as a parameter: neither NUL nor half a character."""
    return "\x00" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def storable(text: str) -> str:
    """Text that every database takes: NULs and half characters are replaced."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def _is_hidden(character: str) -> bool:
    return character in _BLANK or unicodedata.category(character) in _HIDDEN_CATEGORIES


def _script(character: str) -> str:
    match = _SCRIPT.match(unicodedata.name(character, ""))
    return match[1] if match else ""


def _parts(text: str) -> list[Part]:
    parts: list[Part] = []
    for match in _PIECES.finditer(text):
        piece = match[0]
        if piece[0] != " ":
            parts += _letters(piece)
        elif len(piece) > _LONGEST_RUN:
            parts.append(Part(f"{len(piece):,} spaces", "spaces"))
        elif match.start() == 0 or match.end() == len(text):
            parts.append(Part("space" if len(piece) == 1 else f"{len(piece)} spaces", "spaces"))
        else:
            parts.append(Part(piece))
    return parts


def _letters(piece: str) -> list[Part]:
    parts: list[Part] = []
    plain = ""
    for character in piece:
        if _is_hidden(character):
            if plain:
                parts.append(Part(plain))
                plain = ""
            name = unicodedata.name(character, "control character").lower()
            parts.append(Part(f"U+{ord(character):04X}", name))
        else:
            plain += character
    return [*parts, Part(plain)] if plain else parts
