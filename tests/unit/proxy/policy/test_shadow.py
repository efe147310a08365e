"""Deciding on paper: the same rules, for requests that go by whatever is decided."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.policy.dispatch import Dispatcher
from proxy.policy.limits import (
    Adaptive,
    BackendLimits,
    Fairness,
    Installments,
    LaneLimits,
    Scheduling,
    TenantLimits,
)
from proxy.policy.outcome import Ending, Reason
from proxy.policy.shadow import Decision, Shadow, Would
from proxy.policy.ticket import Ticket

PLENTY = 10**9


class Paper:
    """A shadow with a clock, beside a real Dispatcher that lets everything pass."""

    def __init__(self, *, concurrency=2, backends=1, queue=1000, drop=1.0, budget=None, **more):
        lanes = (
            LaneLimits("short", 2048, 1.0, queue, PLENTY, PLENTY),
            LaneLimits("long", None, 5.0, queue, PLENTY, PLENTY),
        )
        scheduling = Scheduling(
            lanes,
            drop_factor=drop,
            deadline_margin_s=0.0,
            prefill_s_per_token=0.0001,
            step_s=0.0,
            prefill_budget_tokens=budget,
            **more,
        )
        limits = [BackendLimits(f"b{n}", concurrency) for n in range(backends)]
        self.real = Dispatcher(scheduling, limits)
        self.shadow = Shadow(scheduling, limits, self.real)
        self.scheduling, self.limits = scheduling, limits
        self.now = 0.0
        self._ids = 0

    def offer(self, tokens=100, **fields):
        self._ids += 1
        would = Would()
        ticket = Ticket(self._ids, int(tokens > 2048), tokens, 10, **{"at_once": False, **fields})
        self.shadow.offer(self.now, ticket, would)
        return self._ids, would

    def at(self, now):
        """Let the clock run to `now`, waking the shadow whenever it asks to be."""
        while (due := self.shadow.next_wake()) is not None and due <= now:
            self.now = max(due, self.now)
            self.shadow.wake(self.now)
        self.now = now

    def leave(self, *ids):
        for number in ids:
            self.shadow.leave(self.now, number, Ending.MEASURED, 10)

    def held(self):
        seen = self.shadow.dispatcher.snapshot(self.now)
        return seen.live, sum(b.in_flight for b in seen.backends), sum(b.prefill_tokens for b in seen.backends)


@pytest.fixture
def paper():
    return Paper


def test_what_has_room_would_be_sent_at_once(paper):
    p = paper()
    _, would = p.offer()
    assert (would.decision, would.wait_s) == (Decision.SEND, 0.0)


def test_what_finds_no_room_would_wait_until_a_real_request_ends(paper):
    p = paper(concurrency=1)
    first, _ = p.offer()
    _, would = p.offer()
    assert would.decision is None
    p.at(0.4)
    p.leave(first)
    assert (would.decision, would.wait_s) == (Decision.QUEUE, 0.4)


def test_what_misses_its_deadline_on_paper_would_expire(paper):
    p = paper(concurrency=1)
    p.offer()
    _, would = p.offer()
    p.at(1.5)
    assert (would.decision, would.reason) == (Decision.EXPIRE, Reason.QUEUE_TIMEOUT)
    assert would.wait_s == pytest.approx(1.0 - 100 * 0.0001)


def test_what_finds_the_lane_full_would_be_rejected(paper):
    p = paper(concurrency=1, queue=1)
    p.offer()
    p.offer()
    _, would = p.offer()
    assert (would.decision, would.reason) == (Decision.REJECT, Reason.QUEUE_FULL)


def test_a_request_that_is_over_before_its_turn_would_have_waited_at_least_that_long(paper):
    p = paper(concurrency=1)
    p.offer()
    second, would = p.offer()
    p.at(0.3)
    p.leave(second)
    assert (would.decision, would.wait_s) == (Decision.QUEUE, 0.3)
    assert p.held()[0] == 1


def test_a_first_token_gives_the_budget_back_on_paper(paper):
    p = paper(concurrency=8, budget=2048)
    first, _ = p.offer(2000)
    _, would = p.offer(2000)
    assert would.decision is None
    p.at(0.01)
    p.shadow.first_token(p.now, first)
    assert (would.decision, would.wait_s) == (Decision.QUEUE, 0.01)


def test_a_first_token_that_came_before_its_turn_on_paper_leaves_no_budget_held(paper):
    p = paper(concurrency=1, budget=2048)
    first, _ = p.offer(2000)
    second, would = p.offer(2000)
    p.shadow.first_token(p.now, second)
    p.shadow.first_token(p.now, second)
    p.at(0.5)
    p.leave(first)
    assert would.decision is Decision.QUEUE
    assert p.held() == (1, 1, 0)


def test_a_request_that_goes_at_once_on_paper_too_takes_a_place_and_is_not_judged(paper):
    p = paper(concurrency=1)
    p.offer(at_once=True)
    p.offer(at_once=True)
    _, would = p.offer()
    assert p.held()[1] == 2
    assert would.decision is None


def test_a_backend_that_is_down_leads_to_rejections_on_paper(paper):
    p = paper()
    p.shadow.set_backend_up(0.0, "b0", up=False)
    _, would = p.offer()
    assert (would.decision, would.reason) == (Decision.REJECT, Reason.NO_BACKEND)


def test_the_speed_of_prefill_is_the_one_that_was_really_seen(paper):
    p = paper()
    p.real.offer(0.0, Ticket(1, 1, 10_000, 10))
    p.real.first_token(4.0, 1)
    p.offer()
    seen = [lane.prefill_s_per_token for lane in p.shadow.dispatcher.snapshot(0.0).lanes]
    assert seen == [lane.prefill_s_per_token for lane in p.real.snapshot(0.0).lanes]
    assert seen[1] > 0.0001


def test_neither_adaptation_nor_installments_happen_on_paper(paper):
    p = paper(installments=Installments())
    limits = [BackendLimits("b0", 2, adaptive=Adaptive(0.1))]
    p.shadow.reconfigure(0.0, p.scheduling, limits)
    _, would = p.offer(50_000, splittable=True)
    assert would.decision is Decision.SEND
    seen = p.shadow.dispatcher.snapshot(0.0).backends[0]
    assert (seen.adaptive, seen.installments, seen.started) == (False, None, None)


def test_new_settings_decide_what_waits_on_paper(paper):
    p = paper(concurrency=1)
    p.offer()
    _, would = p.offer()
    p.at(0.2)
    p.shadow.reconfigure(p.now, p.scheduling, [BackendLimits("b0", 2)])
    assert (would.decision, would.wait_s) == (Decision.QUEUE, 0.2)


EVENTS = st.lists(
    st.tuples(st.sampled_from(["offer", "token", "leave", "tick", "down", "up"]), st.integers(0, 40)), max_size=80
)


@given(EVENTS, st.booleans())
@settings(max_examples=60, deadline=None)
def test_whatever_happens_everyone_is_decided_and_nothing_stays_held(events, strict):
    p = Paper(concurrency=2, backends=2, queue=3, drop=1.0 if strict else None, budget=2048)
    live, decided = [], []
    for kind, number in events:
        if kind == "offer":
            one, would = p.offer(100 + 97 * number, at_once=number % 7 == 0)
            live.append(one)
            decided.append(would)
        elif kind == "tick":
            p.at(p.now + number / 20)
        elif kind in {"down", "up"}:
            p.shadow.set_backend_up(p.now, f"b{number % 2}", up=kind == "up")
        elif live and kind == "token":
            p.shadow.first_token(p.now, live[number % len(live)])
        elif live:
            p.leave(live.pop(number % len(live)))
    p.leave(*live)
    assert all(would.decision is not None for would in decided)
    assert p.held() == (0, 0, 0)


def test_limits_of_tenants_are_decided_on_paper_too(paper):
    p = paper(concurrency=1, fairness=Fairness(others=TenantLimits(waiting_requests=1)))
    (_, sent), (_, queued), (_, rejected), (_, other) = (p.offer(tenant=name) for name in ("a", "a", "a", "b"))
    assert [would.decision for would in (sent, queued, rejected, other)] == [Decision.SEND, None, Decision.REJECT, None]
    assert rejected.reason is Reason.TENANT_LIMIT
