"""Gaps between tokens, and how many tokens an event holds."""

import pytest

from proxy.pace import Pace, hand_over
from proxy.policy.dispatch import Dispatcher
from proxy.policy.limits import Adaptive, BackendLimits, LaneLimits, Scheduling
from proxy.policy.ticket import Ticket


def test_what_was_measured_is_taken_once():
    pace = Pace()
    pace.seconds, pace.events = 2.0, 40
    assert pace.take() == (2.0, 40)
    assert pace.take() == (0.0, 0)


def test_events_count_as_the_tokens_that_ended_streams_had_in_them():
    pace = Pace()
    pace.ended(100, 200)
    pace.ended(100, 300)
    pace.seconds, pace.events = 4.0, 40
    assert pace.take() == (4.0, 100)


def test_a_stream_that_says_nothing_of_its_tokens_teaches_nothing():
    pace = Pace()
    pace.ended(100, None)
    pace.ended(0, 7)
    assert pace.tokens_per_event == 1.0


@pytest.mark.parametrize(("tokens", "per_event"), [(0, 1.0), (10, 1.0), (100_000, 16.0)])
def test_the_tokens_of_an_event_stay_within_reason(tokens, per_event):
    pace = Pace()
    pace.ended(100, tokens)
    assert pace.tokens_per_event == per_event


def test_an_engine_that_stops_merging_is_noticed():
    pace = Pace()
    for _ in range(100):
        pace.ended(1000, 4000)
    assert pace.tokens_per_event == 4.0
    for _ in range(100):
        pace.ended(1000, 1000)
    assert pace.tokens_per_event == pytest.approx(1.0, abs=0.01)


def test_the_dispatcher_hears_of_the_backends_that_were_heard_of():
    lanes = (LaneLimits("all", None, 1.0, 10, 10**6, 10**6),)
    adaptive = Adaptive(tpot_slo_s=0.1, floor=1)
    limits = [BackendLimits(name, 20, adaptive=adaptive) for name in ("a", "b")]
    dispatcher = Dispatcher(Scheduling(lanes), limits)
    for number in range(2):
        dispatcher.offer(0.0, Ticket(number, 0, 10, 10))
    slow = Pace()
    slow.seconds, slow.events = 1.0, 5
    hand_over({"a": slow, "b": Pace(), "gone": Pace()}, dispatcher)
    dispatcher.wake(2.0)
    assert [backend.concurrency for backend in dispatcher.snapshot(2.0).backends] == [19, 20]
    assert slow.events == 0
