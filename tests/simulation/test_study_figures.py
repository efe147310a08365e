"""The study on the public traces: `direct` where a separate simulator has it, and what lanewise must reach."""

import pytest

from loadgen.sim.trials import Trial
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
            known[key] = studies("8b").flagged(**flags).run(Trial(workload, load, policy, lanes))
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


PARTS = LaneOptions(installments=True)
IN_PARTS = {0.6: (0.955, 0.5, 0.002), 1.0: (0.945, 0.65, 0.01), 1.3: (0.925, 0.85, 0.015)}
"""Mixed traffic by load: goodput at least; p99 TTFT of short requests and their lost share at most."""


@pytest.mark.parametrize("load", IN_PARTS)
def test_installments_let_short_requests_pass_and_compute_nothing_twice(row, load):
    goodput, short_p99_s, short_lost = IN_PARTS[load]
    figures = row("mixed", load, "lanewise", PARTS)
    assert figures.goodput >= goodput
    assert figures.short_ttft_p99_s <= short_p99_s
    assert figures.short_lost <= short_lost
    assert (figures.recomputed_tokens, figures.preemptions) == (0, 0)


def test_with_installments_the_chunk_of_the_engine_does_not_matter(row):
    large = row("mixed", 1.0, "lanewise", PARTS, max_num_batched_tokens=16384)
    assert large.goodput == pytest.approx(row("mixed", 1.0, "lanewise", PARTS).goodput, abs=0.01)


def test_without_a_prefix_cache_installments_switch_themselves_off(row):
    off = row("mixed", 1.0, "lanewise", PARTS, prefix_caching=False)
    assert off.goodput >= row("mixed", 1.0, "lanewise").goodput - 0.005
    assert off.recomputed_tokens < 0.01 * off.offered * 2000
