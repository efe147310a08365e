"""Three proxies in front of one engine, in virtual time: what leases lose against one proxy, and a split loses."""

import pytest

from loadgen.sim.trials import Trial
from loadgen.sim.virtual import LaneOptions

pytestmark = [pytest.mark.shared, pytest.mark.slow]

ROWS = 700


@pytest.fixture(scope="module")
def goodput(studies):
    """Goodput of one window of the mixed workload at the engine's own throughput."""

    def measure(**options):
        trial = Trial("mixed", 1.0, "lanewise", LaneOptions(**options), windows=1, rows=ROWS)
        return studies("8b").run(trial).goodput

    return measure


def test_leases_are_nearly_as_good_as_one_proxy_and_better_than_a_static_share(goodput):
    """docs/several-proxies.md has the figures of 4,000 requests."""
    one, leased, split = goodput(), goodput(proxies=3), goodput(proxies=3, leased=False)
    assert leased >= 0.95 * one
    assert leased >= split
