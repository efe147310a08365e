import pytest

from loadgen.tracefile.azure import parse, time_ns
from loadgen.tracefile.row import LineError


def test_every_digit_of_the_time_is_kept():
    early, late = (time_ns(f"2023-11-16 18:15:46.{digits}") for digits in ("6805900", "6805901"))
    assert late - early == 100


@pytest.mark.parametrize("text", ["2023-11-16 18:15:46", "2023-11-16 18:15:46Z", "2023-11-16 18:15:46+00:00"])
def test_whole_seconds_and_utc_marks_are_read(text):
    assert time_ns(text) == 1_700_158_546 * 10**9


def test_a_row_is_read_and_the_header_is_none():
    row = parse("2023-11-16 18:15:46.5,374,44", 2)
    assert (row.number, row.prompt_tokens, row.output_tokens, row.t_ns % 10**9) == (2, 374, 44, 500_000_000)
    assert parse("TIMESTAMP,ContextTokens,GeneratedTokens", 1) is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("2023-11-16 18:15:46.5,374", "2 fields"),
        ("yesterday,374,44", "not a time"),
        ("2023-11-16 18:15:46.5x,374,44", "fraction"),
        ("2023-11-16 18:15:46.,374,44", "fraction"),
        ("2023-11-16 18:15:46.5,many,44", "ContextTokens"),
        ("2023-11-16 18:15:46.5,374,-1", "GeneratedTokens"),
        ("2023-11-16 18:15:46.5,374,4.5", "GeneratedTokens"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens", "not a time"),
    ],
)
def test_a_bad_line_says_what_is_wrong(line, reason):
    with pytest.raises(LineError, match=reason):
        parse(line, 7)
