"""The fault suite itself: its verdicts, its table of cases, and a sample of its rows on a real proxy."""

import json
import os
import subprocess
import sys
import zlib

import pytest

from tests.faults.case import CASES
from tests.faults.raw_recipes import RECIPES
from tests.faults.rules import unmet
from tests.faults.suite import MODULES

SAMPLE = [
    *("RAW-001", "RAW-010", "RAW-0901", "RAW-110", "RAW-142", "RAW-160", "RAW-195"),
    *("JSON-13", "INT-12", "INT-23", "LIFE-02", "LIFE-11", "LIFE-24", "LIFE-26", "OPS-14", "OPS-16"),
]
WRONG_IN_THE_NAIVE = ["RAW-000", "RAW-0901", "RAW-105", "RAW-142", "RAW-160"]


def run(root, out, *arguments):
    command = [sys.executable, "-m", "tests.faults", *arguments, "--out", str(out)]
    env = os.environ | {"FAULTS_CLIENTS": "off"}
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=120, check=False)
    return done, {row["id"]: row for row in json.loads(out.read_text("utf-8"))}


@pytest.fixture(scope="module")
def sample(root, tmp_path_factory):
    return run(root, tmp_path_factory.mktemp("faults") / "rows.json", *SAMPLE)[1]


@pytest.mark.parametrize("identity", SAMPLE)
def test_a_sample_of_the_fault_suite_passes(sample, identity):
    row = sample[identity]
    assert row["passed"], f"{row['input']}: {row['unmet']}"


def test_the_suite_sees_what_the_naive_forwarder_gets_wrong(root, tmp_path):
    done, rows = run(root, tmp_path / "rows.json", "--target", "naive", *WRONG_IN_THE_NAIVE)
    assert done.returncode == 0, done.stdout
    assert [row["passed"] for row in rows.values()] == [True, False, False, False, False]


def test_a_row_that_fails_makes_the_run_exit_3(root, tmp_path):
    done, rows = run(root, tmp_path / "rows.json", "CLI-04")
    assert (done.returncode, rows["CLI-04"]["passed"]) == (3, False)
    assert rows["CLI-04"]["unmet"][0].startswith("not run: needs ")


@pytest.mark.parametrize(
    ("rule", "value", "holds"),
    [
        (400, 400, True),
        (400, 200, False),
        (True, 1, False),
        ([1, 2], [1, 2], True),
        ({"at_most": 5}, 5, True),
        ({"at_most": 5}, None, False),
        ({"at_least": 1, "at_most": 5}, 6, False),
        ({"one_of": [400, 413]}, 413, True),
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1}, {"b": 1}, False),
        ({"a": {"contains": "x"}}, {"a": "xyz"}, True),
        ({"a": {"lacks": "x"}}, {"a": "xyz"}, False),
        ({"each": 200, "count": 2}, [200, 200], True),
        ({"each": 200}, [], False),
        ({"any_of": [{"a": 1}, {"b": 1}]}, {"b": 1}, True),
        ({"any_of": [{"a": 1}], "b": 2}, {"a": 1, "b": 3}, False),
        ({"matches": r"^\d+$"}, "12", True),
        ({"is_not": "x"}, "x", False),
    ],
)
def test_a_verdict_is_computed_from_rule_and_observation(rule, value, holds):
    assert (unmet(rule, value) == []) is holds


def test_every_row_has_a_rule_that_can_fail():
    assert len(CASES) > 250, MODULES
    assert [one.id for one in CASES.values() if not unmet(one.expected, {})] == []


@pytest.mark.shared
def test_the_cases_cover_every_row_of_the_public_list(shared):
    lines = (shared / "faults/faults.jsonl").read_text("utf-8").splitlines()
    assert set(CASES) == {json.loads(line)["id"] for line in lines}


@pytest.mark.shared
def test_the_recipes_make_the_bytes_of_the_public_corpus(shared):
    for path in sorted((shared / "faults/raw").glob("*.http")):
        number = path.name.partition("-")[0]
        made, wanted = RECIPES[number](), path.read_bytes()
        if number in COMPRESSED:
            made, wanted = inflated(made)[:100], inflated(wanted)[:100]
        assert made == wanted, path.name


COMPRESSED = {"170", "171", "172", "174"}


def inflated(request):
    """What is inside, however often it was compressed: who wrote it, and when, may differ."""
    data = request.partition(b"\r\n\r\n")[2]
    while data.startswith(b"\x1f\x8b"):
        data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data[10:], 1000)
    return data
