"""Who is next, and where it fits."""

import pytest

from proxy.policy.backend import Backend
from proxy.policy.job import Job
from proxy.policy.lane import Lane
from proxy.policy.limits import BackendLimits, LaneLimits, LaneOrder, Scheduling
from proxy.policy.matching import Matcher
from proxy.policy.pools import Pools
from proxy.policy.prefixes import Prefix
from proxy.policy.ticket import Ticket


@pytest.fixture
def table():
    """Build (matcher, queues by lane, backends) of two lanes."""

    def build(backends=2, **settings):
        lanes = (LaneLimits("short", 2048, 1.0, 9, 9, 9), LaneLimits("long", None, 5.0, 9, 9, 9))
        defaults = {"prefill_s_per_token": 0.0001, "deadline_margin_s": 0.0, "drop_factor": 5.0}
        scheduling = Scheduling(lanes, **(defaults | settings))
        engines = [Backend(BackendLimits(name, 4), 2) for name in "abc"[:backends]]
        pools = Pools([Lane(i, scheduling) for i in range(2)], engines)
        return Matcher(scheduling), pools.queues, engines

    return build


def put(queue, i, prompt, now=0.0, **fields):
    job = Job(Ticket(i, queue.lane.index, prompt, 10, **fields), queue, now)
    queue.push(job, now)
    return job


def test_nobody_is_next_when_nobody_waits(table):
    matcher, queues, _ = table()
    assert matcher.next_job(queues, 0.0, []) is None


def test_the_short_lane_comes_first_or_the_nearest_deadline(table):
    for order, expected in ((LaneOrder.SHORT_FIRST, 1), (LaneOrder.DEADLINE, 2)):
        matcher, queues, _ = table(lane_order=order)
        put(queues[0], 1, 100, now=4.5)
        put(queues[1], 2, 3000)
        assert matcher.next_job(queues, 4.5, []).ticket.id == expected


@pytest.mark.parametrize("order", list(LaneOrder))
def test_whoever_is_on_time_comes_before_whoever_is_late(table, order):
    matcher, queues, _ = table(lane_order=order)
    put(queues[0], 1, 100)
    put(queues[1], 2, 3000)
    assert matcher.next_job(queues, 2.0, []).ticket.id == 2


def test_of_two_late_ones_the_lane_order_decides(table):
    matcher, queues, _ = table()
    put(queues[1], 2, 3000)
    put(queues[0], 1, 100, now=4.0)
    assert matcher.next_job(queues, 5.0, []).ticket.id == 1


def test_whoever_has_no_deadline_and_waited_too_long_comes_before_all(table):
    matcher, queues, _ = table(drop_factor=None)
    put(queues[1], 2, 3000)
    put(queues[0], 1, 100, now=49.0)
    assert matcher.next_job(queues, 49.9, []).ticket.id == 1
    assert matcher.next_job(queues, 50.0, []).ticket.id == 2


def test_the_least_loaded_backend_with_room_takes_it(table):
    matcher, queues, (a, b) = table()
    a.hold(put(queues[0], 1, 500), 500, 510, 1, 0)
    job = put(queues[0], 2, 100)
    assert matcher.place(job, 0.0).backend is b
    b.up = False
    assert matcher.place(job, 0.0).backend is a
    assert matcher.place(job, 0.0, held=a) is None


def test_a_place_says_what_will_be_held(table):
    matcher, queues, (a, _) = table()
    assert matcher.place(put(queues[0], 1, 100), 0.0) == (a, 100, 110, 1)


def test_a_backend_to_avoid_is_avoided_while_another_is_up(table):
    matcher, queues, (a, b) = table()
    job = put(queues[0], 1, 100)
    job.avoid = a
    assert list(matcher.candidates(job)) == [b]
    b.up = False
    assert list(matcher.candidates(job)) == [a, b]


def test_room_is_kept_on_the_backend_that_will_be_free_first(table):
    matcher, queues, (a, b) = table()
    a.hold(put(queues[0], 1, 500), 500, 510, 1, 0)
    job = put(queues[1], 2, 3000)
    assert matcher.next_to_free(job) is b
    a.up = b.up = False
    assert matcher.next_to_free(job) is None


# ---------------------------------------------------------------- what was computed before


ALIKE = Prefix((1, 2, 3, 4), 200.0)


def test_a_prompt_goes_where_its_beginning_was_computed_when_both_have_as_much_to_do(table):
    matcher, queues, (a, b) = table()
    b.prefixes.note(ALIKE)
    assert matcher.place(put(queues[0], 1, 1000, prefix=ALIKE), 0.0).backend is b
    assert matcher.place(put(queues[0], 2, 1000), 0.0).backend is a
    assert matcher.anywhere(put(queues[0], 3, 1000, prefix=ALIKE), 0.0).backend is b


def test_work_that_waits_there_weighs_against_what_would_be_saved(table):
    matcher, queues, (a, b) = table()
    b.prefixes.note(ALIKE)
    b.hold(put(queues[0], 1, 700), 700, 710, 1, 0)
    job = put(queues[0], 2, 1000, prefix=ALIKE)
    assert matcher.place(job, 0.0).backend is b
    b.hold(put(queues[0], 3, 300), 300, 310, 1, 0)
    assert matcher.place(job, 0.0).backend is a


def test_the_budget_is_charged_for_the_whole_prompt_all_the_same(table):
    matcher, queues, (_, b) = table()
    b.prefixes.note(ALIKE)
    assert matcher.place(put(queues[0], 1, 1000, prefix=ALIKE), 0.0).prefill == 1000


def test_an_engine_without_a_prefix_cache_has_computed_nothing(table):
    matcher, queues, (a, b) = table()
    b.prefixes.note(ALIKE)
    b.caches = False
    assert matcher.place(put(queues[0], 1, 1000, prefix=ALIKE), 0.0).backend is a


def test_where_a_prompt_goes_is_where_its_beginning_will_be_found(desk):
    d = desk(2)
    for _ in range(4):
        first = d.offer(1000, prefix=ALIKE)
        d.leave(first)
    assert {grant.backend for grant in d.grants} == {"a"}
    d.dispatcher.set_prefix_cache(d.now, "a", enabled=True, granularity=16)
    d.dispatcher.set_prefix_cache(d.now, "b", enabled=True, granularity=16)
    d.offer(500)
    d.offer(1000, prefix=ALIKE)
    assert d.grants[-1].backend == "b", "a restarted: its cache is empty"
