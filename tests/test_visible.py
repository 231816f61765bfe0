"""Hostile texts."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadence_admin.visible import Part, visible, warnings


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("order:8841", [Part("order:8841")]),
        ("two words", [Part("two"), Part(" "), Part("words")]),
        ("a\u202eb", [Part("a"), Part("U+202E", "right-to-left override"), Part("b")]),
        ("a\x00b", [Part("a"), Part("U+0000", "control character"), Part("b")]),
        ("pay\u200bpal", [Part("pay"), Part("U+200B", "zero width space"), Part("pal")]),
        ("\ud800", [Part("U+D800", "control character")]),
        ("a" + " " * 10_000 + "b", [Part("a"), Part("10,000 spaces", "spaces"), Part("b")]),
        (" a", [Part("space", "spaces"), Part("a")]),
        ("a  ", [Part("a"), Part("2 spaces", "spaces")]),
        ("</script><b>", [Part("</script><b>")]),
        ("", []),
    ],
)
def test_what_cannot_be_seen_is_shown(text: str, parts: list[Part]) -> None:
    assert list(visible(text, None).parts) == parts


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("order:8841", []),
        ("חשבון-42", []),
        ("فاتورة", []),
        ("naïve-café", []),
        ("p\u0430ypal", ["It mixes Cyrillic letters with Latin ones."]),
        ("\u0430\u0440\u0440", ["It is written in Cyrillic letters."]),
        ("\uff4frder", ["It has letters in unusual forms, which may look like other ones."]),
        ("a\u202eb", ["It has characters that can't be seen or that change the order of others."]),
        ("order:1 ", ["It has spaces that are easy to overlook."]),
    ],
)
def test_what_could_deceive_is_said(text: str, said: list[str]) -> None:
    assert warnings(text) == said


def test_a_long_text_is_shortened_and_says_so() -> None:
    found = visible("x" * 65_536, 160)
    assert found.parts == (Part("x" * 160),)
    assert found.hidden == 65_376
    assert visible("x" * 160, 160).hidden == 0
    # What is deceitful beyond the cut is said all the same.
    assert visible("x" * 200 + "\u202e", 160).warnings


@given(st.text(st.characters(), max_size=200))
def test_nothing_hidden_gets_through(text: str) -> None:
    shown = "".join(part.text for part in visible(text, None).parts if not part.mark)
    assert all(unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for character in shown)
    shown.encode()
