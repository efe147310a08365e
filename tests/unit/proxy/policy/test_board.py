"""Lanes and backends, and how they change on a reload."""

import pytest

from proxy.policy.board import Board
from proxy.policy.installments import Installments
from proxy.policy.limits import BackendLimits, LaneLimits, LaneOrder, Scheduling

PLENTY = 10**9


def lane(name, longest, slo=1.0):
    return LaneLimits(name, longest, slo, 100, PLENTY, PLENTY)


@pytest.mark.parametrize(
    ("lanes", "backends", "message"),
    [
        ((), ["a"], "at least one lane"),
        ((lane("x", 1), lane("x", None)), ["a"], "lane names must differ, got x, x"),
        ((lane("x", None),), ["a", "a"], "backend names must differ, got a, a"),
    ],
)
def test_settings_that_cannot_be_are_refused(lanes, backends, message):
    with pytest.raises(ValueError, match=message):
        Board(Scheduling(lanes), [BackendLimits(name, 1) for name in backends])


def test_a_reload_that_cannot_be_changes_nothing(desk):
    d = desk(concurrency=1)
    d.offer()
    d.offer()
    before = d.see()
    with pytest.raises(ValueError, match="backend names must differ"):
        d.dispatcher.reconfigure(d.now, d.scheduling, [BackendLimits("z", 1), BackendLimits("z", 1)])
    assert d.see() == before


def test_a_reload_keeps_who_waits_and_who_runs(desk):
    d = desk(concurrency=1)
    d.offer(100)
    d.offer(700)
    d.offer(50)
    d.reconfigure(lane_order=LaneOrder.DEADLINE)
    assert (d.backend().in_flight, d.backend().prefill_tokens, d.lane(0).waiting_requests) == (1, 100, 2)
    d.leave(1)
    assert d.granted == [1, 3]


def test_a_reload_with_more_room_grants_at_once(desk):
    d = desk(concurrency=1)
    d.offer()
    d.offer()
    d.reconfigure(backends=[BackendLimits("a", 2)])
    assert d.granted == [1, 2]


def test_new_deadlines_hold_for_who_waits_already(desk):
    d = desk(concurrency=1)
    d.offer(10)
    d.offer(1000)
    d.reconfigure(lanes=(lane("short", 2048, 0.5), lane("long", None, 5.0)))
    assert d.dispatcher.next_wake() == pytest.approx(0.4)


def test_a_backend_that_is_gone_gets_nothing_new_and_lets_its_own_finish(desk):
    d = desk(2, concurrency=1)
    d.offer()
    d.offer()
    d.reconfigure(backends=[BackendLimits("b", 1)])
    d.offer()
    d.first_token(1)
    d.leave(1)
    assert d.granted == [1, 2]
    d.leave(2)
    assert [(grant.ticket.id, grant.backend) for grant in d.grants[2:]] == [(3, "b")]
    assert [backend.name for backend in d.see().backends] == ["b"]


def test_a_new_backend_takes_work_at_once(desk):
    d = desk(1, concurrency=1)
    d.offer()
    d.offer()
    d.reconfigure(backends=[BackendLimits("a", 1), BackendLimits("b", 1)])
    assert d.grants[-1].backend == "b"


def test_a_backend_that_was_down_stays_down_over_a_reload(desk):
    d = desk(2)
    d.up("a", False)
    d.reconfigure(drop_factor=2.0)
    assert [backend.up for backend in d.see().backends] == [False, True]


def test_what_was_learned_stays_with_its_lane(desk):
    d = desk(step_s=0.0)
    d.offer(1000)
    d.now = 0.3
    d.first_token(1)
    learned = d.lane(0).prefill_s_per_token
    d.reconfigure(lanes=(lane("tiny", 16), lane("short", 2048), lane("long", None)))
    assert [x.prefill_s_per_token for x in d.see().lanes] == [0.0001, learned, 0.0001]


def test_tickets_follow_their_lane_by_name_and_otherwise_by_length(desk):
    d = desk(concurrency=1)
    d.offer(10)
    d.offer(100)
    d.offer(3000)
    d.reconfigure(lanes=(lane("tiny", 50), lane("middle", 200), lane("long", None, 5.0)))
    assert [(x.name, x.waiting_requests) for x in d.see().lanes] == [("tiny", 0), ("middle", 1), ("long", 1)]
    d.leave(1)
    assert (d.grants[-1].ticket.id, d.grants[-1].ticket.lane) == (2, 1)
    d.leave(2)
    assert (d.backend().prefill_tokens_by_lane, d.grants[-1].ticket.lane) == ((0, 0, 3000), 2)


def test_outstanding_prefill_moves_with_the_lanes(desk):
    d = desk()
    d.offer(100)
    d.reconfigure(lanes=(lane("tiny", 50), lane("short", 2048), lane("long", None)))
    assert d.backend().prefill_tokens_by_lane == (0, 100, 0)
    d.leave(1)
    assert d.backend().prefill_tokens_by_lane == (0, 0, 0)


def test_a_parked_prompt_goes_on_after_a_reload_that_keeps_installments(desk):
    d = desk(concurrency=1, installments=Installments())
    d.offer(5000, splittable=True)
    d.offer(100)
    d.part_ended(1, 0)
    d.reconfigure(ageing=3.0)
    assert d.lane(1).parked == 1
    d.leave(2)
    assert (d.grants[-1].upto_tokens, d.grants[-1].part) == (2048, 1)


def test_a_parked_prompt_goes_whole_after_a_reload_without_installments(desk):
    d = desk(concurrency=1, installments=Installments())
    d.offer(5000, splittable=True)
    d.offer(100)
    d.part_ended(1, 0)
    d.reconfigure(installments=None)
    assert d.backend().started is None
    d.leave(2)
    assert (d.grants[-1].upto_tokens, d.grants[-1].final) == (5000, True)


def test_a_part_in_flight_is_the_last_when_installments_go(desk):
    d = desk(installments=Installments())
    d.offer(5000, splittable=True)
    d.reconfigure(installments=None)
    d.part_ended(1, 0)
    assert (d.grants[-1].upto_tokens, d.grants[-1].final, d.backend().prefill_tokens) == (5000, True, 3976)
    d.first_token(1)
    d.leave(1)
    assert (d.backend().in_flight, d.backend().started) == (0, None)


def test_who_waits_at_the_head_stays_at_the_head(desk):
    d = desk(2, concurrency=1, drop_factor=None)
    d.offer(900)
    d.offer(900)
    d.give_back(1)
    d.offer(10)
    d.reconfigure(ageing=3.0)
    d.leave(2)
    assert d.granted[2] == 1
