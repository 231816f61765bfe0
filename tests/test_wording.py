"""Words for people."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadence_admin.wording import ago, duration, laid_out


@pytest.mark.parametrize(
    ("milliseconds", "words"),
    [
        (0, "under a second"),
        (999, "under a second"),
        (1_000, "1 second"),
        (59_999, "59 seconds"),
        (60_000, "1 minute"),
        (3_599_999, "59 minutes"),
        (7_200_000, "2 hours"),
        (86_400_000 * 400, "400 days"),
    ],
)
def test_durations_use_their_largest_unit(milliseconds: int, words: str) -> None:
    assert duration(milliseconds) == words


def test_moments_are_seen_from_now() -> None:
    assert ago(1_000, 2_000) == "just now"
    assert ago(0, 240_000) == "4 minutes ago"
    assert ago(240_000, 0) == "in 4 minutes"


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_laid_out_json_is_the_same_json(value: object) -> None:
    text = json.dumps(value)
    assert json.loads(laid_out(text)) == value


def test_what_is_laid_out_stays_as_it_is_stored() -> None:
    assert laid_out('{"a":1.0,"a":[],"b":[1,{}]}') == '{\n  "a": 1.0,\n  "a": [],\n  "b": [\n    1,\n    {}\n  ]\n}'


@given(st.text())
def test_anything_can_be_laid_out(text: str) -> None:
    kept = "".join(laid_out(text).split())
    assert kept == "".join(text.split())


def test_depth_costs_no_more_than_its_length() -> None:
    assert len(laid_out("[" * 20_000)) < 20_000 * 100
