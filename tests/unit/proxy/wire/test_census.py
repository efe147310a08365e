"""Text is counted by script class."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.census import RUN_CHARS, add, take_census
from proxy.wire.facts import TextCensus


@pytest.mark.parametrize(
    ("text", "census"),
    [
        ("", TextCensus()),
        ("Two words\n", TextCensus(latin=10)),
        ("call(a, 42);", TextCensus(latin=6, digits=2, symbols=4)),
        ("队列要短。", TextCensus(cjk=5)),
        ("ひらがな カタカナ 한국어", TextCensus(cjk=11, latin=2)),
        ("\uff0c\uff01", TextCensus(cjk=2)),
        ("Привет", TextCensus(other=6)),
        ("café 😀", TextCensus(latin=4, other=3)),
        ("\U00020000\u200d", TextCensus(other=3)),
        ("\ud800", TextCensus(cjk=1)),
    ],
)
def test_each_character_is_counted_in_its_class(text: str, census: TextCensus) -> None:
    assert take_census(text) == census


@given(st.text())
def test_every_character_is_counted_once_and_those_beyond_the_basic_plane_twice(text: str) -> None:
    census = take_census(text)
    parts = (census.latin, census.digits, census.symbols, census.cjk, census.other, census.base64)
    assert sum(parts) == len(text) + sum(character > "\uffff" for character in text)
    assert min(parts) >= 0


def test_a_long_base64_run_is_counted_apart() -> None:
    run = base64.b64encode(bytes(range(256))).decode()
    census = take_census(f"see: {run} and {run.rstrip('=')}")
    assert census.base64 == 2 * len(run.rstrip("="))
    assert census.latin == len("see  and ")
    assert take_census("0123456789abcdef" * 4).base64 == 64


def test_short_runs_rulers_and_long_words_are_ordinary_text() -> None:
    assert take_census("ab12" * (RUN_CHARS // 4 - 1)).base64 == 0
    assert take_census("-" * 200) == TextCensus(symbols=200)
    assert take_census("a" * 200) == TextCensus(latin=200)
    assert take_census("7" * 200) == TextCensus(digits=200)


def test_runs_at_both_ends_and_between_other_scripts_are_found() -> None:
    run = "a1" * 40
    assert take_census(f"{run}队{run}").base64 == 160
    assert take_census(f"{run}队{run}").cjk == 1


def test_a_census_repeated_is_added_that_many_times() -> None:
    one, two = TextCensus(1, 2, 3, 4, 5, 6, 7, 8), TextCensus(1, 1, 1, 1, 1, 1, 1, 1)
    assert add(one, two, 3) == TextCensus(4, 5, 6, 7, 8, 9, 10, 11)
