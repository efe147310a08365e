"""A level is read without its edges; the cap becomes a file that lanewise reads."""

import dataclasses
import datetime as dt

import pytest

from loadgen.cli import main
from loadgen.knee import Level, knee
from loadgen.summary import Slo
from loadgen.sweep import fragment, level_of, rows_of, too_short
from proxy.settings import load

BACKEND = "backends: [http://127.0.0.1:8000]\nscheduling: {drop_factor: 2}\n"


def level(at):
    return Level(at, at, 100, at * 0.05, 1.0, at * 0.003, 0.1, 0.0)


FOUND = knee([level(at) for at in (27, 33, 41)], 0.1, "")


def test_what_fills_a_level_and_what_runs_dry_is_not_counted(made):
    """Forty requests, one a second, each 1.2 s long; the first four filled the loop."""
    results = [made.ok(index, 0.2, tokens=11, tpot=0.1) for index in range(40)]
    results[2] = made.ok(2, 0.2, tokens=11, tpot=9.0)
    found = level_of(made.folder("level", results, closed_loop={"concurrency": 4}), 4, Slo())
    assert (found.asked, found.in_flight) == (4, 4)
    assert found.requests == 40 - 4 - 2
    assert found.tpot_p95_s == pytest.approx(0.1)
    assert found.per_s == pytest.approx(1.0)
    assert found.failed_share == 0


def test_an_open_level_says_what_was_in_flight_in_the_mean_and_settles(made):
    results = [made.ok(index, 0.5, tokens=11, tpot=0.15) for index in range(60)]
    results += [made.failed(index, "rejected", after=0.0) for index in range(60, 80)]
    folder = made.folder("level", results)
    found = level_of(folder, 1.0, Slo(), settle_s=20)
    assert found.in_flight == pytest.approx(60 * 2.01 / 79, rel=0.02)
    assert found.failed_share == pytest.approx(0.25)
    assert found.requests == 40


def test_a_level_on_which_nothing_completed_has_no_latency(made):
    found = level_of(made.folder("level", [made.failed(index) for index in range(9)]), 4, Slo())
    assert (found.requests, found.per_s, found.failed_share) == (0, 0.0, 1.0)
    assert found.tpot_p95_s != found.tpot_p95_s


@pytest.mark.parametrize(
    ("requests", "by", "asked", "needs"),
    [
        (12, "concurrency", 4, "only 12 requests, and level 4 needs 50"),
        (50, "concurrency", 4, None),
        (74, "concurrency", 15, "only 74 requests, and level 15 needs 75"),
        (75, "concurrency", 15, None),
        (49, "rate", 0.5, "level 0.5 needs 50"),
        (50, "rate", 100.0, None),
        (None, "rate", 1.0, None),
    ],
)
def test_a_level_for_which_the_trace_is_too_short_is_not_read(requests, by, asked, needs):
    said = too_short({"plan": {"requests": requests}}, by, asked)
    assert said is None if needs is None else needs in said


def test_a_level_sends_five_times_what_it_keeps_in_flight():
    before = [Level(2.0, 8.0, 100, 2.0, 1.0, 0.03, 0.1, 0.0), Level(2.5, 40.0, 100, 2.5, 1.0, 0.05, 0.1, 0.0)]
    assert [rows_of("concurrency", asked, 100, before) for asked in (8, 64)] == [100, 320]
    assert [rows_of("rate", 3.125, 100, done) for done in ([], before[:1], before)] == [100, 100, 250]


def test_the_fragment_is_read_by_lanewise_after_its_own_configuration(tmp_path):
    manifest = {
        "model": "Qwen3-32B",
        "plan": {"hash": "abc"},
        "engine": {
            "version": "0.32.0",
            "cache_config": {"num_gpu_blocks": "1000", "block_size": "128"},
            "flags": {"max_num_seqs": "64", "tensor_parallel_size": "2"},
        },
        "premises": {"card": {"value": "910B4"}, "cards": {"value": 2}, "quantisation": {"value": "w8a8"}},
    }
    base, measured = tmp_path / "base.yaml", tmp_path / "measured.yaml"
    base.write_text(BACKEND)
    measured.write_text(fragment(FOUND, manifest))
    settings = load((base, measured)).settings
    assert settings.scheduling.concurrency == FOUND.cap == 31
    assert settings.scheduling.drop_factor == 2.0
    held = settings.measured
    assert (held.concurrency, held.model, held.engine_version) == (31, "Qwen3-32B", "0.32.0")
    assert (held.cards, held.quantisation, held.kv_tokens, held.max_num_seqs) == ("2 x 910B4", "w8a8", 128_000, 64)
    assert (held.trace, held.tpot_slo) == ("abc", 0.1)
    assert (dt.datetime.now(dt.UTC).date() - held.date).days in (0, 1)
    assert "crosses 100ms at 33.3" in settings.why["scheduling.concurrency"]


def test_what_nobody_knows_is_left_out_of_the_fragment():
    text = fragment(dataclasses.replace(FOUND, cap=5), {"engine": {}})
    assert "model" not in text.replace("the model", "")
    assert "cards:" not in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--factor", "2"], "--factor 2: must be above 1 and at most 1.25"),
        (["--from", "8", "--to", "4"], "the first below the second"),
        (["--from", "1.5"], "whole numbers"),
        (["--requests", "10"], "a p95 needs at least 50"),
        (["--rows", "10"], "--requests is the number"),
        (["--closed-loop", "3"], "leave it out"),
    ],
)
def test_levels_that_make_no_sweep_are_refused(tmp_path, capsys, options, said):
    with pytest.raises(SystemExit) as stopped:
        main(["knee", "trace.csv", "--target", "http://127.0.0.1:1", "--out", str(tmp_path / "k"), *options])
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


def test_the_help_names_no_option_that_a_sweep_sets_itself(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["knee", "--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert "--requests" in shown
    assert "--start" in shown
    for option in ("--rows", "--rate ", "--closed-loop"):
        assert option not in shown
