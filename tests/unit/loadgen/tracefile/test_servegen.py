import json

import numpy as np
import pytest

from loadgen.failure import UsageError
from loadgen.tracefile import Reading, open_trace
from loadgen.tracefile.row import LineError
from loadgen.tracefile.servegen import read_lengths, window_of

RATE_2 = "2,1,Gamma,1,0.5"


@pytest.fixture
def chunk(tmp_path):
    def write(*lines, lengths=None):
        path = tmp_path / "chunk-7-trace.csv"
        path.write_text("".join(line + "\n" for line in lines))
        published = lengths or {"0": {"input_tokens": "{10: 0.5, 20: 0.5}", "output_tokens": "{3: 1.0}"}}
        (tmp_path / "chunk-7-dataset.json").write_text(json.dumps(published))
        return path

    return write


def test_a_window_keeps_its_rate_and_its_lengths(chunk):
    path = chunk(*(f"{start},{RATE_2}" for start in range(0, 60_000, 600)))
    rows = list(open_trace(path).rows())
    assert open_trace(path).format.name == "servegen"
    assert len(rows) == pytest.approx(120_000, rel=0.01)
    assert {row.output_tokens for row in rows} == {3}
    assert np.mean([row.prompt_tokens for row in rows]) == pytest.approx(15, rel=0.01)
    times = [row.t_ns for row in rows]
    assert times == sorted(times)
    assert len({row.number for row in rows}) == len(rows)


def test_equal_seeds_draw_equal_traffic(chunk):
    path = chunk(f"0,{RATE_2}")
    one, again, other = (list(open_trace(path, reading=Reading(seed=seed)).rows()) for seed in (1, 1, 2))
    assert one == again != other


def test_a_later_part_is_the_same_whether_or_not_the_earlier_ones_are_drawn(chunk):
    path = chunk(*(f"{start},{RATE_2}" for start in range(0, 6000, 600)))
    whole = list(open_trace(path).rows())
    part = list(open_trace(path, reading=Reading(start_s=3000, end_s=3600)).rows())
    first = whole[0].t_ns / 1e9

    def inside(rows):
        return [row for row in rows if first + 3000 <= row.t_ns / 1e9 < first + 3600]

    assert inside(part) == inside(whole) != []
    assert len(part) < len(whole) / 2


def test_nothing_comes_before_lengths_are_published_or_without_a_rate(chunk):
    lengths = {
        "600": {"input_tokens": "{5: 1}", "output_tokens": "{5: 1}"},
        "0": {"input_tokens": "{}", "output_tokens": "{}"},
    }
    rows = list(open_trace(chunk(f"0,{RATE_2}", f"600,{RATE_2}", "1200,0,0,,0,0", lengths=lengths)).rows())
    assert rows
    assert all(600e9 <= row.t_ns < 1200e9 for row in rows)


@pytest.mark.parametrize("line", ["a,b,c,d,e,f", "0,1,1", "0,5,1,Pareto,1,1", "0,-1,1,Gamma,1,1", "0,1e9,1,Gamma,1,1"])
def test_a_window_that_makes_no_sense_is_a_bad_line(line):
    with pytest.raises(LineError):
        window_of(line, 1)


def test_lengths_that_are_missing_or_broken_are_named(chunk):
    path = chunk(f"0,{RATE_2}", lengths={"0": 5})
    with pytest.raises(UsageError, match=r"chunk-7-dataset\.json: is no ServeGen dataset"):
        read_lengths(path)
    path.with_name("chunk-7-dataset.json").unlink()
    with pytest.raises(UsageError, match=r"put ServeGen's chunk-7-dataset\.json beside it"):
        read_lengths(path)


@pytest.mark.shared
def test_a_published_chunk_gives_its_published_rate(shared):
    path = shared / "traces/servegen/language_m-large/chunk-34-trace.csv"
    rows = list(open_trace(path, reading=Reading(end_s=3600)).rows())
    published = [float(line.split(",")[1]) for line in path.read_text().splitlines()[:7]]
    assert len(rows) == pytest.approx(600 * sum(published), rel=0.05)
