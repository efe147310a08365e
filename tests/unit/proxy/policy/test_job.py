"""The life of tickets under random events: each ends exactly once, and no bound is ever exceeded.

A shadow keeps its own books of what every grant holds, from the effects alone, and compares them with the snapshot
after every step.
"""

import dataclasses
import heapq
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.policy.dispatch import Dispatcher
from proxy.policy.entry import Entry, Ramp
from proxy.policy.job import NEVER, Job, Stage
from proxy.policy.lane import Lane, LaneQueue
from proxy.policy.limits import (
    BackendLimits,
    BudgetMode,
    Fairness,
    Installments,
    LaneLimits,
    LaneOrder,
    QueueOrder,
    Scheduling,
    TenantLimits,
)
from proxy.policy.outcome import Ending, Outcome, Reason
from proxy.policy.ticket import Grant, Ticket

BUDGET = 2048
LONGEST = (500, 2048, None)


def lanes(count, requests, tokens, body_bytes):
    borders = LONGEST[3 - count :]
    return tuple(
        LaneLimits(f"lane{i}", border, 1.0 + 2 * i, requests, tokens, body_bytes) for i, border in enumerate(borders)
    )


SCHEDULING = st.builds(
    Scheduling,
    lanes=st.builds(lanes, st.integers(2, 3), st.integers(0, 6), st.sampled_from([3000, 40_000]), st.just(500)),
    lane_order=st.sampled_from(LaneOrder),
    queue_order=st.sampled_from(QueueOrder),
    budget_mode=st.sampled_from(BudgetMode),
    prefill_budget_tokens=st.sampled_from([None, 600, BUDGET]),
    drop_factor=st.sampled_from([None, 1.0, 3.0]),
    installments=st.sampled_from([None, Installments(), Installments(part_tokens=256, pause=1.0)]),
    fairness=st.sampled_from(
        [
            None,
            Fairness(tenants={"a": TenantLimits(weight=3.0)}),
            Fairness(by_tokens=False, others=TenantLimits(waiting_requests=2, sequences=4, tokens_per_minute=30_000)),
        ]
    ),
    priority_step_s=st.sampled_from([0.0, 2.0]),
)


@st.composite
def backends(draw):
    count = draw(st.integers(1, 3))
    models = st.sampled_from([None, None, frozenset({"m"}), frozenset({"n"})])
    return [
        BackendLimits(
            name,
            draw(st.integers(1, 5)),
            draw(models),
            draw(st.sampled_from([None, 3000, 20_000])),
            weight=draw(st.sampled_from([1.0, 2.5])),
        )
        for name in "abc"[:count]
    ]


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["offer"] * 6
            + ["step"] * 8
            + ["leave"] * 2
            + ["give_back", "turn", "cap", "wake", "wake", "hold", "enter", "drain"]
        ),
        st.integers(0, 10**6),
        st.sampled_from([0.0, 0.001, 0.05, 0.4, 3.0]),
    ),
    min_size=20,
    max_size=140,
)


class Held:
    """What one grant holds, by the shadow's own rules."""

    def __init__(self, grant, now, done):
        self.grant, self.now = grant, now
        self.name, self.ticket = grant.backend, grant.ticket
        self.prefill = grant.upto_tokens - done
        self.kv = grant.upto_tokens + (grant.ticket.output_tokens if grant.final else 0)
        self.slots = grant.ticket.sequences if grant.final else 1


class Shadow:
    """Drives a Dispatcher and keeps its own books."""

    def __init__(self, scheduling, limits):
        self.scheduling, self.limits = scheduling, {x.name: x for x in limits}
        self.dispatcher = Dispatcher(scheduling, limits)
        self.now, self.count = 0.0, 0
        self.is_up = dict.fromkeys(self.limits, True)
        self.cap_of = {x.name: x.concurrency for x in limits}
        self.waiting, self.held, self.parked = {}, {}, {}
        self.done, self.home = Counter(), {}
        self.pause = dict.fromkeys(self.limits, 0.0)
        self.held_back = dict.fromkeys(self.limits, 0.0)
        self.entry = dict.fromkeys(self.limits, Entry())
        self.tried = {}
        self.drained = set()
        self.given_back = set()
        self.anew = Counter()
        self.ends = Counter()

    # -- what happens

    def play(self, events):
        for name, number, wait in events:
            self.now += wait
            getattr(self, name)(number)
            self.check()

    def offer(self, number):
        self.count += 1
        prompt = (1 + number % 400, 300 + number % 2000, 2049 + number % 9000)[number % 3]
        borders = [x.max_prompt_tokens for x in self.scheduling.lanes]
        splittable = number % 5 > 1
        ticket = Ticket(
            id=self.count,
            lane=next(i for i, border in enumerate(borders) if border is None or prompt <= border),
            prompt_tokens=prompt,
            output_tokens=number % 300,
            sequences=1 + number % 9 if number % 7 == 0 else 1,
            body_bytes=number % 90,
            model=(None, "m", "n", "x")[number // 7 % 4],
            streams=splittable or number % 2 == 0,
            splittable=splittable,
            tenant=(None, "a", "b")[number // 11 % 3],
            priority=number // 13 % 3 - 1,
        )
        self.waiting[ticket.id] = ticket
        self.read(self.dispatcher.offer(self.now, ticket))

    def step(self, number):
        """Let the engine go on with one of its requests."""
        if not self.held:
            return
        i = sorted(self.held)[number % len(self.held)]
        held = self.held[i]
        if not held.grant.final:
            self.end_part(i, number)
        elif held.prefill and number % 3:
            held.prefill = 0
            self.home.pop(i, None)
            self.read(self.dispatcher.first_token(self.now, i))
        else:
            self.end(i, Ending.MEASURED)

    def end_part(self, i, number):
        held, before = self.held.pop(i), self.done[i]
        self.ends_trial(i)
        cached = (before, before, None, 0)[number % 4]
        failed, broken = number % 11 == 0, number % 22 == 0
        others = any(self.takes(name) for name in self.pool(held.ticket) if name != held.name)
        if broken and others and i not in self.given_back:
            self.given_back.add(i)
            self.start_anew(i, held.ticket)
            self.read(self.dispatcher.part_failed(self.now, i, broken=True))
            return
        share = self.scheduling.installments.pause
        self.pause[held.name] = self.now + share * (self.now - held.now)
        if not failed:
            self.done[i] = held.prefill if cached == 0 and before else held.grant.upto_tokens
        if self.is_up[held.name]:
            self.parked[i] = held.ticket
        else:
            self.start_anew(i, held.ticket)
        if failed:
            self.read(self.dispatcher.part_failed(self.now, i, broken=broken))
        else:
            self.read(self.dispatcher.part_ended(self.now, i, cached))

    def start_anew(self, i, ticket):
        self.done.pop(i, None)
        self.home.pop(i, None)
        self.waiting[i] = ticket
        self.anew[i] += 1

    def leave(self, number):
        """A client goes, wherever its request stands."""
        live = sorted([*self.waiting, *self.held, *self.parked])
        if live:
            self.end(live[number % len(live)], Ending.IGNORED)

    def end(self, i, ending):
        for books in (self.waiting, self.held, self.parked, self.done, self.home):
            books.pop(i, None)
        self.ends_trial(i)
        self.ends[i] += 1
        self.read(self.dispatcher.leave(self.now, i, ending, 5))
        assert self.dispatcher.leave(self.now, i, ending) == []

    def give_back(self, number):
        if not self.held:
            return
        i = sorted(self.held)[number % len(self.held)]
        held = self.held.pop(i)
        self.ends_trial(i)
        others = any(self.takes(name) for name in self.pool(held.ticket) if name != held.name)
        refused = i in self.given_back or not (others or self.takes(held.name))
        if not refused and not others and held.grant.part:
            self.parked[i] = held.ticket
            self.home[i] = held.name
        else:
            self.start_anew(i, held.ticket)
        self.given_back.add(i)
        effects = self.dispatcher.give_back(self.now, i)
        assert refused == any(x.ticket.id == i and getattr(x, "reason", None) is Reason.NO_BACKEND for x in effects)
        self.read(effects)

    def turn(self, number):
        """A backend goes down, or comes up."""
        name = sorted(self.is_up)[number % len(self.is_up)]
        self.is_up[name] = up = not self.is_up[name]
        if not up:
            self.pause[name] = 0.0
            for i in [i for i in self.parked if self.home[i] == name]:
                self.start_anew(i, self.parked.pop(i))
        self.read(self.dispatcher.set_backend_up(self.now, name, up))

    def cap(self, number):
        name = sorted(self.cap_of)[number % len(self.cap_of)]
        self.cap_of[name] = 1 + number % 6
        self.read(self.dispatcher.set_concurrency(self.now, name, self.cap_of[name]))

    def hold(self, number):
        """A backend says that it is busy."""
        name = sorted(self.is_up)[number % len(self.is_up)]
        until = self.now + (0.02, 0.3, 2.0)[number % 3]
        self.held_back[name] = max(self.held_back[name], until)
        self.read(self.dispatcher.hold_back(self.now, name, until))

    def enter(self, number):
        """A backend comes back in some way."""
        name = sorted(self.is_up)[number % len(self.is_up)]
        entry = (Entry(), Entry(trial=True), Entry(ramp=Ramp(self.now, 1.0)))[number // 3 % 3]
        self.entry[name] = entry
        self.tried.pop(name, None)
        self.read(self.dispatcher.set_entry(self.now, name, entry))

    def drain(self, number):
        """An operator takes a backend out of service, or in again."""
        name = sorted(self.is_up)[number % len(self.is_up)]
        self.drained ^= {name}
        self.read(self.dispatcher.set_drained(self.now, name, name in self.drained))

    def takes(self, name):
        """Whether new tickets may go there."""
        return self.is_up[name] and name not in self.drained

    def ends_trial(self, i):
        self.tried = {name: j for name, j in self.tried.items() if j != i}

    def wake(self, _number):
        self.read(self.dispatcher.wake(self.now))
        due = self.dispatcher.next_wake()
        assert due is None or due > self.now

    # -- what comes out

    def read(self, effects):
        for effect in effects:
            if isinstance(effect, Grant):
                self.granted(effect.ticket.id, effect)
            else:
                self.refused(effect.ticket.id, effect)

    def granted(self, i, grant):
        assert (i in self.waiting) != (i in self.parked)
        assert self.takes(grant.backend) or i in self.parked, "a drained backend got something new"
        self.waiting.pop(i, None)
        self.parked.pop(i, None)
        self.fits(i, grant)
        self.held[i] = Held(grant, self.now, self.done[i])
        if not grant.final:
            assert grant.ticket.lane == len(self.scheduling.lanes) - 1
            assert grant.upto_tokens % 128 == 0
            assert grant.backend not in [name for j, name in self.home.items() if j != i]
            self.home[i] = grant.backend

    def fits(self, i, grant):
        name, ticket = grant.backend, grant.ticket
        assert self.is_up[name]
        assert name in self.pool(ticket)
        assert self.home.get(i, name) == name
        assert self.now >= self.held_back[name], "a backend that is busy got something"
        assert name not in self.tried, "a second request went out in a trial"
        if self.entry[name].trial:
            self.tried[name] = i
        there = [held for held in self.held.values() if held.name == name]
        if there:
            slots = ticket.sequences if grant.final else 1
            ramp, cap = self.entry[name].ramp, self.cap_of[name]
            assert sum(held.slots for held in there) + slots <= (cap if ramp is None else ramp.limit(self.now, cap))
            if ticket.lane == len(self.scheduling.lanes) - 1 and self.scheduling.installments is not None:
                assert self.now >= self.pause[name], "a long prompt was sent in a pause"

    def pool(self, ticket):
        named = {model for x in self.limits.values() for model in x.models or ()}
        if ticket.model is None:
            return list(self.limits)
        if ticket.model in named:
            return [x.name for x in self.limits.values() if x.models is None or ticket.model in x.models]
        return [x.name for x in self.limits.values() if x.models is None] or list(self.limits)

    def refused(self, i, refusal):
        assert i in self.waiting, "a started prompt was refused"
        del self.waiting[i]
        self.ends[i] += 1
        assert refusal.outcome is not Outcome.EXPIRED or self.scheduling.drop_factor is not None
        assert refusal.retry_after_s >= 1.0
        assert refusal.detail

    # -- what must hold after every step

    def check(self):
        seen = self.dispatcher.snapshot(self.now)
        assert seen.live == len(self.waiting) + len(self.held) + len(self.parked)
        assert sum(lane.parked for lane in seen.lanes) == len(self.parked)
        assert sum(lane.waiting_requests + lane.returned for lane in seen.lanes) == len(self.waiting)
        for lane in seen.lanes:
            assert 0 <= lane.waiting_requests <= lane.limit_requests
            assert 0 <= lane.waiting_tokens <= lane.limit_tokens
            assert 0 <= lane.waiting_bytes <= lane.limit_bytes
            assert 0 <= lane.demoted_now <= lane.waiting_requests + lane.returned
            assert (lane.head_blocked is None) == (lane.waiting_requests + lane.returned + lane.parked == 0)
        for backend in seen.backends:
            self.check_backend(backend)
        for tenant in seen.tenants:
            self.check_tenant(tenant)

    def check_tenant(self, tenant):
        def of(tickets):
            return [ticket for ticket in tickets if (ticket.tenant or "") == tenant.name]

        running = of([held.ticket for held in self.held.values()] + list(self.parked.values()))
        assert tenant.running == sum(ticket.sequences for ticket in running)
        most = self.scheduling.fairness.limits_of(tenant.name).sequences
        assert most is None or tenant.running <= most or len(running) == 1
        anew = self.given_back | {i for i in self.waiting if self.anew[i]}
        new = [ticket for ticket in of(self.waiting.values()) if ticket.id not in anew]
        assert (tenant.waiting_requests, tenant.waiting_tokens) == (len(new), sum(x.prompt_tokens for x in new))

    def check_backend(self, backend):
        there = [held for held in self.held.values() if held.name == backend.name]
        assert backend.in_flight == sum(held.slots for held in there)
        assert backend.requests == len(there)
        assert backend.kv_tokens == sum(held.kv for held in there)
        assert backend.kv_limit is None or backend.kv_tokens <= backend.kv_limit or len(there) == 1
        assert backend.started in [None, *(i for i, name in self.home.items() if name == backend.name)]
        seen = [held for held in there if held.ticket.streams]  # of the others the clock decides
        blind = sum(held.prefill for held in there if not held.ticket.streams)
        certain = sum(held.prefill for held in seen)
        assert certain <= backend.prefill_tokens <= certain + blind
        assert backend.prefill_tokens == sum(backend.prefill_tokens_by_lane)
        self.check_budget(backend, [held for held in seen if held.prefill])

    def check_budget(self, backend, prefilling):
        budget = self.scheduling.prefill_budget_tokens
        if budget is None:
            return
        if self.scheduling.budget_mode is BudgetMode.SHARED:
            assert backend.prefill_tokens <= budget or len(prefilling) <= 1
            return
        by_lane = Counter(held.ticket.lane for held in prefilling)
        assert by_lane[len(self.scheduling.lanes) - 1] <= 1, "two long prompts in prefill"
        for lane, tokens in enumerate(backend.prefill_tokens_by_lane):
            assert tokens <= 4 * budget or by_lane[lane] <= 1

    def empty(self):
        """Let everyone go, and find nothing left."""
        while live := sorted([*self.waiting, *self.held, *self.parked]):
            self.end(live[0], Ending.IGNORED)
        seen = self.dispatcher.snapshot(self.now)
        assert seen.live == 0
        assert self.dispatcher.next_wake() is None
        for lane in seen.lanes:
            waiting = (lane.waiting_requests, lane.waiting_tokens, lane.waiting_bytes, lane.returned)
            assert (*waiting, lane.demoted_now, lane.parked, lane.head_blocked) == (0, 0, 0, 0, 0, 0, None)
        for backend in seen.backends:
            assert (backend.in_flight, backend.requests, backend.prefill_tokens) == (0, 0, 0)
            assert (backend.kv_tokens, backend.output_tokens_expected, backend.started) == (0, 0, None)
        for tenant in seen.tenants:
            assert (tenant.waiting_requests, tenant.waiting_tokens, tenant.running) == (0, 0, 0)
        assert self.ends == Counter(range(1, self.count + 1)), "a ticket did not end exactly once"


@settings(max_examples=60, deadline=None)
@given(SCHEDULING, backends(), EVENTS)
def test_every_ticket_ends_once_no_bound_is_exceeded_and_nothing_stays_held(scheduling, limits, events):
    shadow = Shadow(scheduling, limits)
    shadow.play(events)
    shadow.empty()


@settings(max_examples=25, deadline=None)
@given(SCHEDULING, backends(), EVENTS, st.integers(0, 4))
def test_a_reload_at_any_moment_loses_no_ticket_and_nothing_stays_held(scheduling, limits, events, at):
    plain = dataclasses.replace(scheduling, installments=None)
    shadow = Shadow(plain, limits)
    half = len(events) * at // 4
    shadow.play(events[:half])
    running = {i: held.name for i, held in shadow.held.items()}
    shadow.read(shadow.dispatcher.reconfigure(shadow.now, plain, limits))
    assert running.items() <= {i: held.name for i, held in shadow.held.items()}.items()
    shadow.check()
    shadow.play(events[half:])
    shadow.empty()


class Turnover:
    """An engine that ends each request a fixed time after its grant, and shows its first token at half of it."""

    def __init__(self, scheduling, limits, service):
        self.dispatcher = Dispatcher(scheduling, limits)
        self.service, self.now = service, 0.0
        self.agenda = []
        self.offered, self.settled = {}, {}

    def read(self, effects):
        for effect in effects:
            i = effect.ticket.id
            if not isinstance(effect, Grant):
                self.settled[i] = self.now
            elif effect.final:
                self.settled[i] = self.now
                heapq.heappush(self.agenda, (self.now + self.service / 2, "first", i))
                heapq.heappush(self.agenda, (self.now + self.service, "end", i))
            else:
                heapq.heappush(self.agenda, (self.now + self.service / 4, "part", i))

    def until(self, moment):
        while True:
            due = self.dispatcher.next_wake()
            at = self.agenda[0][0] if self.agenda else NEVER
            if min(at, due or NEVER) > moment:
                self.now = moment
                return
            if due is not None and due <= at:
                self.now = max(self.now, due)
                self.read(self.dispatcher.wake(self.now))
            else:
                self.now = at
                self.happen(*heapq.heappop(self.agenda)[1:])

    def happen(self, what, i):
        if what == "first":
            self.read(self.dispatcher.first_token(self.now, i))
        elif what == "part":
            self.read(self.dispatcher.part_ended(self.now, i))
        else:
            self.read(self.dispatcher.leave(self.now, i, Ending.MEASURED))

    def offer(self, prompt, **fields):
        i = len(self.offered) + 1
        self.offered[i] = self.now
        self.read(self.dispatcher.offer(self.now, Ticket(i, int(prompt > 2048), prompt, 50, **fields)))
        return i


@settings(max_examples=20, deadline=None)
@given(
    rules=st.tuples(st.sampled_from(LaneOrder), st.sampled_from(QueueOrder), st.sampled_from(BudgetMode)),
    drop=st.sampled_from([None, 1.0, 4.0]),
    parts=st.sampled_from([None, Installments()]),
    prompts=st.lists(st.sampled_from([50, 600, 1900, 3000, 9000, 24_000]), min_size=5, max_size=25),
    wide=st.integers(0, 30),
)
def test_nobody_waits_for_ever_while_the_engine_turns_over(rules, drop, parts, prompts, wide):
    limits = tuple(LaneLimits(name, None, 0.5, 10**6, 10**9, 10**9) for name in ("short", "long"))
    scheduling = Scheduling(limits, *rules, drop_factor=drop, installments=parts, ageing=1.0, prefill_s_per_token=1e-5)
    world = Turnover(scheduling, [BackendLimits("a", 4, kv_tokens=30_000)], service=0.1)
    for number, prompt in enumerate(prompts):  # more than it can serve
        world.offer(prompt, splittable=True, sequences=6 if number == wide else 1)
        world.until(world.now + 0.005)
    marked = list(world.offered)
    # Without a deadline: ten times the SLO, then one after the other, each alone and in up to sixteen parts.
    bound = 5.0 + len(marked) * (0.3 if parts is None else 0.9)
    while world.now < bound and not all(i in world.settled for i in marked):  # and short ones keep coming
        world.offer(300)
        world.until(world.now + 0.02)
    assert [i for i in marked if i not in world.settled] == []
    if drop is not None and parts is None:
        assert max(world.settled[i] - world.offered[i] for i in marked) <= drop * 0.5


def test_a_job_says_where_it_stands():
    scheduling = Scheduling((LaneLimits("short", None, 1.0, 9, 9, 9),))
    job = Job(Ticket(7, 0, 10, 10), LaneQueue(Lane(0, scheduling), []), 0.0)
    assert repr(job) == "<Job 7 waiting>"
    job.demoted, job.stage = True, Stage.DECODE
    assert repr(job) == "<Job 7 decode demoted>"
