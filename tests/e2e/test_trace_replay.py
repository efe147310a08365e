"""Recorded traffic through lanewise at the simulated engine: nothing is lost, nothing is changed, everything is told.

The whole files run with `python -m tools.acceptance.trace_replay`; how late requests leave is measured there too.
"""

import csv
import json
import random

import pytest

from tools.acceptance.joining import join

pytestmark = pytest.mark.slow

FILES = {
    "azure conversation": "azure/AzureLLMInferenceTrace_conv.csv",
    "azure code": "azure/AzureLLMInferenceTrace_code.csv",
    "mooncake": "mooncake/conversation_trace.jsonl",
}
PUBLIC_ROWS = 300
NEVER_LATE = "--late", "3600"
"""Lateness is the machine's as much as ours: measured by hand, not asserted while other tests run."""


def replayed(acceptance, out, *traces, rows, speed, more=()):
    pace = "--rate", str(2.5 * speed), "--speed", str(speed)
    return acceptance("trace_replay", *traces, "--rows", rows, *pace, *NEVER_LATE, *more, "--out", out)


def assert_whole(result, rows):
    assert result["faults"] == {}
    assert result["passed"]
    assert result["rows"] == result["planned"] == rows
    assert sum(result["outcomes"].values()) == sum(result["recorded"].values()) == rows
    assert sum(result["pairs"].values()) == rows
    assert result["answers_compared"] == result["outcomes"]["ok"] > 0
    assert result["bytes_compared"] > 100 * result["answers_compared"]
    assert result["lateness_s"]["p50"] >= 0


def test_a_small_trace_of_every_format_comes_through_whole(acceptance, tmp_path):
    rng = random.Random(7)
    lengths = [(rng.choice((40, 300, 1500, 6000)), rng.randint(1, 60)) for _ in range(80)]
    traces = [azure(tmp_path, lengths), mooncake(tmp_path, lengths), records(tmp_path, lengths)]
    for result in replayed(acceptance, tmp_path / "out", *traces, rows=80, speed=16):
        assert_whole(result, 80)
        assert result["parts"] == 0


def test_prompts_fed_in_parts_come_through_whole(acceptance, tmp_path):
    rng = random.Random(7)
    trace = azure(tmp_path, [(rng.choice((40, 3000, 6000)), rng.randint(1, 60)) for _ in range(60)])
    (result,) = replayed(acceptance, tmp_path / "out", trace, rows=60, speed=16, more=("--installments", "on"))
    assert_whole(result, 60)
    assert result["parts"] > 0


def test_clients_that_leave_are_told_by_both_sides(acceptance, tmp_path):
    """Without deadlines the queue grows until patience ends: in the queue, in prefill and while tokens come."""
    rng = random.Random(7)
    trace = azure(tmp_path, [(rng.choice((40, 3000, 9000)), rng.randint(50, 300)) for _ in range(100)])
    more = "--set", "scheduling.drop_factor=never", "--patience", "3s", "6s"
    (result,) = replayed(acceptance, tmp_path / "out", trace, rows=100, speed=16, more=more)
    assert_whole(result, 100)
    assert result["pairs"]["cancelled/client_gone"] > 10


@pytest.mark.shared
@pytest.mark.parametrize("name", FILES)
def test_every_row_of_a_public_trace_has_one_outcome_and_its_bytes(name, acceptance, shared, tmp_path):
    (result,) = replayed(acceptance, tmp_path, shared / "traces" / FILES[name], rows=PUBLIC_ROWS, speed=16)
    assert_whole(result, PUBLIC_ROWS)
    if name == "mooncake":  # at this rate the engine is far over what it can do, and some prompts can never fit
        assert result["outcomes"]["rejected"] > 0
        assert result["pairs"]["error/too_long"] == result["outcomes"]["error"] > 0


def azure(folder, lengths):
    path = folder / "azure.csv"
    with path.open("w", newline="") as out:
        rows = [(f"2023-11-16 18:15:{0.4 * at:010.7f}", *both) for at, both in enumerate(lengths)]
        csv.writer(out, lineterminator="\n").writerows([("TIMESTAMP", "ContextTokens", "GeneratedTokens"), *rows])
    return path


def mooncake(folder, lengths):
    path = folder / "mooncake.jsonl"
    rows = [
        {
            "timestamp": at // 8 * 3000,
            "input_length": prompt,
            "output_length": output,
            "hash_ids": [block if block < 2 else 100 * at + block for block in range(-(-prompt // 512))],
        }
        for at, (prompt, output) in enumerate(lengths)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def records(folder, lengths):
    path = folder / "trace-20260101T000000Z-000001.jsonl"
    rows = [
        {
            "schema": "lanewise.trace/1",
            "arrived_s": 1_790_000_000 + 0.4 * at,
            "request_id": f"r{at}",
            "endpoint": "chat",
            "outcome": "ok",
            "prompt_tokens": prompt,
            "output_tokens": output,
        }
        for at, (prompt, output) in enumerate(lengths)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# The joining itself: a check that could not fail would prove nothing.

SHOT = {"index": 0, "outcome": "ok", "sent": 0.1, "status": 200, "prompt_tokens": 9, "output_tokens": 3}
SHOT |= {"body_bytes": 50, "body_crc32": 7, "end": 4.0}
RECORD = {"request_id": "s-0", "outcome": "ok", "status": 200, "prompt_tokens": 9, "output_tokens": 3}
RECORD |= {"response_bytes": 50, "arrived_s": 1000.1, "end_s": 1.9}
SENT = {"request_id": "s-0", "status": 200, "bytes": 50, "crc32": 7, "whole": True}


def faults(shots=(SHOT,), records=(RECORD,), ledger=(SENT,), planned=1):
    return set(join(planned, "s", 2.0, shots=shots, records=records, ledger=ledger).faults)


def test_three_sides_that_agree_have_no_fault():
    assert faults() == set()


@pytest.mark.parametrize(
    ("sides", "fault"),
    [
        ({"shots": ()}, "row not in the journal exactly once"),
        ({"shots": (SHOT, SHOT)}, "row not in the journal exactly once"),
        ({"records": ()}, "request not in the record exactly once"),
        ({"records": (RECORD, RECORD)}, "request not in the record exactly once"),
        ({"records": (RECORD | {"outcome": "expired"},)}, "journal says ok, record says expired"),
        ({"records": (RECORD | {"status": 429},)}, "another status in the record than in the journal"),
        ({"records": (RECORD | {"output_tokens": 2},)}, "the record has other lengths than the plan"),
        ({"records": (RECORD | {"response_bytes": 49},)}, "the record counts other bytes than the engine sent"),
        ({"records": (RECORD, RECORD | {"request_id": "x"})}, "the record has a request that was not planned"),
        ({"ledger": ()}, "complete answer not in the engine's ledger exactly once"),
        ({"ledger": (SENT | {"crc32": 8},)}, "the client received other bytes than the engine sent"),
        ({"ledger": (SENT | {"whole": False},)}, "the client received other bytes than the engine sent"),
        ({"ledger": (SENT, SENT | {"request_id": "x"})}, "the engine's ledger has a request that was not planned"),
        (
            {"ledger": (SENT, SENT | {"request_id": "inst-s-0-0"})},
            "the record counts other parts than the engine answered",
        ),
        ({"records": (RECORD | {"parts": 1},)}, "the record counts other parts than the engine answered"),
        ({"planned": 2}, "row not in the journal exactly once"),
    ],
)
def test_a_side_that_differs_is_a_fault(sides, fault):
    assert faults(**sides) == {fault}


def test_parts_that_the_record_knows_are_no_fault():
    parts = [SENT | {"request_id": f"inst-s-0-{number}", "bytes": 9} for number in range(2)]
    assert faults(records=(RECORD | {"parts": 2},), ledger=(*parts, SENT)) == set()


@pytest.mark.parametrize(
    ("end_s", "fault"), [(1.92, set()), (1.98, set()), (1.7, {"journal says cancelled, record says expired"})]
)
def test_an_answer_that_crosses_its_leaving_client_is_no_fault(end_s, fault):
    left = SHOT | {"outcome": "cancelled", "status": None}
    assert faults(shots=(left,), records=(RECORD | {"outcome": "expired", "end_s": end_s},)) == fault


def test_a_row_that_was_never_sent_needs_no_record():
    unsent = {"index": 0, "outcome": "cancelled", "sent": None}
    assert faults(shots=(unsent,), records=(), ledger=()) == set()
