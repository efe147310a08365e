"""What the charts and the columns of the last minute are made of."""

import json
from types import SimpleNamespace

import pytest

from proxy.backends import BackendView, State
from proxy.exchange import Exchange
from proxy.lately import EVERY_S, GAUGES, KEPT_S, TOTALS, Lately
from proxy.policy.dispatch import Dispatcher
from proxy.policy.outcome import Outcome
from proxy.policy.ticket import Ticket
from proxy.settings import Settings

SETTINGS = Settings.model_validate({"backends": [{"url": "http://127.0.0.1:1", "name": "a"}]})


@pytest.fixture
def made():
    """A history with a clock that the test moves, over a real Dispatcher."""
    one = SimpleNamespace(now=0.0, views=[])
    one.dispatcher = Dispatcher(SETTINGS.to_scheduling(), SETTINGS.to_backend_limits())
    one.lately = Lately(lambda: one.dispatcher.snapshot(one.now), lambda: one.views, lambda: one.now)
    return one


def ended(at, outcome=Outcome.OK, lane="short", **more):
    return Exchange("id", at - 1.0, 0.0, lane=lane, outcome=outcome, ended=at, **more)


def step(made, seconds=EVERY_S):
    made.now += seconds
    made.lately.sample()


def test_before_the_first_sample_there_is_nothing_but_the_names(made):
    document = made.lately.document()
    assert document["at"] == []
    assert set(document["series"]) == {*GAUGES, *(f"{name}_per_s" for name in TOTALS)}
    assert json.loads(json.dumps(document)) == document


def test_the_moments_are_unix_seconds(made):
    step(made)
    step(made)
    assert made.lately.document(wall=lambda: 1_000.0)["at"] == [995.0, 1000.0]


def test_it_keeps_fifteen_minutes_and_no_more(made):
    for _ in range(400):
        step(made)
    at = made.lately.document()["at"]
    assert len(at) == KEPT_S / EVERY_S
    assert at[-1] - at[0] == pytest.approx(KEPT_S - EVERY_S)


def test_endings_are_counted_by_lane_and_shown_per_second(made):
    step(made)
    for outcome in (Outcome.OK, Outcome.OK, Outcome.REJECTED, Outcome.TRUNCATED, Outcome.CLIENT_GONE):
        made.lately.observe(ended(made.now, outcome))
    made.lately.observe(ended(made.now, Outcome.EXPIRED, lane="long"))
    made.lately.observe(ended(made.now, Outcome.INVALID, lane=None))
    step(made)
    series = made.lately.document()["series"]
    last = {name: series[f"{name}_per_s"][-1] for name in TOTALS}
    assert last == {
        "finished_short": 0.4,
        "refused_short": 0.2,
        "failed_short": 0.2,
        "finished_long": 0.0,
        "refused_long": 0.2,
        "failed_long": 0.0,
    }


def test_the_last_minute_forgets_what_is_older(made):
    step(made)
    made.lately.observe(ended(made.now, Outcome.REJECTED))
    step(made)
    made.lately.observe(ended(made.now))
    assert [made.lately.last_minute()[0][word] for word in ("finished", "refused")] == [1, 1]
    for _ in range(12):
        step(made)
    assert [made.lately.last_minute()[0][word] for word in ("finished", "refused")] == [1, 0]
    step(made)
    assert [made.lately.last_minute()[0][word] for word in ("finished", "refused")] == [0, 0]


def test_times_of_the_last_minute_are_quantiles_of_what_was_measured(made):
    for count in range(1, 21):
        made.lately.observe(ended(10.0, offered=9.0, granted=9.0 + count / 100, first_token=9.0 + count / 10))
    made.now = 20.0
    short, long = made.lately.last_minute()
    assert (short["wait_p95_s"], short["ttft_p95_s"], short["tpot_p95_s"]) == (0.19, 1.9, None)
    assert (long["wait_p95_s"], long["finished"]) == (None, 0)


def test_what_waits_and_runs_is_sampled_and_backends_that_say_nothing_leave_a_hole(made):
    made.dispatcher.offer(0.0, Ticket(1, 0, 1000, 10))
    made.dispatcher.offer(0.0, Ticket(2, 0, 1500, 10))
    step(made)
    series = made.lately.document()["series"]
    assert [series[name][-1] for name in ("in_flight", "waiting_short", "allowed")] == [1, 1, 32]
    assert (series["engine_waiting"], series["kv_usage"]) == ([None], [None])


def test_of_several_backends_the_fullest_cache_and_all_that_wait_count(made):
    made.views = [
        BackendView("a", "http://a", State.UP, waiting=2.0, kv_usage=0.3),
        BackendView("b", "http://b", State.UP, waiting=3.0, kv_usage=0.8),
        BackendView("c", "http://c", State.DOWN),
    ]
    step(made)
    series = made.lately.document()["series"]
    assert (series["engine_waiting"], series["kv_usage"]) == ([5.0], [0.8])


def test_a_backend_that_gets_nothing_adds_no_cap(made):
    made.dispatcher.set_backend_up(0.0, "a", False)
    step(made)
    assert made.lately.document()["series"]["allowed"] == [0]
