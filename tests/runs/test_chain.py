"""Canonical JSON and links: properties, and input that means harm."""

import json
import math
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadence_admin.javascript import JsonError, canonical_json, is_safe_integer, parse_json, stringify
from runs.chain import ZERO_HASH, ChainError, Event, check_links, create_event, is_sha256
from tests.runs.stores import chain

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_reading_and_writing_keep_the_value(value: Any) -> None:
    text = canonical_json(value)
    again = parse_json(text)
    assert canonical_json(again) == text
    assert canonical_json(parse_json(json.dumps(value))) == text
    assert canonical_json(parse_json(stringify(value))) == text


@given(values)
def test_canonical_text_is_what_the_standard_library_reads(value: Any) -> None:
    assert json.loads(canonical_json(value), parse_int=float) == json.loads(json.dumps(value), parse_int=float)


@given(st.text())
def test_any_text_is_read_or_refused_with_a_typed_error(text: str) -> None:
    try:
        value = parse_json(text)
    except JsonError as error:
        assert str(error)
    else:
        assert canonical_json(json.loads(text, parse_constant=lambda name: pytest.fail(name))) == canonical_json(value)


@given(st.text(alphabet='{}[]",:0123456789.eE+-\\utrfalsn \t\n', max_size=40))
def test_json_like_text_is_accepted_exactly_when_it_is_json(text: str) -> None:
    def strict(name: str) -> None:
        raise ValueError(name)

    try:
        json.loads(text, parse_constant=strict)
        is_json = True
    except ValueError:
        is_json = False
    try:
        parse_json(text)
        accepted = True
    except JsonError:
        accepted = False
    assert accepted == is_json


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.0", 1),
        ("1e3", 1000),
        ("-0", -0.0),
        ("9007199254740991", 9007199254740991),
        ("9007199254740993", 9007199254740992.0),
        ("1e400", math.inf),
        ("0.1", 0.1),
    ],
)
def test_numbers_are_javascripts(text: str, value: float) -> None:
    read = parse_json(text)
    assert read == value
    assert type(read) is type(value)
    assert is_safe_integer(read) == isinstance(value, int)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "NaN",
        "[NaN]",
        "Infinity",
        "-Infinity",
        '"\x00"',
        '"\n"',
        "\ufeff1",
        "{",
        "[1,]",
        '{"a":1,}',
        "{1:2}",
        "01",
        "1.",
        ".5",
        "+1",
        "[1 2]",
        '{"a" 1}',
        "1 2",
        "nul",
        "-",
        "[" * 100_000,
        '{"a":' * 100_000,
        "'a'",
        "undefined",
    ],
)
def test_what_javascript_refuses_is_refused(text: str) -> None:
    with pytest.raises(JsonError):
        parse_json(text)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 10_000 + "]" * 10_000,
        '{"a":' * 10_000 + "1" + "}" * 10_000,
        json.dumps("x" * 10_000_000),
        '"' + "\\u00e9" * 1_000_000 + '"',
        "9" * 1_000_000,
        "[" + "0," * 300_000 + "0]",
    ],
    ids=["deep array", "deep object", "10 MB string", "escapes", "digits", "wide"],
)
def test_hostile_but_legal_json_gets_a_hash_in_good_time(text: str) -> None:
    before = time.process_time()
    event = Event(1, "run-created", text, ZERO_HASH, "0" * 64)
    (link,) = check_links([event])
    assert not link.hash_holds
    assert not link.payload_problem
    assert time.process_time() - before < 20


def test_the_last_of_duplicate_members_counts() -> None:
    assert parse_json('{"a":1,"b":2,"a":3}') == {"a": 3, "b": 2}


def test_true_is_no_number() -> None:
    assert not is_safe_integer(True)
    assert canonical_json(True) == "true"
    assert canonical_json(1) == "1"


def test_not_everything_is_json() -> None:
    with pytest.raises(TypeError):
        canonical_json({"a": object()})


def test_a_hash_ends_where_it_ends() -> None:
    assert is_sha256("a" * 64)
    assert not is_sha256("a" * 64 + "\n")
    assert not is_sha256("A" * 64)
    assert not is_sha256(None)


@pytest.mark.parametrize(
    ("sequence", "prior"),
    [
        (0, ZERO_HASH),
        (-1, ZERO_HASH),
        (2**53, ZERO_HASH),
        (True, ZERO_HASH),
        (1, ""),
        (1, "0" * 64 + "\n"),
        (1, "Z" * 64),
    ],
)
def test_an_event_needs_a_right_header(sequence: int, prior: str) -> None:
    with pytest.raises(ChainError) as error:
        create_event(sequence, "run-created", {}, prior)
    assert error.value.code == "event-integrity-invalid-header"


def test_a_changed_event_is_one_break_and_the_rest_hangs_together() -> None:
    events = chain(10)
    events[4] = Event(5, events[4].type, '{"from":"paused","to":"ready"}', events[4].prior_hash, events[4].event_hash)
    links = list(check_links(events))
    assert [link.event.sequence for link in links if not link.holds] == [5]
    assert (links[4].sequence_holds, links[4].prior_holds, links[4].hash_holds) == (True, True, False)


def test_a_missing_event_is_one_break_at_its_sequence() -> None:
    events = chain(10)
    del events[4]
    broken = [link for link in check_links(events) if not link.holds]
    assert [link.expected_sequence for link in broken] == [5]
    assert broken[0].hash_holds
    assert not broken[0].prior_holds


def test_a_window_is_checked_from_the_event_before_it() -> None:
    events = chain(10)
    window = list(check_links(events[6:], after_sequence=6, after_hash=events[5].event_hash))
    assert all(link.holds for link in window)
    assert not next(check_links(events[6:], after_sequence=6, after_hash="0" * 64)).holds


def test_an_unreadable_payload_is_a_verdict() -> None:
    (link,) = check_links([Event(1, "run-created", "{", ZERO_HASH, "0" * 64)])
    assert link.code == "event-payload-invalid"
    assert link.payload_problem
