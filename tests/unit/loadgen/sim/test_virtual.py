"""The product's Dispatcher as a front: how presets, budgets and baselines are set, and events in and orders out."""

import pytest

from loadgen.sim.drive import Drive
from loadgen.sim.engine import Engine, EngineProfile
from loadgen.sim.front import Lost, Send
from loadgen.sim.virtual import LaneOptions, Preset, bounded_queue, lanewise, reference_front
from loadgen.sim.workloads import Arrival

PROFILE = EngineProfile("test", a=0.02, b=3e-5, c=9e-5, d=1.2e-7, e=5e-9, kv_blocks=2000)
FIXED = LaneOptions(adaptive=False)


def indices(orders, kind):
    return [order.index for order in orders if isinstance(order, kind)]


def strict(**options):
    return lanewise(PROFILE, LaneOptions(adaptive=False, **options), 1)


def test_short_requests_go_before_long_ones_that_came_earlier():
    front = strict()
    front.arrive(0.0, 0, 2000, 1)
    assert front.arrive(0.0, 1, 3000, 1) == ()
    assert front.arrive(0.0, 2, 500, 1) == ()
    assert indices(front.first_token(0.1, 0), Send) == [2]


@pytest.mark.parametrize(("told", "first"), [(False, 1), (True, 2)])
def test_a_named_output_limit_bounds_what_is_expected(told, first):
    """Equal prompts, a long and a short answer: shortest first goes by arrival unless it is told."""
    front = strict(told_output=told)
    front.arrive(0.0, 0, 2000, 1)
    front.arrive(0.0, 1, 2000, 200)
    front.arrive(0.001, 2, 2000, 1)
    assert indices(front.first_token(0.1, 0), Send) == [first]


def test_outstanding_prefill_is_bounded_by_one_chunk():
    front = strict()
    assert indices(front.arrive(0.0, 0, 1500, 1), Send) == [0]
    assert front.arrive(0.0, 1, 1500, 1) == ()
    assert indices(front.first_token(0.2, 0), Send) == [1]


def test_with_an_engine_threshold_each_lane_has_its_own_budget():
    profile = EngineProfile("thr", 0.02, 3e-5, 9e-5, 0.0, 0.0, kv_blocks=2000, long_prefill_token_threshold=256)
    front = lanewise(profile, FIXED, 1)
    assert indices(front.arrive(0.0, 0, 5000, 1), Send) == [0]
    assert indices(front.arrive(0.0, 1, 2000, 1), Send) == [1]
    assert front.arrive(0.0, 2, 5000, 1) == ()


def test_strict_drops_who_cannot_meet_the_deadline_when_it_is_due():
    front = strict()
    front.arrive(0.0, 0, 2000, 1)
    front.arrive(0.0, 1, 2000, 1)
    due = front.next_wake()
    assert 0.7 < due < 0.95
    assert indices(front.wake(due + 0.01), Lost) == [1]


def test_gentle_keeps_a_late_request_until_five_deadlines():
    front = strict(preset=Preset.GENTLE)
    front.arrive(0.0, 0, 2000, 1)
    front.arrive(0.0, 1, 2000, 1)
    assert indices(front.wake(1.0), Lost) == []
    assert indices(front.wake(4.95), Lost) == [1]


@pytest.mark.parametrize(
    ("preset", "drop", "factor"), [("strict", None, 1.0), ("gentle", None, 5.0), ("gentle", 10, 10)]
)
def test_the_drop_factor_is_the_presets_unless_said(preset, drop, factor):
    assert LaneOptions(Preset(preset), drop).drop_factor == factor


def test_installments_send_a_long_prompt_in_parts():
    front = strict(installments=True)
    (first,) = front.arrive(0.0, 0, 4096, 10)
    assert (first.upto_tokens, first.final) == (1024, False)
    (second,) = front.part_ended(0.2, 0, 0)
    assert (second.upto_tokens, second.final) == (2048, False)


def test_a_client_that_leaves_frees_its_place_for_the_next():
    front = strict()
    front.arrive(0.0, 0, 1500, 1)
    front.arrive(0.0, 1, 1500, 1)
    assert indices(front.gone(0.1, 0), Send) == [1]


def test_a_cap_bounds_what_runs():
    front = strict(cap=2)
    sent = [indices(front.arrive(0.0, index, 10, 10), Send) for index in range(4)]
    assert sent == [[0], [1], [], []]
    assert indices(front.finished(0.5, 0, 10, 0), Send) == [2]


def test_the_bounded_queue_is_one_line_in_order_of_arrival_whatever_the_length():
    front = bounded_queue(PROFILE, 1, 1)
    front.arrive(0.0, 0, 100, 1)
    front = bounded_queue(PROFILE, 8, 1)
    for index in range(8):
        assert indices(front.arrive(0.0, index, 100, 1), Send) == [index]
    front.arrive(0.1, 8, 20_000, 1)
    front.arrive(0.2, 9, 100, 1)
    front.arrive(0.3, 10, 5000, 1)
    order = []
    for index in range(3):
        order += indices(front.finished(1.0, index, 1, 0), Send)
    assert order == [8, 9, 10]


def test_the_bounded_queue_rejects_three_quarters_short_and_one_quarter_long():
    front = bounded_queue(PROFILE, 8, 1)
    for index in range(8):
        front.arrive(0.0, index, 100, 1)
    short = [indices(front.arrive(0.1, index, 100, 1), Lost) for index in range(8, 15)]
    long = [indices(front.arrive(0.1, index, 9000, 1), Lost) for index in range(20, 23)]
    assert short == [[], [], [], [], [], [], [14]]
    assert long == [[], [], [22]]


def test_the_reference_has_a_wider_budget():
    front = reference_front(PROFILE, 1)
    assert [len(front.arrive(0.0, index, 2000, 1)) for index in range(5)] == [1, 1, 1, 1, 0]


@pytest.mark.parametrize("options", [FIXED, LaneOptions(Preset.GENTLE), LaneOptions(installments=True)])
def test_every_request_of_a_busy_minute_ends_exactly_once(options):
    arrivals = [Arrival(0.05 * n, 8000 if n % 6 == 0 else 300 + n % 700, 5 + n % 40) for n in range(300)]
    engine = Engine(PROFILE)
    front = lanewise(PROFILE, options, 1)
    driven = Drive([engine], front, arrivals, hashed=options.installments).run()
    outcomes = [served.outcome for served in driven.served]
    assert set(outcomes) <= {"ok", "expired", "client_gone"}
    assert outcomes.count("ok") > 100
    assert front.dispatcher.snapshot(driven.ended_s).live == 0
    assert not engine.has_work
    assert engine.kv.free == PROFILE.kv_blocks
