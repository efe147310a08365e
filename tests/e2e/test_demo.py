"""The demo as a user starts it: real processes, the table, the folders, the exit code."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from loadgen.demo import QUICK

pytestmark = pytest.mark.slow


def command(out, *more):
    return [sys.executable, "-m", "loadgen", "demo", "--quick", "--out", str(out), *more]


def children_of(folder):
    """Command lines of every process that works for this demo."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(folder) in line and "demo" not in line.split(str(folder))[0]:
            found.append(line)
    return found


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "out"
    done = subprocess.run(command(out, "--json"), capture_output=True, text=True, timeout=200, check=False)
    return out, done


def test_the_demo_shows_the_effect_and_ends_with_zero(demo):
    _, done = demo
    document = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert document["passed"]
    checks = {check["name"]: check for check in document["checks"]}
    assert checks["short_ttft_p99_ratio"]["value"] <= 0.5
    assert checks["long_completed_ratio"]["value"] >= 0.9
    assert checks["installments_goodput"]["value"] >= checks["installments_goodput"]["limit"]


def test_the_table_and_the_conditions_are_on_stderr(demo):
    out, done = demo
    said = ("TTFT, short, p99", "goodput, all", "computed, not measured", "1/3 directly", "2/3 through", "3/3 with")
    for words in (*said, str(out)):
        assert words in done.stderr


def test_every_request_has_exactly_one_outcome_in_both_journals_and_in_the_proxys_trace(demo):
    out, _ = demo
    for run in ("direct", "lanewise", "installments"):
        shots = lines(out / run / "shots.jsonl")
        assert sorted(shot["index"] for shot in shots) == list(range(QUICK.rows))
        assert json.loads((out / run / "manifest.json").read_text())["complete"]
    for run in ("lanewise", "installments"):
        (trace,) = (out / f"{run}-trace").glob("trace-*.jsonl")
        records = [record for record in lines(trace) if record["endpoint"] == "completions"]
        assert len(records) == len({record["request_id"] for record in records}) == QUICK.rows
        served = sum(record["outcome"] == "ok" for record in records)
        assert served == sum(shot["outcome"] == "ok" for shot in lines(out / run / "shots.jsonl"))
        assert any("parts" in record for record in records) == (run == "installments")


def test_all_passes_sent_the_same_plan_with_prompts_of_their_own(demo):
    out, _ = demo
    runs = ("direct", "lanewise", "installments")
    one, two, three = (json.loads((out / run / "manifest.json").read_text()) for run in runs)
    assert one["plan"]["hash"] == two["plan"]["hash"] == three["plan"]["hash"]
    assert len({one["salt"], two["salt"], three["salt"]}) == 3
    assert one["parameters"] == {"proxy": "none"}
    assert json.loads((out / "comparison.json").read_text())["changed_parameters"]["proxy"] == [
        "none",
        "lanewise strict",
    ]


def test_the_page_is_there_and_the_children_are_gone(demo):
    out, _ = demo
    assert (out / "index.html").read_text().startswith("<!doctype html>")
    assert children_of(out) == []


def test_ctrl_c_leaves_a_readable_partial_result_and_no_child(tmp_path):
    out = tmp_path / "out"
    with subprocess.Popen(command(out, "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        while "1/3 directly" not in running.stderr.readline():
            assert running.poll() is None
        os.kill(running.pid, signal.SIGINT)
        stdout, _ = running.communicate(timeout=60)
    document = json.loads(stdout)
    assert running.returncode == 130
    assert document["interrupted"]
    assert not document["passed"]
    assert len(lines(out / "direct" / "shots.jsonl")) == QUICK.rows
    assert not json.loads((out / "direct" / "manifest.json").read_text())["complete"]
    assert children_of(out) == []
