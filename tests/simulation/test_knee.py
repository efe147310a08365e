"""The shape of the concurrency knee, against the table of the scheduling study (a separate simulator, whole traces)."""

import pytest

from loadgen.sim.profile import load_profile

pytestmark = pytest.mark.shared

ROWS = 4000
MIXED_8B = {
    8: (0.99, 0.042),
    16: (1.48, 0.060),
    24: (1.78, 0.077),
    32: (1.98, 0.090),
    48: (2.24, 0.118),
    64: (2.39, 0.143),
}
MIXED_14B = {
    8: (0.61, 0.070),
    16: (0.91, 0.100),
    24: (1.08, 0.128),
    32: (1.19, 0.148),
    48: (1.25, 0.181),
    64: (1.25, 0.188),
}
AZURE_8B = {8: 1.59, 16: 2.47, 32: 3.40, 64: 4.19}


@pytest.mark.parametrize(("profile", "table"), [("8b", MIXED_8B), ("14b", MIXED_14B)])
def test_throughput_and_tpot_over_concurrency_on_mixed_are_within_10_percent(studies, closed_loop, profile, table):
    lengths = studies(profile).workload("mixed").cut(0, ROWS).lengths
    for concurrency, (per_s, tpot_p95_s) in table.items():
        level = closed_loop(load_profile(profile), lengths, concurrency)
        assert level.per_s == pytest.approx(per_s, rel=0.1), concurrency
        assert level.tpot_p95_s == pytest.approx(tpot_p95_s, rel=0.1), concurrency


def test_throughput_over_concurrency_on_azure_is_within_10_percent(studies, closed_loop):
    lengths = studies("8b").workload("azure").cut(0, ROWS).lengths
    for concurrency, per_s in AZURE_8B.items():
        assert closed_loop(load_profile("8b"), lengths, concurrency).per_s == pytest.approx(per_s, rel=0.1), concurrency


def test_the_kv_tight_engine_begins_to_preempt_between_24_and_48(studies, closed_loop):
    lengths = studies("14b").workload("mixed").cut(0, ROWS).lengths
    preemptions = [closed_loop(load_profile("14b"), lengths, concurrency).preemptions for concurrency in (16, 48)]
    assert preemptions[0] == 0
    assert preemptions[1] > 50
