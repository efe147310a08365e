"""Values as an engine would take them."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.wire.values import as_bool, as_int, as_str, as_text


@pytest.mark.parametrize(
    ("value", "number"),
    [(3, 3), (-1, -1), (4.0, 4), ("12", 12), (" 12 ", 12), ("-3", -3), (10**30, 10**30)],
)
def test_whole_numbers_are_taken_in_every_form_that_engines_coerce(value: object, number: int) -> None:
    assert as_int(value) == number


@pytest.mark.parametrize(
    "value", [None, True, 1.5, float("inf"), float("nan"), "", "1.5", "x", "9" * 5000, "१२", [1], {}]
)
def test_other_values_are_no_number(value: object) -> None:
    assert as_int(value) is None


def test_true_has_several_spellings() -> None:
    assert all(map(as_bool, [True, 1, 1.0, "true", "YES", "on", "1"]))
    assert not any(map(as_bool, [False, 0, 2, None, "false", "", "maybe", [], [1], {}]))


def test_only_strings_with_something_in_them_are_strings() -> None:
    assert as_str("a") == "a"
    assert [as_str(value) for value in ("", None, 1, ["a"])] == [None] * 4


def test_a_value_is_written_as_compact_json_and_a_string_as_it_is() -> None:
    assert as_text({"a": [1, "é"]}) == '{"a":[1,"é"]}'
    assert as_text("plain") == "plain"


def test_a_value_too_deep_to_be_written_still_gives_its_strings() -> None:
    deep: object = "bottom"
    for _ in range(20_000):
        deep = [deep]
    assert "bottom" in as_text({"key": deep})


@settings(deadline=None, max_examples=25)
@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists, max_leaves=8))
def test_any_value_can_be_written(value: object) -> None:
    assert as_text(value) == (
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    )
