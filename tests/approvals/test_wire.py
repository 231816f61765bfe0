"""The wire codec: any value, any harm."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from approvals import wire
from approvals.records import read_record
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
    WireDecodeError,
    WireEncodeError,
    WireError,
)
from tests.approvals.test_side_by_side import approval

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.just(UNDEFINED)
    | st.integers().map(lambda number: BigInt(str(number)))
    | st.datetimes().map(lambda moment: Date(moment.isoformat(timespec="milliseconds")[:23] + "Z"))
    | st.just(Date(None))
    | st.builds(RegExp, st.text(max_size=5), st.sampled_from(["", "g", "gi", "u"]))
    | st.just(Url("https://example.invalid/x?y=1"))
    | st.binary(max_size=8).map(ArrayBuffer)
    | st.binary(max_size=8).map(DataView)
    | st.binary(max_size=8).map(lambda data: TypedArray("Uint8Array", data))
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=4), inner, max_size=4)
        | st.lists(st.tuples(inner, inner), max_size=3).map(Map)
        | st.lists(inner, max_size=3).map(Set)
    ),
    max_leaves=15,
)


@given(values)
def test_any_value_comes_back_to_the_same_text(value: Any) -> None:
    text = wire.dumps(value)
    assert wire.dumps(wire.loads(text)) == text


@given(st.text() | st.text(alphabet='{}[]",:$wrnvi0123456789objarmpsetfu ', max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        wire.loads(text)
    except WireError:
        return


@given(st.dictionaries(st.text(max_size=6).filter(lambda key: not key.isdecimal()), values, max_size=4))
def test_any_record_that_decodes_encodes_back_to_an_equal_text(unknown: dict[str, Any]) -> None:
    members = {**unknown, **approval()}
    text = wire.dumps(members)
    record = read_record("approval", wire.loads(text))
    assert wire.dumps(record.to_members()) == text


def test_shared_and_circular_values_keep_their_identity() -> None:
    shared = {"a": 1}
    loop: dict[str, Any] = {"x": shared, "y": shared}
    loop["self"] = loop
    again = wire.loads(wire.dumps(loop))
    assert again["x"] is again["y"]
    assert again["self"] is again
    date = Date("2026-05-28T20:26:40.123Z")
    pair = wire.loads(wire.dumps([date, date, Date(date.iso)]))
    assert pair[0] is pair[1]
    assert pair[0] is not pair[2]


def test_nothing_is_taken_for_something_else() -> None:
    assert BigInt("1") != 1
    assert wire.dumps(1) != wire.dumps(BigInt("1"))
    assert wire.dumps(True) != wire.dumps(1)
    assert wire.dumps(0.0) != wire.dumps(-0.0)
    assert wire.dumps({}) != wire.dumps(Map())
    assert wire.dumps({"$w": "undef"}) != wire.dumps(UNDEFINED)
    assert wire.loads(wire.dumps({"$w": "undef"})) == {"$w": "undef"}


@pytest.mark.parametrize(
    "value",
    [
        2**53,
        object(),
        {1: 2},
        lambda: None,
        TypedArray("Int16Array", b"abc"),
        TypedArray("Nope", b""),
        Date("soon"),
        b"x",
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_wire_form_is_refused(value: Any) -> None:
    with pytest.raises(WireEncodeError):
        wire.dumps(value)


def deep(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def test_limits_hold_alike_for_writing_and_reading() -> None:
    assert wire.loads(wire.dumps(deep(255))) == deep(255)
    with pytest.raises(WireEncodeError, match="depth"):
        wire.dumps(deep(257))
    with pytest.raises(WireEncodeError, match="node"):
        wire.dumps([[] for _ in range(10_000)])
    with pytest.raises(WireEncodeError, match="entry"):
        wire.dumps([0] * 100_001)
    with pytest.raises(WireEncodeError, match="byte"):
        wire.dumps("x" * (16 * 1024 * 1024 + 1))
    nodes = ",".join(f'{{"$w":"arr","v":[{{"$w":"ref","i":{index + 1}}}]}}' for index in range(300))
    with pytest.raises(WireDecodeError, match="depth"):
        wire.loads(f'{{"r":{{"$w":"ref","i":0}},"n":[{nodes},{{"$w":"arr","v":[]}}]}}')
    with pytest.raises(WireDecodeError, match="node"):
        wire.loads('{"r":null,"n":[' + ",".join(["0"] * 10_001) + "]}")
    with pytest.raises(WireDecodeError, match="entry"):
        wire.loads('{"r":{"$w":"ref","i":0},"n":[{"$w":"arr","v":[' + ",".join(["0"] * 100_001) + "]}]}")
    with pytest.raises(WireDecodeError, match="byte"):
        wire.loads('{"r":"' + "x" * (16 * 1024 * 1024 + 1) + '","n":[]}')


@pytest.mark.parametrize(
    "text",
    [
        '{"r":' + "[" * 100_000 + "]" * 100_000 + ',"n":[]}',
        '{"r":{"$w":"ref","i":0},"n":[{"$w":"regexp","v":["a","' + "g" * 1_000_000 + '"]}]}',
        '{"r":{"$w":"bigint","v":"' + "9" * 1_000_000 + '"},"n":[]}',
        '{"r":{"$w":"ref","i":0},"n":[{"$w":"buf","v":"' + "A" * 1_000_000 + '"}]}',
        '{"r":{"$w":"ref","i":0},"n":[{"$w":"map","v":[[{"$w":"ref","i":0},{"$w":"ref","i":0}]]}]}',
        '{"r":{"$w":"ref","i":1e99},"n":[]}',
        '{"r":{"$w":"ref","i":true},"n":[[]]}',
        '{"r":-0,"n":[]}',
        '{"r":1e999,"n":[]}',
        '{"r":{"$w":"num","v":-0},"n":[]}',
        '{"r":{"$w":"ref","i":0},"n":[{"$w":"url","v":"no url"}]}',
        '{"r":{"$w":"ref","i":0},"n":[{"$w":"dv","v":"A==="}]}',
        '{"r":{"$w":"ref","i":0},"n":[{"$w":"ta","k":"Int16Array","v":"AA=="}]}',
        '{"r":{"$w":"ref","i":0},"n":[{"$w":"map","v":[[1]]}]}',
        '{"r":{"$w":"ref","i":0},"n":[{"$w":"regexp","v":["a","uv"]}]}',
    ],
    ids=range(15),
)
def test_harm_gets_an_answer_in_good_time(text: str) -> None:
    before = time.process_time()
    try:
        wire.dumps(wire.loads(text))
    except WireError as error:
        assert len(str(error)) < 3_000_000
    assert time.process_time() - before < 10


@pytest.mark.parametrize(
    ("iso", "valid"),
    [
        ("2026-05-28T20:26:40.123Z", True),
        ("2024-02-29T00:00:00.000Z", True),
        ("2025-02-29T00:00:00.000Z", False),
        ("1900-02-29T00:00:00.000Z", False),
        ("0000-01-01T00:00:00.000Z", True),
        ("-000001-01-01T00:00:00.000Z", True),
        ("-000000-01-01T00:00:00.000Z", False),
        ("+002026-01-01T00:00:00.000Z", False),
        ("+275760-09-13T00:00:00.000Z", True),
        ("+275760-09-13T00:00:00.001Z", False),
        ("-271821-04-20T00:00:00.000Z", True),
        ("-271821-04-19T23:59:59.999Z", False),
        ("2026-01-01T24:00:00.000Z", False),
        ("2026-01-01T00:00:60.000Z", False),
        ("2026-01-01", False),
        ("2026-01-01T00:00:00.000Z\n", False),
    ],
)
def test_dates_are_those_that_javascript_prints(iso: str, valid: bool) -> None:
    if valid:
        assert wire.loads(wire.dumps(Date(iso))) == Date(iso)
        return
    with pytest.raises(WireEncodeError):
        wire.dumps(Date(iso))
