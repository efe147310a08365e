import pytest

from loadgen.trace.shown import info, pairs, plain

FOUND = {
    "files": [
        {
            "name": "a.csv",
            "format": "azure",
            "time_unit": "wall clock (UTC)",
            "sha256": "0" * 64,
            "assumed_outputs": 3,
            "origin": [{"command": "trace cut"}, {"command": "trace scale"}],
        }
    ],
    "rows": 1200,
    "bad_lines": {"skipped": 1, "examples": ["a.csv:4: has 1 fields"]},
    "span_s": 60.0,
    "rate": 20.0,
    "gap_cv": 2.5,
    "peaks": [{"window_s": 1, "requests": 50, "times_the_mean": 2.5}],
    "prompt_tokens": {"mean": 10.5, "p50": 10, "p90": 20, "p99": 30, "max": 4000},
    "output_tokens": {"mean": 10.5, "p50": 10, "p90": 20, "p99": 30, "max": 40},
    "border": 2048,
    "long_share": 0.25,
    "lane_border": {
        "p70": 1,
        "p75": 2,
        "p80": 3,
        "p85": 4,
        "suggested": 3,
        "valley": {"tokens": 900, "depth": 0.5, "share_below": 0.75},
    },
    "output_caps": [{"cap": 256, "requests_cut_share": 0.1, "tokens_cut_share": 0.05}],
    "coarse_clock_s": 3.0,
    "out_of_order": {"rows": 2, "first_line": 9},
    "shared_prefix_share": 0.4,
    "shared_prefix_exact": False,
    "duplicates": {"rows": 7, "share": 0.01},
    "conversations": {"conversations": 100, "later_turns": 20, "longest_turns": 5},
    "plan_hash": "abc",
}


def test_everything_that_was_found_is_said_in_words():
    text = info(FOUND)
    for said in (
        "azure, time is wall clock (UTC)",
        "3 output lengths assumed",
        "made by trace cut, then trace scale",
        "1,200 in 60.0 s, 20 requests/s",
        "CV of the gaps 2.50",
        "50 requests, 2.5 times the mean",
        "coarse: steps of 3 s",
        "the first in line 9",
        "about 40.0 % of the prompt tokens",
        "7 prompts (1.0 %)",
        "valley at 900 tokens, 75.0 %",
        "would cut 10.0 % of the answers, 5.0 % of all output tokens",
        "1 passed over; the first: a.csv:4: has 1 fields",
        "100, with 20 later turns; the longest has 5 turns",
    ):
        assert said in text


def test_nothing_looks_like_a_programming_language():
    text = pairs({"a": None, "b": True, "c": [], "d": {"e": [1, 2.5]}, "files": [{"x_y": "z"}], "n": 12345.6}) + info(
        FOUND
    )
    assert not set("{}[]'") & set(text)
    assert "None" not in text
    assert "True" not in text


@pytest.mark.parametrize(
    ("value", "said"),
    [(None, "-"), (False, "no"), (0.123456, "0.1235"), (12345.678, "12,346"), ((), "none"), ({}, "-")],
)
def test_values_are_written_as_people_do(value, said):
    assert plain(value) == said
