"""One backend's books."""

import pytest

from proxy.policy.backend import Backend, Blocked
from proxy.policy.job import Job
from proxy.policy.lane import Lane, LaneQueue
from proxy.policy.limits import BackendLimits, LaneLimits, Scheduling
from proxy.policy.outcome import Ending
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
