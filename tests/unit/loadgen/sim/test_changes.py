"""What a study takes away from lanewise, or tells it wrongly, has exactly that effect."""

from dataclasses import replace
from math import exp

import numpy as np
import pytest

from loadgen.sim import changes
from loadgen.sim.changes import UNCHANGED, Change
from loadgen.sim.engine import EngineProfile
from loadgen.sim.front import Lost, Send
from loadgen.sim.virtual import LaneOptions, lanewise

PROFILE = EngineProfile("test", a=0.02, b=3e-5, c=9e-5, d=1.2e-7, e=5e-9, kv_blocks=2000)
FIXED = LaneOptions(adaptive=False, cap=48)


def front(change, options=FIXED, backends=1):
    return lanewise(PROFILE, options, backends, change)


def indices(orders, kind=Send):
    return [order.index for order in orders if isinstance(order, kind)]


def test_an_estimate_is_off_by_its_factor_and_never_below_one_token():
    assert [Change(estimate=0.5).estimated(0, tokens) for tokens in (1000, 1)] == [500, 1]
    assert UNCHANGED.estimated(3, 777) == 777


def test_a_random_estimate_is_the_same_for_the_same_request_and_spreads_as_asked():
    noisy = Change(estimate_sigma=0.3)
    drawn = [noisy.estimated(index, 100_000) for index in range(2000)]
    assert drawn == [noisy.estimated(index, 100_000) for index in range(2000)]
    assert np.std(np.log(drawn)) == pytest.approx(0.3, rel=0.05)
    assert np.median(drawn) == pytest.approx(100_000, rel=0.05)
    assert exp(0.3 * 2) * 100_000 > np.percentile(drawn, 95)


def test_a_prompt_that_is_estimated_short_goes_by_the_short_lane():
    half = front(Change(estimate=0.5))
    half.arrive(0.0, 0, 3000, 1)
    assert half.dispatcher.snapshot(0.0).lanes[0].granted_on_time == 1


def test_a_prompt_that_goes_in_parts_is_counted_exactly():
    sent = front(Change(estimate=1.5), replace(FIXED, installments=True)).arrive(0.0, 0, 3000, 1)
    assert sent == [Send(0, 0, 1024, final=False)]


def test_a_prompt_that_is_short_when_it_is_counted_goes_by_the_short_lane_whole():
    twice = front(Change(estimate=2.0), replace(FIXED, installments=True))
    twice.arrive(0.0, 0, 1500, 1)
    assert twice.dispatcher.snapshot(0.0).lanes[0].granted_on_time == 1


def test_without_a_deadline_nobody_is_dropped_and_the_places_are_counted():
    lanes = front(changes.NO_DEADLINE)
    lost = [order for index in range(60) for order in lanes.arrive(0.0, index, 2000, 1) if isinstance(order, Lost)]
    assert [one.reason for one in lost] == ["queue_full"] * 11  # 1 runs, 48 wait
    assert lanes.next_wake() is None


def test_without_a_prefill_budget_the_cap_alone_holds():
    lanes = front(changes.NO_BUDGET)
    assert sum(len(indices(lanes.arrive(0.0, index, 2000, 1))) for index in range(60)) == 48


def test_in_one_order_of_arrival_a_long_prompt_holds_up_the_short_ones_behind_it():
    def third(change):
        lanes = front(change)
        lanes.arrive(0.0, 0, 2000, 1)
        lanes.arrive(0.001, 1, 3000, 1)
        return indices(lanes.arrive(0.002, 2, 40, 1)), indices(lanes.first_token(0.2, 0))

    assert third(changes.ONE_FIFO) == ([], [1])
    assert third(UNCHANGED) == ([2], [])


def test_in_one_line_shortest_first_the_key_alone_decides():
    def second(change):
        lanes = front(change)
        lanes.arrive(0.0, 0, 2000, 1)
        lanes.arrive(0.0, 1, 2100, 1)
        lanes.arrive(0.2, 2, 2000, 1)  # shorter, but not by as much as it came later
        return indices(lanes.first_token(0.3, 0))

    assert second(changes.ONE_SHORTEST_FIRST) == [1]
    assert second(UNCHANGED) == [2]


@pytest.mark.parametrize(("change", "moves"), [(UNCHANGED, True), (changes.NO_LEARNING, False)])
def test_only_what_learns_follows_the_measured_speed(change, moves):
    lanes = front(change)
    lanes.arrive(0.0, 0, 2000, 50)
    lanes.first_token(0.9, 0)
    learned = lanes.dispatcher.snapshot(1.0).lanes[0].prefill_s_per_token
    assert (learned != PROFILE.c) is moves


def test_a_wrong_speed_is_what_the_lanes_start_from():
    lanes = front(changes.prefill_speed(2.0))
    assert lanes.dispatcher.snapshot(0.0).lanes[0].prefill_s_per_token == pytest.approx(2 * PROFILE.c)


def test_where_nothing_streams_the_budget_comes_back_by_the_clock():
    blind = front(changes.NO_STREAMS)
    blind.arrive(0.0, 0, 2000, 50)
    blind.arrive(0.0, 1, 2000, 50)
    assert blind.first_token(0.2, 0) == ()
    assert blind.next_wake() == pytest.approx(1.5 * PROFILE.c * 2000 + PROFILE.a)
    assert indices(blind.wake(blind.next_wake())) == [1]


@pytest.mark.parametrize("tokens", [512, 2048])
def test_parts_have_the_size_that_is_asked_for(tokens):
    lanes = front(changes.parts(tokens), replace(FIXED, installments=True))
    assert lanes.arrive(0.0, 0, 7000, 1) == [Send(0, 0, tokens, final=False)]
