"""One lane: its order, its timers, its drain rate, and that dead entries do not pile up."""

import pytest

from proxy.policy.job import NEVER, Job
from proxy.policy.lane import DrainRate, Lane, LaneQueue
from proxy.policy.limits import LaneLimits, Scheduling
from proxy.policy.ticket import Ticket


def make(**settings):
    lanes = (LaneLimits("only", None, 1.0, 10**6, 10**9, 10**9),)
    lane = Lane(0, Scheduling(lanes, **({"prefill_s_per_token": 0.0001, "deadline_margin_s": 0.0} | settings)))
    return lane, LaneQueue(lane, [])


def put(queue, i, prompt=100, now=0.0):
    job = Job(Ticket(i, 0, prompt, 0), queue, now)
    queue.push(job, now)
    return job


def test_the_shortest_is_the_head():
    _, queue = make()
    put(queue, 1, 500)
    shortest = put(queue, 2, 100)
    assert queue.head(0.0, []) is shortest


def test_a_removed_head_makes_room_for_the_next():
    _, queue = make()
    second = put(queue, 1, 500)
    first = put(queue, 2, 100)
    queue.remove(first, 0.0)
    assert queue.head(0.0, []) is second
    assert queue.size == 1


def test_who_had_its_turn_before_goes_to_the_front():
    _, queue = make()
    put(queue, 1, 1)
    again = Job(Ticket(2, 0, 900, 0), queue, 0.0)
    queue.push(again, 0.0, front=True)
    assert queue.head(0.0, []) is again


def test_looking_at_the_head_drops_everyone_past_the_last_moment():
    lane, queue = make(drop_factor=1.0)
    late = [put(queue, i) for i in range(3)]
    dropped = []
    assert queue.head(0.99, dropped) is None
    assert dropped == late
    assert (lane.dropped, lane.waiting_requests, queue.size) == (3, 0, 0)


def test_timers_demote_first_and_drop_later():
    lane, queue = make(drop_factor=2.0)
    job = put(queue, 1, 1000)
    assert queue.next_timer() == pytest.approx(0.9)
    dropped = []
    queue.expire(0.9, dropped)
    assert (job.demoted, lane.demoted_now, dropped) == (True, 1, [])
    assert queue.next_timer() == pytest.approx(1.9)
    queue.expire(1.9, dropped)
    assert dropped == [job]
    assert (lane.demoted_now, queue.next_timer()) == (0, NEVER)


def test_a_timer_that_comes_too_early_because_the_speed_fell_is_set_again():
    lane, queue = make(drop_factor=1.0)
    job = put(queue, 1, 1000)
    lane.c = 0.00009
    dropped = []
    queue.expire(0.9, dropped)
    assert (dropped, queue.head(0.9, dropped)) == ([], job)
    assert queue.next_timer() == pytest.approx(0.91)


def test_the_head_is_judged_by_the_speed_of_the_moment():
    lane, queue = make(drop_factor=1.0)
    job = put(queue, 1, 1000)
    lane.c = 0.0004
    dropped = []
    assert queue.head(0.6, dropped) is None
    assert dropped == [job]


def test_dead_entries_do_not_pile_up_behind_a_blocked_head():
    _, queue = make(drop_factor=5.0)
    put(queue, 0, 1)
    for i in range(1, 5000):
        queue.remove(put(queue, i, 100, i * 0.0001), i * 0.0001)
    assert len(queue._on_time) < 200
    assert len(queue._timers) < 200
    assert queue.size == 1


def test_gauges_follow_the_queue():
    lane, queue = make()
    job = Job(Ticket(1, 0, 70, 30, body_bytes=9), queue, 0.0)
    queue.push(job, 0.0)
    assert (lane.waiting_requests, lane.waiting_tokens, lane.waiting_output, lane.waiting_bytes) == (1, 70, 30, 9)
    queue.remove(job, 0.0)
    assert (lane.waiting_requests, lane.waiting_tokens, lane.waiting_output, lane.waiting_bytes) == (0, 0, 0, 0)


# ---------------------------------------------------------------- drain rate


def test_the_drain_rate_is_that_of_the_backlog():
    drain = DrainRate()
    drain.backlog(0.0, waits=True)
    for second in range(1, 31):
        drain.add(float(second), 0.5)
    assert drain.rate(30.0) == pytest.approx(0.5, rel=0.05)


def test_time_without_a_backlog_does_not_count():
    drain = DrainRate()
    drain.backlog(0.0, waits=True)
    for second in range(1, 31):
        drain.add(float(second), 0.5)
    drain.backlog(30.0, waits=False)
    drain.backlog(5000.0, waits=True)
    assert drain.rate(5000.0) == pytest.approx(0.5, rel=0.05)


def test_a_backlog_that_does_not_move_lowers_the_rate():
    drain = DrainRate()
    drain.backlog(0.0, waits=True)
    for second in range(1, 31):
        drain.add(float(second), 0.5)
    assert drain.rate(60.0) < 0.1


def test_until_one_second_of_backlog_was_seen_an_engine_is_taken_to_be_busy_all_the_time():
    drain = DrainRate()
    drain.backlog(0.0, waits=True)
    drain.add(0.5, 40.0)
    assert drain.rate(0.9) == 1.0


def test_retry_after_stays_finite_when_nothing_drains():
    lane, queue = make(drop_factor=None)
    put(queue, 1, 10**6)
    assert lane.retry_after(1e9) == 3600.0
