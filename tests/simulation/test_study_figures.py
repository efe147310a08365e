"""The study on the public traces: `direct` where a separate simulator has it, and what lanewise must reach."""

from dataclasses import replace

import pytest

from loadgen.sim.trials import Study, Trial
from loadgen.sim.virtual import LaneOptions

pytestmark = [pytest.mark.shared, pytest.mark.slow]

DIRECT = {
    ("mixed", 0.6): (0.810, 6.3),
    ("mixed", 1.0): (0.247, 28.6),
    ("mixed", 1.3): (0.013, 30.1),
    ("azure", 0.6): (0.481, 24.4),
    ("azure", 1.0): (0.255, 30.1),
    ("azure", 1.3): (0.100, 30.0),
}
"""Goodput and short p99 TTFT of the separate simulator on the same files."""
SATURATED = {"8b": {"mixed": 2.49, "azure": 4.99, "burst": 2.63}, "14b": {"mixed": 1.29, "azure": 2.50, "burst": 1.35}}
STRICT_AT_LEAST = {("mixed", 1.0): 0.76, ("mixed", 1.3): 0.73, ("azure", 1.0): 0.79, ("azure", 1.3): 0.73}


@pytest.fixture(scope="module")
def row(studies):
    """Measure a case once, whoever asks for it."""
    known = {}

    def measure(workload, load, policy, lanes=LaneOptions(), **flags):  # noqa: B008 - frozen
        key = (workload, load, policy, lanes, *sorted(flags.items()))
        if key not in known:
            study = studies("8b")
            if flags:
                flagged = Study(study.traces, study.base, replace(study.engine, **flags))
                flagged._workloads, flagged._saturated = study._workloads, study._saturated
                study = flagged
            known[key] = study.run(Trial(workload, load, policy, lanes))
        return known[key]

    return measure


@pytest.mark.parametrize("profile", SATURATED)
def test_the_saturated_throughput_is_within_7_percent(studies, profile):
    measured = {name: studies(profile).saturated_per_s(name) for name in SATURATED[profile]}
    assert measured == pytest.approx(SATURATED[profile], rel=0.07)


@pytest.mark.parametrize(("workload", "load"), DIRECT)
def test_direct_gives_the_goodput_and_the_tail_of_the_separate_simulator(row, workload, load):
    goodput, short_p99_s = DIRECT[workload, load]
    figures = row(workload, load, "direct")
    assert figures.goodput == pytest.approx(goodput, abs=0.06)
    assert figures.short_ttft_p99_s == pytest.approx(short_p99_s, rel=0.2)


@pytest.mark.parametrize(("workload", "load"), STRICT_AT_LEAST)
def test_strict_reaches_its_goodput_with_short_first_tokens_inside_a_second_and_no_preemption(row, workload, load):
    figures = row(workload, load, "lanewise")
    assert figures.goodput >= STRICT_AT_LEAST[workload, load]
    assert figures.short_ttft_p99_s <= 1.0
    assert figures.preemptions == 0
    assert figures.recomputed_tokens == 0


@pytest.mark.parametrize(("load", "at_least"), [(1.0, 0.94), (1.3, 0.90)])
def test_an_engine_threshold_of_an_eighth_of_a_chunk_adds_to_it(row, load, at_least):
    assert row("mixed", load, "lanewise", long_prefill_token_threshold=256).goodput >= at_least


@pytest.mark.parametrize("workload", ["mixed", "azure"])
def test_at_low_load_strict_is_never_below_direct(row, workload):
    assert row(workload, 0.6, "lanewise").goodput > row(workload, 0.6, "direct").goodput


def test_installments_compute_nothing_twice_and_add_to_it(row):
    figures = row("mixed", 1.0, "lanewise", LaneOptions(installments=True))
    assert figures.goodput >= 0.945
    assert figures.recomputed_tokens == 0
    assert figures.short_lost <= 0.01
