"""What lanewise records, lanewise-load replays: the same arrivals and the same lengths.

How late requests leave is measured by hand (`python -m tools.acceptance.record_replay`), not asserted while other tests
run; that they are planned at their recorded times is.
"""

import json
import random
from argparse import Namespace
from pathlib import Path

import pytest

from tools.acceptance.record_replay import differences, judged

NEVER_LATE = "--late", "3600"


@pytest.fixture
def mooncake(tmp_path):
    rng = random.Random(3)
    path = tmp_path / "mooncake.jsonl"
    lengths = [(rng.choice((40, 300, 1500, 3000)), rng.randint(2, 40)) for _ in range(50)]
    rows = [
        {"timestamp": 300 * at, "input_length": prompt, "output_length": output}
        | {"hash_ids": [block if block < 2 else 100 * at + block for block in range(-(-prompt // 512))]}
        for at, (prompt, output) in enumerate(lengths)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.slow
def test_a_recording_is_replayed_at_its_times_and_with_its_lengths(acceptance, mooncake, tmp_path):
    pace = "--rate", "25", "--speed", "10", "--rows", "50"
    result = acceptance("record_replay", mooncake, *pace, *NEVER_LATE, "--out", tmp_path / "out")
    assert result["held"] == dict.fromkeys(result["held"], True)
    assert result["passed"]
    assert result["requests"] == 50
    assert result["pairs"] > 25
    assert result["schedule_off_max_s"] <= 2e-6


# A check that could not fail would prove nothing.

RECORDS = [
    {"arrived_s": 10.0 + at, "endpoint": "chat", "outcome": "ok", "prompt_tokens": 100, "output_tokens": 50}
    for at in range(3)
]


@pytest.fixture
def judge(tmp_path):
    def run(*, due=(0.0, 2.0, 4.0), started=(0.0, 2.0, 4.0), second=None, late=0.005):
        run = tmp_path / "run"
        run.mkdir()
        (run / "manifest.json").write_text(json.dumps({"salt": "s", "schema": "lanewise.run/1"}))
        shots = [{"index": n, "row": n + 1, "due": due[n], "started": started[n]} for n in range(3)]
        (run / "shots.jsonl").write_text("".join(json.dumps(shot) + "\n" for shot in shots))
        again = second or [record | {"request_id": f"s-{n}"} for n, record in enumerate(RECORDS)]
        asked = Namespace(speed=2.0, late=late, trace=Path("t"), out=tmp_path)
        return {name for name, holds in judged(RECORDS, again, tmp_path, asked)["held"].items() if not holds}

    return run


def test_equal_passes_hold(judge):
    assert judge() == set()


def test_another_schedule_is_found(judge):
    assert judge(due=(0.0, 2.0, 4.1), started=(0.0, 2.0, 4.1)) == {"same schedule"}


def test_lateness_is_found(judge):
    assert judge(started=(0.0, 2.0, 4.5)) == {"on time"}


def test_a_request_that_is_missing_is_found(judge):
    assert judge(second=[record | {"request_id": f"s-{n}"} for n, record in enumerate(RECORDS[:2])]) == {
        "every request again"
    }


@pytest.mark.parametrize("length", ["prompt_tokens", "output_tokens"])
def test_another_length_is_found(judge, length):
    second = [record | {"request_id": f"s-{n}"} for n, record in enumerate(RECORDS)]
    second[1] = second[1] | {length: second[1][length] + 2}
    assert judge(second=second) == {"same lengths"}


def test_differences_are_shares_of_what_was_recorded():
    pairs = [({"n": 100}, {"n": 110}), ({"n": 100}, {"n": 90})]
    assert differences("n", pairs) == {"total": 0.0, "worst": 0.1}
