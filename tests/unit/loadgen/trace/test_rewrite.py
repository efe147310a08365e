import json
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadgen.failure import UsageError
from loadgen.trace import rewrite
from loadgen.trace.output import Output
from loadgen.trace.rewrite import Part
from loadgen.tracefile import open_trace

AGAIN = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
rows_drawn = st.lists(
    st.tuples(st.integers(0, 10**6), st.integers(1, 3000), st.integers(1, 400)), min_size=1, max_size=30
)


def mooncake(path, rows):
    """(ms, prompt, output) with blocks that share by prompt length."""
    lines = [
        {"timestamp": t, "input_length": i, "output_length": o, "hash_ids": [*range(-(-i // 512) - 1), 10**6 + i]}
        for t, i, o in rows
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def lengths(path, source=0):
    return Counter((row.prompt_tokens, row.output_tokens) for row in open_trace(path, source=source).rows())


def new(tmp_path, make, name="new"):
    path = tmp_path / name
    with Output(path, force=True) as out:
        made = make(out)
    return path, made


@AGAIN
@given(rows=rows_drawn, border=st.integers(1, 3000), seconds=st.integers(0, 999), sample=st.floats(0.1, 0.9))
def test_parts_that_exclude_each_other_hold_every_line_once(tmp_path, rows, border, seconds, sample):
    path = mooncake(tmp_path / "t", rows)
    first = min(t for t, _, _ in rows) / 1000

    def kept(**part):
        try:
            made, _ = new(tmp_path, lambda out: rewrite.cut(open_trace(path), Part(**part), out))
        except UsageError:
            return Counter()
        return Counter(made.read_text().splitlines())

    whole = Counter(path.read_text().splitlines())
    assert kept(lane="short", border=border) + kept(lane="long", border=border) == whole
    assert kept(rows=7) + kept(skip=7) == whole
    assert kept(duration_s=seconds + 0.5) + kept(start_s=seconds + 0.5) == whole
    assert kept(sample=sample, seed=3) == kept(sample=sample, seed=3) <= whole
    assert kept(start_s=0.0, duration_s=2000 + first) == whole


@pytest.mark.parametrize(
    "part", [{"sample": 0}, {"lane": "middle"}, {"rows": 0}, {"start_s": -1}, {"duration_s": float("nan")}]
)
def test_a_part_that_makes_no_sense_is_refused_and_leaves_no_file(tmp_path, part):
    path = mooncake(tmp_path / "t", [(0, 5, 1)])
    with pytest.raises(UsageError, match="--"):
        new(tmp_path, lambda out: rewrite.cut(open_trace(path), Part(**part), out))
    assert [file.name for file in tmp_path.iterdir()] == ["t"]


def test_a_cut_csv_keeps_its_header(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5,374,44\n2023-11-16 18:15:47,5,6\n")
    cut, made = new(tmp_path, lambda out: rewrite.cut(open_trace(path), Part(skip=1), out))
    assert cut.read_text() == "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:47,5,6\n"
    assert (made.read, made.written) == (2, 1)


def test_a_cut_by_rows_reads_no_further_than_it_keeps(tmp_path):
    path = mooncake(tmp_path / "t", [(at, 10, 5) for at in range(9)])
    _, made = new(tmp_path, lambda out: rewrite.cut(open_trace(path), Part(rows=5), out))
    assert (made.read, made.written) == (5, 5)


@AGAIN
@given(rows=rows_drawn, to=st.sampled_from(["azure", "bailian", "lanewise", "mooncake"]))
def test_a_conversion_keeps_every_length_and_every_distance_in_time(tmp_path, rows, to):
    path = mooncake(tmp_path / "t", rows)
    there, made = new(tmp_path, lambda out: rewrite.convert(open_trace(path), to, out, keep_assumed=False))
    assert made.written == made.read == len(rows)
    assert lengths(there) == lengths(path)
    ordered = sorted(row.t_ns for row in open_trace(path).rows())
    times = [row.t_ns for row in open_trace(there).rows()]
    assert [t - times[0] for t in times] == [t - ordered[0] for t in ordered]


@AGAIN
@given(rows=rows_drawn)
def test_there_and_back_shares_the_same_prefixes(tmp_path, rows):
    """Whole blocks of 512 tokens: a partial one is told apart by where it ends."""
    rows = [(t, -(-i // 512) * 512, o) for t, i, o in rows]
    path = mooncake(tmp_path / "t", rows)
    there, _ = new(tmp_path, lambda out: rewrite.convert(open_trace(path), "bailian", out, keep_assumed=False))
    back, _ = new(tmp_path, lambda out: rewrite.convert(open_trace(there), "mooncake", out, keep_assumed=False), "back")
    recorded = sorted(open_trace(path).rows(), key=lambda row: row.t_ns)
    names, found = {}, {}
    for one, two in zip(recorded, open_trace(back).rows(), strict=True):
        assert len(one.blocks) == len(two.blocks)
        # Reading forward, the k-th id stands for the whole prefix up to it.
        for k in range(1, len(one.blocks) + 1):
            old, now = one.blocks[:k], two.blocks[:k]
            assert names.setdefault(old, now) == now
            assert found.setdefault(now, old) == old


def test_requests_without_an_output_length_are_left_out_and_counted_unless_one_is_assumed(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("Timestamp,Request tokens,Response tokens\n1,5,0\n2,6,7\n")
    _, made = new(tmp_path, lambda out: rewrite.convert(open_trace(path), "azure", out, keep_assumed=False))
    assert (made.written, made.left_out) == (1, 1)
    _, made = new(tmp_path, lambda out: rewrite.convert(open_trace(path), "azure", out, keep_assumed=True))
    assert (made.written, made.left_out) == (2, 0)


@AGAIN
@given(rows=rows_drawn, factor=st.sampled_from([0.5, 2.0, 10.0]))
def test_scaling_divides_times_and_nothing_else(tmp_path, rows, factor):
    path = mooncake(tmp_path / "t", rows)
    scaled, _ = new(
        tmp_path, lambda out: rewrite.scale(open_trace(path), None, out, factor=factor, rate=None, seed=None)
    )
    before = sorted(open_trace(path).rows(), key=lambda row: row.t_ns)
    after = list(open_trace(scaled).rows())
    assert [(row.prompt_tokens, row.blocks) for row in after] == [(row.prompt_tokens, row.blocks) for row in before]
    first = before[0].t_ns
    for one, two in zip(before, after, strict=True):
        assert two.t_ns == pytest.approx((one.t_ns - first) / factor, abs=2)


def test_a_rate_is_reached_and_a_coarse_clock_spread(tmp_path):
    path = mooncake(tmp_path / "t", [(3000 * (n // 10), 5, 1) for n in range(100)])
    scaled, made = new(tmp_path, lambda out: rewrite.scale(open_trace(path), None, out, factor=None, rate=5.0, seed=1))
    times = [row.t_ns for row in open_trace(scaled).rows()]
    assert len(set(times)) == 100
    assert 99 / (times[-1] - times[0]) * 1e9 == pytest.approx(5.0, rel=0.15)
    assert "ticks spread by seed" in made.notes[0]


@pytest.mark.parametrize(("factor", "rate"), [(2.0, 2.0), (0.0, None), (None, -1.0)])
def test_a_speed_that_makes_no_sense_is_refused(tmp_path, factor, rate):
    path = mooncake(tmp_path / "t", [(0, 5, 1), (9, 5, 1)])
    with pytest.raises(UsageError, match=r"--by|--rate"):
        new(tmp_path, lambda out: rewrite.scale(open_trace(path), None, out, factor=factor, rate=rate, seed=None))


@AGAIN
@given(one=rows_drawn, two=rows_drawn)
def test_merging_keeps_every_request_and_mixes_up_no_prefixes(tmp_path, one, two):
    paths = [mooncake(tmp_path / "a", one), mooncake(tmp_path / "b", two)]
    traces = [open_trace(path, source=source) for source, path in enumerate(paths)]
    merged, made = new(tmp_path, lambda out: rewrite.merge(traces, None, out, weights=None, seed=1))
    assert made.written == len(one) + len(two)
    assert lengths(merged) == lengths(paths[0]) + lengths(paths[1])
    times = [row.t_ns for row in open_trace(merged).rows()]
    assert times == sorted(times)
    assert times[0] == 0
    distinct = [len({block for row in open_trace(path).rows() for block in row.blocks}) for path in (*paths, merged)]
    assert distinct[0] + distinct[1] == distinct[2]


def test_weights_draw_as_many_as_possible_over_the_span_of_the_first(tmp_path):
    first = mooncake(tmp_path / "a", [(1000 * n, 5, 1) for n in range(90)])
    second = mooncake(tmp_path / "b", [(10 * n, 6, 1) for n in range(50)])
    traces = [open_trace(first), open_trace(second, source=1)]
    merged, _ = new(tmp_path, lambda out: rewrite.merge(traces, None, out, weights=[9, 1], seed=1))
    assert lengths(merged) == {(5, 1): 90, (6, 1): 10}
    assert max(row.t_ns for row in open_trace(merged).rows()) <= 89_000_000_000
    for weights in ([1], [1, 0], [1, float("nan")]):
        with pytest.raises(UsageError, match="--weights"):
            new(tmp_path, lambda out, weights=weights: rewrite.merge(traces, None, out, weights=weights, seed=1))


def test_traces_of_several_formats_need_a_format_to_write(tmp_path):
    azure = tmp_path / "c.csv"
    azure.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5,374,44\n")
    traces = [open_trace(azure), open_trace(mooncake(tmp_path / "a", [(1, 5, 1)]), source=1)]
    with pytest.raises(UsageError, match="--to: the traces are of several formats"):
        new(tmp_path, lambda out: rewrite.merge(traces, None, out, weights=None, seed=1))
    with pytest.raises(UsageError, match="--to burstgpt: cannot be written"):
        new(tmp_path, lambda out: rewrite.merge(traces, "burstgpt", out, weights=None, seed=1))


def test_records_keep_their_lane_and_their_end_when_they_are_scaled(tmp_path):
    path = tmp_path / "t.jsonl"
    record = {"schema": "lanewise.trace/1", "request_id": "r", "endpoint": "chat", "outcome": "ok", "lane": "long"}
    record |= {"prompt_tokens": 5, "output_tokens": 6, "end_s": 0.25}
    path.write_text("".join(json.dumps(record | {"arrived_s": at}) + "\n" for at in (102.0, 100.0)))
    scaled, _ = new(tmp_path, lambda out: rewrite.scale(open_trace(path), None, out, factor=2.0, rate=None, seed=None))
    lines = [json.loads(line) for line in scaled.read_text().splitlines()]
    assert [line["arrived_s"] for line in lines] == [100.0, 101.0]
    assert all(line["lane"] == "long" and line["end_s"] == 0.25 for line in lines)
