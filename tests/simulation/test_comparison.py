"""What a comparison makes of luck and of a planted change; docs/comparison.md has the whole acceptance."""

import pytest

from loadgen.compare import Verdict, compare
from loadgen.sim.profile import load_profile
from loadgen.sim.replaying import slowed
from loadgen.sim.runs import VirtualRun, run_virtually
from loadgen.sim.trials import Trial

pytestmark = pytest.mark.shared

ROWS = 800


@pytest.fixture
def run(studies, tmp_path):
    """One run at 0.6 times the saturated throughput, noise sigma 0.1, by its seed."""
    study = studies("8b")
    arrivals = study.workload("mixed").cut(4000, ROWS).arrivals(0.6 * study.saturated_per_s("mixed"))

    def made(seed, slower=1.0):
        profile = slowed(load_profile("8b"), slower)
        out, trial = tmp_path / f"{slower}-{seed}", Trial("mixed", 0.6, "direct", rows=ROWS)
        return run_virtually(VirtualRun(trial=trial, profile=profile, arrivals=arrivals, out=out, noise_seed=seed))

    return made


def test_luck_alone_is_no_difference_and_a_slower_engine_is_one(run):
    a = run(1)
    lucky = [compare(a, run(seed)).difference for seed in (2, 3, 4)]
    assert lucky.count("none") >= 2
    slower = compare(a, run(5, slower=1.1))
    short = next(metric for metric in slower.metrics if metric.name == "short TTFT p50")
    assert short.effect == "worse"
    assert compare(a, run(6, slower=1.7)).verdict is Verdict.ROLL_BACK
