"""One backend's books."""

import pytest

from proxy.policy.backend import Backend, Blocked
from proxy.policy.entry import Entry, Ramp
from proxy.policy.job import Job
from proxy.policy.lane import Lane, LaneQueue
from proxy.policy.limits import BackendLimits, Fairness, LaneLimits, Scheduling
from proxy.policy.outcome import Ending, Reason
from proxy.policy.prefixes import Prefix
from proxy.policy.ticket import Ticket


@pytest.fixture
def queue():
    lanes = (LaneLimits("short", 2048, 1.0, 9, 9, 9), LaneLimits("long", None, 1.0, 9, 9, 9))
    return LaneQueue(Lane(0, Scheduling(lanes)), [])


@pytest.fixture
def backend():
    return Backend(BackendLimits("a", 2, kv_tokens=1000, kv_fraction=0.9), lanes=2)


def job(queue, i=1, prompt=100):
    return Job(Ticket(i, 0, prompt, 10), queue, 0.0)


def test_release_gives_back_what_hold_took(backend, queue):
    one = job(queue)
    backend.hold(one, prefill=100, kv=110, slots=2, output=10)
    assert (backend.in_flight, backend.prefill, backend.prefill_total, backend.kv, backend.output) == (
        2, [100, 0], 100, 110, 10,
    )  # fmt: skip
    backend.release(one)
    assert (backend.in_flight, backend.prefill, backend.prefill_total, backend.kv, backend.output) == (
        0, [0, 0], 0, 0, 0,
    )  # fmt: skip
    assert one.backend is None


def test_prefill_comes_back_once(backend, queue):
    one = job(queue)
    backend.hold(one, 100, 110, 1, 10)
    backend.release_prefill(one)
    backend.release_prefill(one)
    backend.release(one)
    assert (backend.prefill, backend.prefill_total) == ([0, 0], 0)


def test_a_ticket_remembers_the_prefill_that_was_ahead_of_it(backend, queue):
    backend.hold(job(queue, 1), 100, 110, 1, 10)
    second = job(queue, 2)
    backend.hold(second, 50, 60, 1, 10)
    assert second.ahead == 100


@pytest.mark.parametrize(
    ("demand", "reason"),
    [((10, 10, 2), Blocked.CAP), ((10, 800, 1), Blocked.KV), ((2000, 10, 1), Blocked.PREFILL), ((10, 10, 1), None)],
)
def test_what_stands_against_one_more_has_a_name(backend, queue, demand, reason):
    backend.hold(job(queue, 1), 100, 110, 1, 10)
    assert backend.blocked(job(queue, 2), *demand, 0.0) is reason


def test_an_idle_backend_takes_anything_and_a_backend_that_is_down_nothing(backend, queue):
    assert backend.blocked(job(queue), 10**6, 10**6, 99, 0.0) is None
    backend.up = False
    assert backend.blocked(job(queue), 1, 1, 1, 0.0) is Blocked.NONE_UP


def test_cost_is_outstanding_work_over_speed(backend, queue):
    backend.hold(job(queue), 100, 110, 1, 10)
    assert backend.cost(50, c0=0.01, w=0.1) == pytest.approx(150 * 0.01 + 10 * 0.1)
    backend.configure(0.0, BackendLimits("a", 2, weight=2.0))
    assert backend.cost(50, c0=0.01, w=0.1) == pytest.approx((150 * 0.01 + 10 * 0.1) / 2)


def test_a_concurrency_that_was_set_survives_settings_that_name_the_same_limit(backend):
    backend.limiter.set(0.0, 7, in_flight=0)
    backend.configure(0.0, BackendLimits("a", 2, weight=3.0))
    assert backend.limiter.cap == 7
    backend.configure(0.0, BackendLimits("a", 4))
    assert backend.limiter.cap == 4


def test_only_the_started_prompt_itself_makes_way(backend, queue):
    one, other = job(queue, 1), job(queue, 2)
    backend.started = one
    backend.forget_started(other)
    assert backend.started is one
    backend.forget_started(one)
    assert backend.started is None


def test_a_backend_without_a_list_serves_every_model(backend):
    assert backend.serves("m")
    assert backend.serves(None)
    named = Backend(BackendLimits("b", 1, frozenset({"m"})), 1)
    assert (named.serves("m"), named.serves("n"), named.serves(None)) == (True, False, True)


def test_the_repr_shows_what_runs(backend, queue):
    backend.hold(job(queue), 1, 1, 1, 1)
    assert repr(backend) == "<Backend a 1/2 in flight>"
    backend.up = False
    assert repr(backend) == "<Backend a down, 1 in flight>"


def test_endings_are_counted_apart(backend):
    for ending in (Ending.MEASURED, Ending.IGNORED, Ending.IGNORED, Ending.DROPPED):
        backend.ended(ending, 3)
    assert (backend.measured, backend.ignored, backend.dropped, backend.output_tokens) == (1, 2, 1, 12)


# ---------------------------------------------------------------- coming back, busy, drained


def test_a_trial_takes_one_request_whatever_ran_before_and_the_next_when_that_is_over(desk):
    d = desk()
    before = d.offer()
    d.dispatcher.set_entry(d.now, "a", Entry(trial=True))
    trial, waiting = d.offer(), d.offer()
    assert (d.granted, d.lane(0).head_blocked, d.backend().allowed) == ([before, trial], Blocked.TRIAL, 1)
    d.leave(before)
    assert waiting not in d.granted, "an old request that ends is not the trial"
    d.leave(trial)
    assert d.granted[-1] == waiting


def test_when_the_trial_is_over_all_that_wait_go_as_far_as_there_is_room(desk):
    d = desk(concurrency=3)
    d.dispatcher.set_entry(d.now, "a", Entry(trial=True))
    ids = [d.offer() for _ in range(5)]
    assert d.granted == ids[:1]
    d.keep(d.dispatcher.set_entry(d.now, "a", Entry()))
    assert d.granted == ids[:3]


def test_a_slow_start_lets_one_more_in_with_each_step_of_the_clock(desk):
    d = desk(concurrency=10)
    d.dispatcher.set_entry(d.now, "a", Entry(ramp=Ramp(d.now, 9.0)))
    for _ in range(10):
        d.offer(lane=1)
    seen = [len(d.granted)]
    while (at := d.dispatcher.next_wake()) is not None and len(seen) < 4:
        d.now = at
        d.wake()
        seen.append(len(d.granted))
    assert seen == [1, 2, 3, 4]
    assert d.now == pytest.approx(3.0)


def test_a_busy_backend_gets_nothing_until_the_hold_is_over_even_when_it_is_idle(desk):
    d = desk()
    d.dispatcher.hold_back(d.now, "a", 0.5)
    d.dispatcher.hold_back(d.now, "a", 0.2)
    d.dispatcher.hold_back(d.now, "gone", 9.0)
    waiting = d.offer()
    assert (d.granted, d.lane(0).head_blocked, d.backend().held_back_s) == ([], Blocked.BUSY, 0.5)
    d.now = d.dispatcher.next_wake()
    d.wake()
    assert (d.now, d.granted) == (0.5, [waiting])


def test_while_one_backend_is_busy_the_other_takes_the_requests(desk):
    d = desk(2)
    d.dispatcher.hold_back(d.now, "a", 0.5)
    for at_once in (False, True):
        d.offer(at_once=at_once)
    assert {grant.backend for grant in d.grants} == {"b"}


def test_a_drained_backend_gets_nothing_new_and_serves_again_by_order(desk):
    d = desk(2, concurrency=2)
    d.keep(d.dispatcher.set_drained(d.now, "a", True))
    for _ in range(3):
        d.offer()
    assert [grant.backend for grant in d.grants] == ["b", "b"]
    assert (d.backend().drained, d.backend().up) == (True, False)
    d.up("a", False)
    d.up("a", True)
    assert len(d.grants) == 2, "that it can be reached does not end the order"
    d.keep(d.dispatcher.set_drained(d.now, "a", False))
    assert [grant.backend for grant in d.grants] == ["b", "b", "a"]


def test_a_long_prompt_that_was_begun_on_a_drained_backend_is_finished_there(desk, parts):
    d = desk(2, installments=parts)
    long = d.offer(4000, splittable=True)
    home = d.grants[0].backend
    d.keep(d.dispatcher.set_drained(d.now, home, True))
    d.part_ended(long, 0)
    assert (d.grants[-1].backend, d.grants[-1].part) == (home, 1)
    other = d.offer(4000, splittable=True)
    assert d.grants[-1].ticket.id == other
    assert d.grants[-1].backend != home


def test_without_deadlines_a_begun_prompt_is_kept_when_its_only_backend_is_drained(desk, parts):
    d = desk(installments=parts, drop_factor=None)
    long = d.offer(4000, splittable=True)
    d.offer(lane=1, prompt=4000)
    d.keep(d.dispatcher.set_drained(d.now, "a", True))
    assert [refusal.reason for refusal in d.refusals] == [Reason.NO_BACKEND]
    d.part_ended(long, 0)
    assert (d.grants[-1].ticket.id, d.grants[-1].part) == (long, 1)


def test_one_that_could_not_be_reached_has_lost_what_it_had_computed(desk):
    d = desk(2)
    board = d.dispatcher._board
    d.offer(prefix=Prefix((1, 2), 50.0))
    assert [len(backend.prefixes) for backend in board.backends] == [2, 0]
    d.up("a", False)
    assert len(board.backends[0].prefixes) == 0


def test_a_part_that_is_given_back_to_the_only_backend_still_counts_as_running_for_its_tenant(desk, parts):
    d = desk(installments=parts, fairness=Fairness())
    long = d.offer(4000, splittable=True, tenant="a")
    d.part_ended(long, 0)
    d.now = d.dispatcher.next_wake() or d.now
    d.wake()
    d.dispatcher.hold_back(d.now, "a", d.now + 1.0)
    d.give_back(long)
    assert [(tenant.name, tenant.running) for tenant in d.see().tenants if tenant.name == "a"] == [("a", 1)]
    d.leave(long)
    assert [tenant.running for tenant in d.see().tenants if tenant.name == "a"] == [0]
