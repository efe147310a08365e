"""Merging run folders of shards."""

import dataclasses

import pytest

from loadgen.failure import RefusedError, StopError, UsageError
from loadgen.journal import Journal
from loadgen.result import Result
from loadgen.shards.merge import merge
from loadgen.summarise import summarise


def shot(index, **more):
    stamps = {"due": float(index), "sent": index + 0.0, "first": index + 0.25, "last": index + 1.0, "end": index + 1.1}
    return Result(index, index, "short", 8, 4, outcome="ok", tokens=4, tokens_from="usage", **{**stamps, **more})


@pytest.fixture
def run(tmp_path):
    """Makes a run folder of one shard: every `of`th of eight requests."""

    def made(name, index=0, of=2, results=None, **more):
        manifest = {
            "label": name,
            "share": f"{index}/{of}",
            "plan": {"hash": "p", "requests": 8},
            "endpoint": "completions",
            "model": "m",
            "salt": "s",
            "host": {"cores": 2},
            "workers": 1,
            "sent": 4,
            "most_in_flight": 3,
            "connections": 3,
            "cpu_s": 1.0 * (index + 1),
            "start_ns": 7 + index,
            "loop_lag_p99_s": 0.001 * (index + 1),
            "certificate": {"ttft_error_mean_s": 0.0001 * (index + 1)},
            "prefix_cache": {"queries": 10.0 * (index + 1)},
            "start": {"at": 1e9, "clock": [{"offset_s": 0.5 * index, "within_s": 0.0001}]},
        }
        journal = Journal(tmp_path / name, manifest | more.pop("manifest", {}))
        for result in results or [shot(at) for at in range(8) if at % of == index]:
            journal.add(result)
        return journal.close(**{"complete": True, "interrupted": None, **more})

    return made


def test_the_merged_run_has_every_request_and_the_quantiles_of_all(run, tmp_path):
    slow = [shot(at, first=at + 0.75) for at in (1, 3, 5, 7)]
    whole = merge([run("b", 1, results=slow), run("a", 0)], tmp_path / "both")
    assert [result.index for result in whole.results()] == list(range(8))
    summary = summarise(whole)
    assert summary.complete
    assert summary.lanes["all"].sent == 8
    assert (summary.lanes["all"].ttft.p50, summary.lanes["all"].ttft.p90) == (0.25, 0.75)


def test_counts_are_added_and_of_what_is_worst_the_worst_is_kept(run, tmp_path):
    manifest = merge([run("a", 0), run("b", 1)], tmp_path / "both").manifest()
    assert [manifest[key] for key in ("share", "sent", "most_in_flight", "workers")] == ["0/1", 8, 6, 2]
    assert manifest["loop_lag_p99_s"] == 0.002
    assert manifest["certificate"] == {"ttft_error_mean_s": 0.0002}
    assert manifest["prefix_cache"] == {"queries": 20.0}
    assert [one["start"]["clock"][0]["offset_s"] for one in manifest["shards"]] == [0.0, 0.5]
    assert manifest["outcomes"]["ok"] == 8
    assert (manifest["cpu_s"], manifest["start_ns"]) == (3.0, None), "each machine has a clock of its own"


def test_results_come_in_the_order_in_which_they_finished(run, tmp_path):
    late = [shot(0, end=7.0), shot(2, end=8.0)]
    folders = [run("a", 0, results=late), run("b", 1, results=[shot(1), shot(3)])]
    whole = merge(folders, tmp_path / "both")
    assert [result.index for result in whole.results()] == [1, 3, 0, 2]
    assert not whole.manifest()["complete"], "four of eight requests are no whole plan"


def test_a_shard_that_was_stopped_makes_the_whole_incomplete_and_says_which(run, tmp_path):
    stopped = run("b", 1, complete=False, interrupted="stopped by a signal")
    manifest = merge([run("a", 0), stopped], tmp_path / "both").manifest()
    assert not manifest["complete"]
    assert manifest["interrupted"] == "shard 1/2: stopped by a signal"


def test_several_machines_are_kept_apart(run, tmp_path):
    folders = [run("a", 0), run("b", 1, manifest={"host": {"cores": 8}})]
    assert merge(folders, tmp_path / "both").manifest()["host"] == {"several": [{"cores": 2}, {"cores": 8}]}


def test_a_certificate_that_was_skipped_is_the_worst(run, tmp_path):
    folders = [run("a", 0), run("b", 1, manifest={"certificate": {"skipped": "--no-certify"}})]
    assert merge(folders, tmp_path / "both").manifest()["certificate"] == {"skipped": "--no-certify"}


def test_what_the_first_shard_read_of_the_engine_goes_along(run, tmp_path):
    first = run("a", 0, manifest={"telemetry": [{"file": "engine-1.jsonl"}, {"file": "engine-2.jsonl"}]})
    (first.path / "engine-1.jsonl").write_text("{}\n")
    whole = merge([first, run("b", 1)], tmp_path / "both")
    assert (whole.path / "engine-1.jsonl").read_text() == "{}\n"
    assert not (whole.path / "engine-2.jsonl").exists()


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ({"index": 0}, "are both shard 0/2"),
        ({"index": 1, "of": 3}, "shards of 2 and of 3"),
        ({"index": 1, "manifest": {"salt": "t"}}, "the salt differs"),
        ({"index": 1, "manifest": {"model": "other"}}, "model differs: m and other"),
        ({"index": 1, "manifest": {"plan": {"hash": "q", "requests": 8}}}, "plan differs: p and q"),
    ],
)
def test_what_are_no_shards_of_one_run_is_refused_with_the_difference(run, tmp_path, second, said):
    folders = [run("a", 0), run("b", **second)]
    with pytest.raises(RefusedError, match=said):
        merge(folders, tmp_path / "both")
    assert not (tmp_path / "both").exists()


def test_a_missing_shard_is_named(run, tmp_path):
    with pytest.raises(RefusedError, match="shard 1/3 is missing"):
        merge([run("a", 0, 3), run("c", 2, 3)], tmp_path / "both")


def test_a_whole_run_is_nothing_to_merge(run, tmp_path):
    with pytest.raises(UsageError, match="whole run"):
        merge([run("a", 0, 1), run("b", 1)], tmp_path / "both")


def test_a_folder_in_use_is_left_alone(run, tmp_path):
    with pytest.raises(StopError, match="not empty"):
        merge([run("a", 0), run("b", 1)], tmp_path / "a")


def test_a_journal_cut_by_a_kill_is_read_up_to_its_last_whole_line(run, tmp_path):
    cut = run("b", 1, complete=False)
    shots = cut.path / "shots.jsonl"
    shots.write_bytes(shots.read_bytes()[:-20])
    whole = merge([run("a", 0), cut], tmp_path / "both")
    assert [result.index for result in whole.results()] == [0, 1, 2, 3, 4, 5, 6]
    assert dataclasses.asdict(next(whole.results())) == dataclasses.asdict(shot(0))
