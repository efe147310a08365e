"""What a pass grants, in which order, and what it comes upon; the rest of the rules are in test_dispatch."""

from proxy.policy.limits import LaneLimits, QueueOrder

PLENTY = 10**9


def test_a_queue_whose_head_fits_nowhere_is_closed_for_the_pass_and_the_next_lane_goes(desk):
    d = desk(prefill_budget_tokens=1000, drop_factor=None, concurrency=3, queue_order=QueueOrder.FIFO)
    d.offer(900)
    d.offer(2000, lane=0)
    d.offer(50, lane=0)
    d.offer(60, lane=1)
    assert d.granted == [1, 4]
    d.first_token(1, 4)
    assert d.granted == [1, 4, 2]


def test_over_a_limit_a_ticket_may_still_go_before_it_has_to_wait(desk):
    lanes = (LaneLimits("short", 2048, 1.0, 1, 10, PLENTY), LaneLimits("long", None, 5.0, 1, PLENTY, PLENTY))
    d = desk(lanes=lanes, prefill_budget_tokens=1000, drop_factor=None)
    d.offer(900)
    d.offer(5000, lane=1)
    d.offer(100, lane=0)
    assert d.granted == [1, 3]
    d.offer(200, lane=0)
    assert d.refused == [(4, "rejected", "queue_full")]


def test_a_late_ticket_goes_straight_only_to_an_engine_that_has_nothing_to_do(desk):
    d = desk(2, prefill_budget_tokens=None)
    d.offer(60_000, lane=1)
    d.offer(60_000, lane=1)
    d.offer(60_000, lane=1)
    assert d.granted == [1, 2]
    assert d.lane(1).granted_late == 2
    assert d.refused == [(3, "expired", "queue_timeout")]


def test_each_grant_counts_once_on_time_or_late(desk):
    d = desk(drop_factor=5.0, concurrency=1)
    d.offer()
    d.offer()
    d.now = 2.0
    d.wake()
    d.leave(1)
    d.give_back(2)
    assert d.granted == [1, 2, 2]
    assert (d.lane(0).granted_on_time, d.lane(0).granted_late) == (1, 1)
