"""Exports of a run that was replayed, read by those they are for."""

import asyncio
import json
import subprocess
from pathlib import Path

import pytest

from loadgen.cli import main
from loadgen.replay import replay_in_loop


@pytest.fixture
async def run(engine, asking):
    return (await replay_in_loop(asking(engine.url, rows=5))).path


def exported(*arguments):
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    return stopped.value.code


async def test_promtool_makes_blocks_of_it(run, tmp_path, promtools):
    file = tmp_path / "run.txt"
    assert (
        await asyncio.to_thread(exported, "export", run, "--format", "openmetrics", "--step", "10ms", "--out", file)
        == 0
    )
    command = [
        str(promtools / "promtool"),
        "tsdb",
        "create-blocks-from",
        "openmetrics",
        str(file),
        str(tmp_path / "data"),
    ]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    assert [path.name for path in (tmp_path / "data").glob("*/meta.json")] == ["meta.json"]


async def test_the_llm_d_report_is_one_document(run, tmp_path):
    file = tmp_path / "report.json"
    assert await asyncio.to_thread(exported, "export", run, "--format", "llm-d", "--out", file) == 0
    document = json.loads(await asyncio.to_thread(file.read_text))
    assert document["results"]["request_performance"]["aggregate"]["requests"]["total"] == 5


async def test_shots_become_a_table(run, tmp_path):
    file = tmp_path / "shots.csv"
    assert await asyncio.to_thread(exported, "shots", run, "--out", file) == 0
    assert len((await asyncio.to_thread(file.read_text)).splitlines()) == 6


def test_a_file_that_cannot_be_written_is_exit_code_1(made_run, capsys):
    assert exported("shots", made_run, "--out", Path("/nowhere/shots.csv")) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_parquet_wants_a_file(made_run, capsys):
    assert exported("shots", made_run, "--format", "parquet") == 2
    assert "--out FILE" in capsys.readouterr().err


@pytest.fixture
def made_run(tmp_path):
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps({"schema": "lanewise.run/1", "complete": True}))
    (folder / "shots.jsonl").write_text("")
    return folder


async def test_the_report_is_one_file(run, tmp_path):
    file = tmp_path / "run.html"
    assert await asyncio.to_thread(exported, "report", run, "--out", file, "--lang", "zh") == 0
    assert (await asyncio.to_thread(file.read_text)).startswith("<!doctype html>")


async def test_a_report_of_two_runs_that_cannot_be_compared_says_why(run, tmp_path):
    file = tmp_path / "two.html"
    assert await asyncio.to_thread(exported, "report", run, run, "--out", file) == 0
    assert "Not comparable" in await asyncio.to_thread(file.read_text)
