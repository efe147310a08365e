"""The command line as a process: exit codes, streams, and what a kill leaves behind."""

import asyncio
import json
import signal
import sys

import pytest

from loadgen.cli import main
from loadgen.journal import RunFolder


async def start(*arguments):
    command = [sys.executable, "-m", "loadgen", *map(str, arguments)]
    return await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )


async def call(*arguments):
    process = await start(*arguments)
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


@pytest.fixture
def here(capsys):
    """The same command inside this process, for calls that need no server."""

    def run(*arguments):
        with pytest.raises(SystemExit) as stopped:
            main([str(one) for one in arguments])
        printed = capsys.readouterr()
        return stopped.value.code, printed.out, printed.err

    return run


@pytest.fixture
def trace(asking):
    """An Azure trace of two requests."""
    return asking("http://127.0.0.1:1", rows=2).source.traces[0]


async def test_replay_prints_one_document_and_people_read_on_stderr(engine, trace, tmp_path):
    code, out, err = await call("replay", trace, "--target", engine.url, "--out", tmp_path / "a", "--json")
    document = json.loads(out)
    assert (code, document["schema"], document["lanes"]["all"]["outcomes"]["ok"]) == (0, "lanewise.summary/1", 2)
    assert "goodput" in err


async def test_summarise_and_compare_read_what_replay_wrote(engine, trace, tmp_path):
    for name in ("a", "b"):
        options = ("--target", engine.url, "--out", tmp_path / name, "--set", f"cap={name}", "--rate", "50")
        assert (await call("replay", trace, *options))[0] == 0
    code, out, _ = await call("summarise", tmp_path / "a", "--json")
    assert (code, json.loads(out)["label"]) == (0, "a")
    code, out, _ = await call("compare", tmp_path / "a", tmp_path / "b", "--force", "--json")
    assert code in (0, 3)
    assert json.loads(out)["changed_parameters"] == {"cap": ["a", "b"]}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["replay", "TRACE", "--out", "OUT"], "--target"),
        (["replay", "TRACE", "--target", "http://127.0.0.1:1", "--out", "OUT", "--speeed", "3"], "--speeed"),
        (["replay", "TRACE", "--target", "ftp://x", "--out", "OUT"], "--target ftp://x"),
        (["replay", "TRACE", "--target", "http://127.0.0.1:1", "--out", "OUT", "--start", "soon"], "duration"),
        (["replay", "--workload", "nope", "--rows", "3", "--target", "http://127.0.0.1:1", "--out", "OUT"], "nope"),
        (["replay", "none.csv", "--target", "http://127.0.0.1:1", "--out", "OUT"], "none.csv: no such file"),
        (["summarise", "OUT"], "run folder"),
        (["trace", "info", "none.csv"], "none.csv: no such file"),
        (["nonsense"], "nonsense"),
    ],
)
def test_a_wrong_call_exits_with_2_and_one_sentence(here, trace, tmp_path, arguments, said):
    places = {"TRACE": trace, "OUT": tmp_path / "out"}
    code, out, err = here(*(places.get(one, one) for one in arguments))
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err
    assert not (tmp_path / "out").exists()


def test_a_dead_target_exits_with_1(here, trace, tmp_path, unused_tcp_port):
    code, _, err = here("replay", trace, "--target", f"http://127.0.0.1:{unused_tcp_port}", "--out", tmp_path / "a")
    assert code == 1
    assert "does not answer: connection refused; is it running?" in err


DRY = ("--target", "http://127.0.0.1:1", "--out", "never", "--dry-run", "--json")


def test_a_dry_run_needs_no_target_that_answers(here, trace):
    code, out, _ = here("replay", trace, *DRY)
    document = json.loads(out)
    assert (code, document["requests"], document["short"]) == (0, 2, 2)


def test_a_workload_can_be_planned_by_name(here):
    code, out, _ = here("replay", "--workload", "mixed", "--rows", "200", "--rate", "20", *DRY)
    document = json.loads(out)
    assert (code, document["requests"], document["workload"]) == (0, 200, "mixed")
    assert document["span_s"] == pytest.approx(199 / 20)
    assert document["long"] > 10


def test_durations_have_units(here, asking):
    trace = asking("http://127.0.0.1:1", rows=50, gap=1.0).source.traces[0]
    code, out, _ = here("replay", trace, "--start", "500ms", "--duration", "0.5m", *DRY)
    assert (code, json.loads(out)["window"]) == (0, {"start_s": 0.5, "duration_s": 30.0, "rows": None})
    assert json.loads(out)["requests"] == 30


def test_trace_info_describes_a_file(here, trace):
    code, out, _ = here("trace", "info", trace, "--json")
    document = json.loads(out)
    assert (code, document["rows"], document["files"][0]["format"]) == (0, 2, "azure")
    assert document["prompt_tokens"]["p50"] == 10


@pytest.mark.shared
def test_trace_info_sees_the_coarse_clock_and_the_shared_prefixes_of_mooncake(here, shared):
    code, out, _ = here("trace", "info", shared / "traces/mooncake/conversation_trace.jsonl", "--json")
    document = json.loads(out)
    assert (code, document["rows"], document["coarse_clock_s"]) == (0, 6015, 3.0)
    assert document["shared_prefix_share"] == pytest.approx(0.352, abs=0.001)
    assert document["files"][0]["time_unit"] == "milliseconds from the start"


async def test_ctrl_c_exits_with_130_and_leaves_a_readable_run(engine, asking, tmp_path):
    trace = asking(engine.url, rows=1000, gap=0.05).source.traces[0]
    process = await start("replay", trace, "--target", engine.url, "--out", tmp_path / "a", "--json")
    await engine.asked_for(3)
    process.send_signal(signal.SIGINT)
    out, _ = await process.communicate()
    assert process.returncode == 130
    lane = json.loads(out)["lanes"]["all"]
    assert lane["outcomes"]["ok"] >= 3
    assert lane["goodput"] == 1
    assert lane["sent"] + lane["unsent"] == 1000


async def test_kill_9_leaves_what_had_been_finished(engine, asking, tmp_path):
    trace = asking(engine.url, rows=1000, gap=0.02).source.traces[0]
    process = await start("replay", trace, "--target", engine.url, "--out", tmp_path / "a")
    await engine.asked_for(80)
    process.kill()
    await process.communicate()
    run = RunFolder(tmp_path / "a")
    assert run.manifest()["complete"] is False
    assert {result.outcome for result in run.results()} == {"ok"}
    code, out, _ = await call("summarise", tmp_path / "a", "--json")
    assert (code, json.loads(out)["complete"]) == (0, False)


async def test_help_needs_nothing_heavy():
    script = "import sys, loadgen.cli; print([m for m in ('aiohttp', 'numpy', 'uvloop') if m in sys.modules])"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert out.decode().strip() == "[]"
