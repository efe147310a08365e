"""`lanewise-load trace …` as a command: what it prints where, exit codes, and every step after the other."""

import json
import subprocess
import sys
import tracemalloc

import pytest

from loadgen.cli import main
from loadgen.options import SourceOptions
from loadgen.source import read_source
from loadgen.trace import rewrite
from loadgen.trace.output import Output
from loadgen.tracefile import open_trace


@pytest.fixture
def here(capsysbinary):
    """The command inside this process: exit code, stdout, stderr."""

    def run(*arguments):
        with pytest.raises(SystemExit) as stopped:
            main(["trace", *map(str, arguments)])
        printed = capsysbinary.readouterr()
        return stopped.value.code, printed.out.decode(), printed.err.decode()

    return run


@pytest.fixture
def mooncake(tmp_path):
    def write(rows, name="t.jsonl"):
        path = tmp_path / name
        path.write_text(
            "".join(
                f'{{"timestamp":{100 * n},"input_length":{700 + n % 3 * 3000},"output_length":5,'
                f'"hash_ids":{[0, *range(9 * n, 9 * n + (1, 7, 13)[n % 3])]}}}\n'
                for n in range(rows)
            )
        )
        return path

    return write


def test_steps_follow_each_other_and_the_last_file_knows_them_all(here, mooncake, tmp_path):
    a, b, c, d = (tmp_path / name for name in ("a.jsonl", "b.jsonl.gz", "c.jsonl", "d.csv"))
    assert here("cut", mooncake(90), "--rows", "60", "--out", a)[0] == 0
    assert here("scale", a, "--by", "2", "--out", b)[0] == 0
    assert here("convert", b, "--to", "bailian", "--out", c)[0] == 0
    assert here("merge", c, b, "--to", "azure", "--out", d)[0] == 0
    code, out, _ = here("info", d, "--json")
    found = json.loads(out)
    assert (code, found["rows"]) == (0, 120)
    (origin,) = found["files"][0]["origin"]
    assert origin["command"] == "trace merge"
    assert [step["command"] for step in origin["sources"][0]["origin"]] == ["trace cut", "trace scale", "trace convert"]


def test_what_is_lost_is_said(here, mooncake, tmp_path):
    _, out, _ = here("convert", mooncake(4), "--to", "azure", "--out", tmp_path / "a.csv", "--json")
    document = json.loads(out)
    assert document["requests_written"] == 4
    assert document["lost"] == ["shared prefixes (block ids): 4 requests"]
    assert "1970-01-01" in document["notes"][0]


def test_a_trace_on_stdout_is_nothing_but_the_trace(here, mooncake, tmp_path):
    code, out, err = here("cut", mooncake(9), "--rows", "3", "--out", "-")
    assert (code, len(out.splitlines())) == (0, 3)
    assert {tuple(json.loads(line)) for line in out.splitlines()} == {
        ("timestamp", "input_length", "output_length", "hash_ids")
    }
    assert "requests written" in err
    assert [path.name for path in tmp_path.iterdir()] == ["t.jsonl"]


def test_a_made_trace_can_be_replayed(here, tmp_path):
    path = tmp_path / "s.jsonl"
    options = ("--rows", "50", "--rates", "5s@2,5s@2..10", "--prompt", "lognormal:800,1", "--output", "uniform:1..9")
    assert here("synth", *options, "--to", "mooncake", "--out", path)[0] == 0
    plan = read_source(SourceOptions(traces=(path,))).plan
    assert 20 < len(plan) <= 50
    assert plan.span_s < 10
    code, out, _ = here("synth", "--workload", "chat", "--rows", "20", "--out", tmp_path / "w.csv")
    assert (code, [line.split()[0] for line in out.splitlines()]) == (0, ["out", "requests"])
    assert len(read_source(SourceOptions(traces=(tmp_path / "w.csv",))).plan) == 20


def test_bad_lines_stop_it_or_are_counted_as_asked(here, mooncake, tmp_path):
    path = mooncake(3)
    with path.open("a") as file:
        file.write("oops\n")
    code, out, err = here("convert", path, "--to", "azure", "--out", tmp_path / "a.csv")
    assert (code, out) == (2, "")
    assert "t.jsonl:4: is not JSON" in err
    assert not (tmp_path / "a.csv").exists()
    code, out, _ = here(
        "convert", path, "--to", "azure", "--out", tmp_path / "a.csv", "--on-bad-line", "skip", "--json"
    )
    assert (code, json.loads(out)["bad_lines"]["skipped"]) == (0, 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["merge", "TRACE", "--out", "OUT"], "give two trace files or more"),
        (["merge", "TRACE", "TRACE", "--weights", "a,b", "--out", "OUT"], "--weights a,b: is no list of numbers"),
        (["convert", "TRACE", "--to", "burstgpt", "--out", "OUT"], "--to burstgpt: cannot be written"),
        (["scale", "TRACE", "--by", "0", "--out", "OUT"], "--by 0: must be above 0"),
        (["cut", "TRACE", "--lane", "middle", "--out", "OUT"], "--lane middle: short or long"),
        (["cut", "TRACE", "--start", "9h", "--out", "OUT"], "no request lies in that part"),
        (["cut", "TRACE", "--out", "TRACE"], "is there already"),
        (["synth", "--rows", "5", "--out", "OUT"], "give --workload, or --rows, --prompt and --output"),
        (["synth", "--rows", "5", "--prompt", "5", "--output", "6", "--out", "-"], "give its --rate, or --rates"),
        (["synth", "--workload", "chat", "--prompt", "5", "--out", "OUT"], "--workload says rate and lengths"),
        (["info", "none.csv"], "none.csv: no such file"),
        (["info", "FOLDER"], "is a directory; name the trace files in it"),
    ],
)
def test_a_wrong_call_exits_with_2_and_one_sentence(here, mooncake, tmp_path, arguments, said):
    places = {"TRACE": mooncake(3), "OUT": tmp_path / "out", "FOLDER": tmp_path}
    code, out, err = here(*(places.get(one, one) for one in arguments))
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_what_people_read_has_no_notation_of_a_programming_language(here, mooncake):
    code, out, _ = here("info", mooncake(30))
    assert code == 0
    assert "shared prefixes" in out
    assert not set("{}[]'") & set(out)


@pytest.mark.parametrize("command", ["info", "cut", "scale", "convert", "merge", "synth"])
def test_help_needs_nothing_heavy(command):
    code = (
        "import sys; from loadgen.cli import app\n"
        f"app(['trace', '{command}', '--help'], result_action='return_value')\n"
        "print([name for name in ('numpy', 'aiohttp', 'pydantic') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_memory_grows_by_a_few_bytes_a_row_and_not_with_what_the_rows_hold(mooncake, tmp_path):
    """Between 500 and 3,000 rows: 2,500 rows are over 1 MB of lines and ids, of which nothing may stay."""

    def peak(rows):
        trace = open_trace(mooncake(rows, f"{rows}.jsonl"))
        tracemalloc.start()
        with Output(tmp_path / "out", force=True) as out:
            rewrite.cut(trace, rewrite.Part(start_s=1.0), out)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    small, large = peak(500), peak(3_000)
    assert (large - small) / 2_500 < 40
