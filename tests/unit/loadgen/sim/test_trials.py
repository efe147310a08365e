"""What one row of a study counts."""

from pathlib import Path

import pytest

from loadgen.failure import UsageError
from loadgen.sim.clients import ABUSER, Clients
from loadgen.sim.drive import Driven, Served
from loadgen.sim.engine import EngineProfile
from loadgen.sim.trials import POLICIES, Figures, Study, Trial, figures, front, good, mean, saturated_per_s

PROFILE = EngineProfile("test", a=0.02, b=3e-5, c=9e-5, d=1.2e-7, e=5e-9, kv_blocks=2000)


def served(at, *, prompt=100, output=11, ttft=0.5, tpot=0.05, outcome="ok"):
    if outcome != "ok":
        return Served(at, prompt, output, None, at + 1, outcome)
    return Served(at, prompt, output, at + ttft, at + ttft + tpot * (output - 1), "ok")


@pytest.mark.parametrize(
    ("one", "inside"),
    [
        (served(0, ttft=1.0), True),
        (served(0, ttft=1.01), False),
        (served(0, prompt=2048, ttft=1.5), False),
        (served(0, prompt=2049, ttft=4.9), True),
        (served(0, prompt=2049, ttft=5.1), False),
        (served(0, tpot=0.11), False),
        (served(0, outcome="expired"), False),
    ],
)
def test_good_is_inside_ttft_of_its_class_and_tpot(one, inside):
    assert good(one) is inside


def test_goodput_is_over_all_offered_after_the_warm_up():
    rows = [
        served(0.0, outcome="expired"),
        *(served(float(at)) for at in range(10, 19)),
        served(100.0, outcome="rejected"),
    ]
    counted = figures(Driven(rows), preemptions=3)
    assert counted.offered == 10
    assert counted.completed == 9
    assert counted.rejected == 1
    assert counted.goodput == 0.9
    assert counted.short_lost == pytest.approx(0.1)
    assert counted.long_lost is None
    assert counted.completed_per_s == pytest.approx(9 / 90)
    assert counted.goodput_tokens_per_s == pytest.approx(9 * 111 / 90)
    assert counted.preemptions == 3


def test_percentiles_are_over_completed_requests_by_class():
    rows = [served(float(at), ttft=0.1 + at / 1000) for at in range(20, 40)]
    rows += [served(40.0, prompt=9000, ttft=3.0), served(41.0, prompt=9000, outcome="client_gone")]
    counted = figures(Driven([served(0.0), *rows]), preemptions=0)
    assert counted.short_ttft_p50_s == pytest.approx(0.1295)
    assert counted.long_ttft_p99_s == pytest.approx(3.0)
    assert counted.abandoned == 1
    assert counted.long_lost == 0.5


def test_a_mean_passes_over_windows_without_a_figure():
    window = figures(Driven([served(0.0), served(10.0)]), 0)
    other = figures(Driven([served(0.0), served(10.0, prompt=9000, ttft=2.0)]), 4)
    both = mean([window, other])
    assert both.preemptions == 2
    assert both.long_ttft_p50_s == pytest.approx(2.0)
    assert isinstance(both, Figures)


def test_saturated_throughput_is_what_a_full_engine_completes():
    rate = saturated_per_s(PROFILE, [(10, 100)] * 2560)
    step = PROFILE.a + 256 * PROFILE.b + 256 * 60 * PROFILE.d
    assert rate == pytest.approx(1 / (100 * step / 256 + 10 * PROFILE.c), rel=0.15)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_can_be_built(policy):
    assert front(Trial("mixed", 1.0, policy), PROFILE).next_wake() is None


def test_an_unknown_policy_is_refused_with_the_names():
    with pytest.raises(UsageError, match="one of direct, bounded-queue, static-lanes, lanewise, reference"):
        front(Trial("mixed", 1.0, "magic"), PROFILE)


def test_a_request_that_the_engine_can_never_hold_is_said():
    tight = EngineProfile("tight", 0.02, 3e-5, 9e-5, 0.0, 0.0, kv_blocks=10)
    study = Study(Path(), tight, tight)
    from loadgen.sim.workloads import Arrival

    with pytest.raises(UsageError, match=r"engine profile tight: request 1: 5010 tokens are more than the whole KV"):
        study.run_window(Trial("mixed", 1.0, "direct"), [Arrival(0.0, 5000, 10), Arrival(1.0, 10, 10)])


def test_the_tenant_that_sends_most_is_counted_apart():
    clients = Clients(abuser=0.6)
    rows = [served(float(at), outcome="ok" if clients.tenant(at) != ABUSER else "rejected") for at in range(200)]
    counted = figures(Driven(rows), 0, clients)
    assert (counted.abuser_goodput, counted.others_goodput) == (0.0, 1.0)
    assert 0.3 < counted.goodput < 0.5
    assert figures(Driven(rows), 0).others_goodput is None


def test_other_flags_share_workloads_and_throughput():
    study = Study(Path("nowhere"), PROFILE, PROFILE)
    study._saturated["mixed"] = 2.5
    flagged = study.flagged(long_prefill_token_threshold=256)
    assert flagged.saturated_per_s("mixed") == 2.5
    assert (flagged.engine.long_prefill_token_threshold, study.engine.long_prefill_token_threshold) == (256, 0)
