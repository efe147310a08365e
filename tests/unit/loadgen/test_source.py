import gzip

import pytest

from loadgen.failure import UsageError
from loadgen.options import BadLines, SourceOptions
from loadgen.source import read_source
from loadgen.trace.info import trace_info

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@pytest.fixture
def azure(tmp_path):
    def write(name, *seconds, prompt=100):
        path = tmp_path / name
        path.write_text(HEADER + "".join(f"2023-11-16 18:15:{s:010.7f},{prompt},5\n" for s in seconds))
        return path

    return write


@pytest.fixture
def mooncake(tmp_path):
    def write(name, *ms):
        path = tmp_path / name
        path.write_text(
            "".join(f'{{"timestamp":{t},"input_length":600,"output_length":2,"hash_ids":[1,{t}]}}\n' for t in ms)
        )
        return path

    return write


def plan_of(*traces, **options):
    return read_source(SourceOptions(traces=traces, **options)).plan


def test_files_with_a_wall_clock_are_merged_by_it(azure):
    plan = plan_of(azure("a.csv", 10, 14), azure("b.csv", 11))
    assert [(shot.due_s, shot.source, shot.row) for shot in plan.shots()] == [(0.0, 0, 2), (1.0, 1, 2), (4.0, 0, 3)]


def test_files_without_a_common_clock_each_start_at_zero(azure, mooncake):
    plan = plan_of(azure("a.csv", 10, 14), mooncake("m.jsonl", 5000, 6000))
    assert sorted((shot.due_s, shot.source) for shot in plan.shots()) == [(0.0, 0), (0.0, 1), (1.0, 1), (4.0, 0)]


def test_the_manifest_says_where_the_requests_came_from(azure):
    facts = read_source(SourceOptions(traces=(azure("a.csv", 1, 2),), scale=4.0)).facts
    assert facts["traces"][0]["name"] == "a.csv"
    assert len(facts["traces"][0]["sha256"]) == 64
    assert facts["traces"][0]["time_unit"] == "wall clock (UTC)"
    assert (facts["scale"], facts["dequantised"], facts["coarse_clock_s"]) == (4.0, False, None)


def test_a_coarse_clock_is_seen_until_it_is_spread(mooncake):
    ticks = [0, 0, 0, 3000, 3000, 3000, 6000, 6000]
    trace = mooncake("m.jsonl", *ticks)
    assert read_source(SourceOptions(traces=(trace,))).facts["coarse_clock_s"] == 3.0
    spread = read_source(SourceOptions(traces=(trace,), dequantise=True, scale=2.0)).facts
    assert (spread["coarse_clock_s"], spread["dequantised_tick_s"]) == (None, 3.0)


def test_files_without_a_request_are_named(azure):
    with pytest.raises(UsageError, match=r"a\.csv, .*b\.csv: no request in it"):
        plan_of(azure("a.csv"), azure("b.csv"))


def test_skipped_lines_are_counted_in_the_manifest(azure):
    trace = azure("a.csv", 1, 2)
    with trace.open("a") as file:
        file.write("oops\n")
    with pytest.raises(UsageError, match=r"a\.csv:4"):
        read_source(SourceOptions(traces=(trace,)))
    facts = read_source(SourceOptions(traces=(trace,), bad_lines=BadLines.SKIP)).facts
    assert facts["bad_lines"]["skipped"] == 1
    assert "a.csv:4" in facts["bad_lines"]["examples"][0]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"workload": "chat"},
        {"workload": "no such workload", "rows": 3},
        {"workload": "chat", "rows": 3, "start_s": 5.0},
        {"workload": "chat", "rows": 0},
        {"workload": "chat", "rows": 3, "scale": float("nan")},
        {"workload": "chat", "rows": 3, "start_s": -1.0},
    ],
)
def test_a_source_that_says_too_little_or_nonsense_is_refused(options):
    with pytest.raises(UsageError):
        read_source(SourceOptions(**options))


def test_a_window_of_a_workload_is_the_same_as_that_part_of_the_whole():
    whole = read_source(SourceOptions(workload="chat", duration_s=60.0)).plan
    part = read_source(SourceOptions(workload="chat", start_s=20.0, duration_s=30.0)).plan
    inside = [shot for shot in whole.shots() if 20 <= shot.due_s < 50]
    assert [shot.row for shot in part.shots()] == [shot.row for shot in inside]


def test_trace_info_of_two_files_is_about_both(azure, tmp_path):
    packed = tmp_path / "b.csv.gz"
    packed.write_bytes(gzip.compress(azure("b.csv", 3, prompt=3000).read_bytes()))
    info = trace_info(SourceOptions(traces=(azure("a.csv", 1, 2), packed)))
    assert (info["rows"], info["span_s"], info["rate"], info["long_share"]) == (3, 2.0, 1.0, pytest.approx(1 / 3))
    assert (info["prompt_tokens"]["max"], info["gap_cv"], info["shared_prefix_share"]) == (3000, 0.0, None)
