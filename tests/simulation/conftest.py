"""Public traces and measured runs beside the repository, and a closed loop against one engine."""

from dataclasses import dataclass

import numpy as np
import pytest

from loadgen.sim.engine import Engine, EngineRequest
from loadgen.sim.profile import load_profile
from loadgen.sim.trials import Study


@pytest.fixture(scope="session")
def traces(shared):
    return shared / "traces"


@pytest.fixture(scope="session")
def measured(shared):
    return shared / "engine/measured"


@pytest.fixture(scope="session")
def studies(traces):
    """Studies by engine profile, so that workloads and saturated throughputs are built once."""
    made = {}

    def study(name):
        if name not in made:
            made[name] = Study(traces, load_profile(name), load_profile(name))
        return made[name]

    return study


@dataclass(frozen=True)
class Level:
    """One level of concurrency; the first and the last tenth of the completions are not counted."""

    per_s: float
    tpot_p95_s: float
    preemptions: int


@pytest.fixture(scope="session")
def closed_loop():
    """Run requests with a fixed number in the engine: one leaves, the next comes."""

    def run(profile, lengths, concurrency):
        engine, now, sent, first, end = Engine(profile), 0.0, 0, {}, {}
        while len(end) < len(lengths):
            while sent < len(lengths) and sent - len(end) < concurrency:
                engine.submit(now, EngineRequest(sent, *lengths[sent]))
                sent += 1
            step = engine.step(now)
            now += step.duration_s
            first.update(dict.fromkeys(step.first, now))
            end.update(dict.fromkeys(step.finished, now))
        tenth = len(lengths) // 10
        counted = sorted(end, key=end.get)[tenth:-tenth]
        gaps = [(end[name] - first[name]) / (lengths[name][1] - 1) for name in counted if lengths[name][1] > 1]
        seconds = end[counted[-1]] - end[counted[0]]
        return Level((len(counted) - 1) / seconds, float(np.percentile(gaps, 95)), engine.counters.preemptions)

    return run
