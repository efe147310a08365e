"""Repeats that agree are a baseline; what spreads, or is worth nothing by itself, is none, and why is said."""

import re

import pytest
from rich.console import Console

from loadgen.baseline import judged, print_baseline, store
from loadgen.compare import NotComparableError, compare
from loadgen.failure import UsageError
from loadgen.journal import RunFolder
from loadgen.sides import read_repeat, read_side
from loadgen.summary import Slo


@pytest.fixture
def repeats(made):
    def run(*ttfts, folder="base", **manifest):
        found = []
        for number, ttft in enumerate(ttfts, 1):
            results = [made.ok(index, ttft + 0.05 * (index % 3)) for index in range(120)]
            found.append(
                read_repeat(made.folder(f"{folder}/run-{number}", results, salt=f"{folder}{number}", **manifest), Slo())
            )
        return found

    return run


def test_repeats_that_agree_are_a_baseline_and_keep_their_spread(repeats):
    document = judged("base", repeats(0.40, 0.41, 0.42), Slo())
    assert (document["accepted"], document["why"]) == (True, "")
    entry = document["spread"]["all TTFT p50"]
    assert entry["range"] == pytest.approx(0.02)
    assert entry["median"] == pytest.approx(0.46)
    assert "all TTFT p99" not in document["spread"]


@pytest.mark.parametrize(
    ("ttfts", "manifest", "why"),
    [
        ((0.40, 0.41, 0.60), {}, r"all TTFT p50 spreads by 43% \(450 ms to 650 ms\), more than 10%"),
        ((0.40, 0.41), {}, "only 2 repeats"),
        ((0.40, 0.41, 0.42), {"complete": False}, "run baseline, repeat 1: the run did not end"),
        ((0.40, 0.41, 0.42), {"loop_lag_p99_s": 0.05}, "client-limited"),
    ],
)
def test_what_is_no_baseline_says_why(repeats, ttfts, manifest, why):
    document = judged("base", repeats(*ttfts, **manifest), Slo())
    assert document["accepted"] is False
    assert re.search(why, document["why"])
    assert document["why"] == "; ".join(document["reasons"])


def test_a_difference_within_the_spread_of_the_repeats_is_noise(made, repeats, tmp_path):
    store(tmp_path / "base", "base", repeats(0.40, 0.42, 0.44), Slo(), 0.1)
    base = RunFolder(tmp_path / "base")

    def after(name, ttft):
        return made.folder(name, [made.ok(index, ttft + 0.05 * (index % 3)) for index in range(120)])

    def ttft(comparison):
        return next(one for one in comparison.metrics if one.name == "all TTFT p50")

    within, beyond = compare(base, after("within", 0.45)), compare(base, after("beyond", 0.52))
    assert (ttft(within).effect, ttft(beyond).effect) == ("noise", "worse")
    assert ttft(within).band == pytest.approx(0.04)
    assert ttft(within).a == pytest.approx(0.47)


def test_what_is_no_baseline_is_refused_as_one(made, repeats, tmp_path):
    store(tmp_path / "base", "base", repeats(0.40, 0.41, 0.80), Slo(), 0.1)
    other = made.folder("b", [made.ok(index) for index in range(120)])
    with pytest.raises(NotComparableError, match="A is not a baseline: all TTFT p50 spreads"):
        compare(RunFolder(tmp_path / "base"), other)


def test_what_voids_a_repeat_is_said_once_and_each_reason_has_its_line(made, repeats, tmp_path, capsys):
    document = store(tmp_path / "base", "base", repeats(0.40, 0.41, 0.42, loop_lag_p99_s=0.05), Slo(), 0.1)
    print_baseline(document, Console(width=200))
    told = capsys.readouterr().out.splitlines()
    assert [line[:24] for line in told[-3:]] == [f"- run baseline, repeat {number}" for number in (1, 2, 3)]
    with pytest.raises(NotComparableError) as refused:
        compare(RunFolder(tmp_path / "base"), made.folder("b", [made.ok(index) for index in range(120)]))
    assert str(refused.value).count("repeat 2") == 1


def test_a_broken_baseline_file_is_named(tmp_path):
    (tmp_path / "baseline.json").write_text("{}")
    with pytest.raises(UsageError, match=r"baseline\.json: schema is not lanewise\.baseline/1"):
        read_side(RunFolder(tmp_path), Slo())
