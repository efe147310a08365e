"""Against a real vLLM on the CPU: the step formula fits its logged steps, and its recorded runs are replayed."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from loadgen.sim.drive import Delays, Drive
from loadgen.sim.engine import Engine
from loadgen.sim.policies import Direct
from loadgen.sim.profile import load_profile
from loadgen.sim.workloads import Arrival

pytestmark = pytest.mark.shared

FLAGS = {
    "A2": {},
    "A3": {},
    "B2": {"max_num_batched_tokens": 512},
    "C2": {"long_prefill_token_threshold": 256},
    "D2": {"max_num_seqs": 4},
    "D1": {"max_num_seqs": 4},
}
OUTSIDE_MS = (1.0, 0.07)
"""What passes between two steps, in the profile but not in the log: per step, and per sequence."""


@pytest.fixture(scope="module")
def steps(measured):
    with (measured / "steps.csv").open() as file:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]


def huber_line(x, y, iterations=50):
    """Fit y = a + b x with Huber weights."""
    weights, design = np.ones(len(x)), np.column_stack([np.ones(len(x)), x])
    for _ in range(iterations):
        root = np.sqrt(weights)
        line, *_ = np.linalg.lstsq(design * root[:, None], y * root, rcond=None)
        residual = np.abs(y - design @ line)
        scale = 1.345 * np.median(residual) / 0.6745
        weights = np.minimum(1.0, scale / np.maximum(residual, 1e-9))
    return line


def lone_chunks(steps):
    """Return (tokens, context before, ms) of the steps that hold 128 or more tokens of one prompt and nothing else."""
    chunks, context = [], 0.0
    for step in steps:
        alone = step["prefill_requests"] == 1 and step["decode_requests"] == 0
        if alone and step["prefill_tokens"] >= 128:
            chunks.append((step["prefill_tokens"], context, step["elapsed_ms"]))
        context = context + step["prefill_tokens"] if alone else 0.0
    return np.array(chunks)


def test_decode_constants_of_the_profile_are_those_of_the_logged_steps(steps):
    decodes = [step for step in steps if step["prefill_requests"] == 0]
    a, b = huber_line(
        np.array([step["decode_requests"] for step in decodes]), np.array([step["elapsed_ms"] for step in decodes])
    )
    profile = load_profile("tiny-cpu")
    assert len(decodes) > 1000
    assert profile.a * 1000 - OUTSIDE_MS[0] == pytest.approx(a, rel=0.1)
    assert profile.b * 1000 - OUTSIDE_MS[1] == pytest.approx(b, rel=0.1)


def test_prefill_constants_of_the_profile_are_those_of_the_logged_steps(steps):
    chunks, profile = lone_chunks(steps), load_profile("tiny-cpu")
    tokens, context, elapsed = chunks.T
    attention = tokens * (context + tokens / 2)
    base = profile.a * 1000 - OUTSIDE_MS[0]
    design = np.column_stack([tokens, attention]) / elapsed[:, None]
    (c, e), *_ = np.linalg.lstsq(design, 1 - base / elapsed, rcond=None)
    assert len(chunks) >= 10
    assert profile.c * 1000 == pytest.approx(c, rel=0.1)
    assert profile.e * 1000 == pytest.approx(e, rel=0.1)
    model = base + profile.c * 1000 * tokens + profile.e * 1000 * attention
    assert np.max(np.abs(model / elapsed - 1)) < 0.15


def replayed(measured, run):
    """Return measured and simulated seconds, by class and quantity, of one recorded run."""
    with (measured / "requests.csv").open() as file:
        rows = sorted(
            (row for row in csv.DictReader(file) if row["run"] == run), key=lambda row: float(row["arrival_s"])
        )
    arrivals = [Arrival(float(r["arrival_s"]), int(r["prompt_tokens"]), int(r["output_tokens"])) for r in rows]
    profile = replace(load_profile("tiny-cpu"), **FLAGS[run])
    delays = Delays(patience_short_s=None, patience_long_s=None)
    served = Drive([Engine(profile)], Direct(1), arrivals, delays).run().served
    both = {}
    for row, one in zip(rows, served, strict=True):
        real, simulated = both.setdefault((row["kind"], "ttft"), ([], []))
        real.append(float(row["ttft_s"]))
        simulated.append(one.ttft_s)
        real, simulated = both.setdefault((row["kind"], "e2e"), ([], []))
        real.append(float(row["e2e_s"]))
        simulated.append(one.end_s - one.arrived_s)
    return both


@pytest.mark.parametrize("run", FLAGS)
def test_tails_of_a_recorded_run_come_out_within_a_quarter_and_ends_within_a_fifth(measured, run):
    for (kind, what), (real, simulated) in replayed(measured, run).items():
        wrong = {q: float(np.percentile(simulated, q) / np.percentile(real, q) - 1) for q in (50, 90, 99)}
        cells = (f"{1000 * np.percentile(real, q):,.0f} / {1000 * np.percentile(simulated, q):,.0f}" for q in wrong)
        print(f"| {run} | {kind} | {what} | {' | '.join(cells)} |")
        assert max(abs(wrong[90]), abs(wrong[99])) < 0.25
        if what == "e2e":
            assert max(map(abs, wrong.values())) < 0.2
