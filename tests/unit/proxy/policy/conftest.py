"""A desk in front of a Dispatcher: tickets by number, time as a variable, every effect kept."""

import dataclasses

import pytest

from proxy.policy.dispatch import Dispatcher
from proxy.policy.limits import BackendLimits, Installments, LaneLimits, Scheduling
from proxy.policy.outcome import Ending
from proxy.policy.ticket import Grant, Refuse, Ticket

PLENTY = 10**9


TWO_LANES = (
    LaneLimits("short", 2048, 1.0, 1000, PLENTY, PLENTY),
    LaneLimits("long", None, 5.0, 1000, PLENTY, PLENTY),
)


class Desk:
    """One unit of prompt costs 0.1 ms and an output token nothing, unless the test says otherwise."""

    def __init__(self, backends=1, *, concurrency=8, kv_tokens=None, limits=None, **scheduling):
        settings = {"lanes": TWO_LANES, "prefill_s_per_token": 0.0001, "decode_weight": 0.0, "deadline_margin_s": 0.0}
        self.scheduling = Scheduling(**(settings | scheduling))
        names = "abcdefgh"[:backends]
        self.backends = limits or [BackendLimits(name, concurrency, kv_tokens=kv_tokens) for name in names]
        self.dispatcher = Dispatcher(self.scheduling, self.backends)
        self.now = 0.0
        self.grants = []
        self.refusals = []
        self._ids = 0

    def keep(self, effects):
        self.grants += [effect for effect in effects if isinstance(effect, Grant)]
        self.refusals += [effect for effect in effects if isinstance(effect, Refuse)]
        return effects

    def offer(self, prompt=100, output=10, *, lane=None, **fields):
        self._ids += 1
        if lane is None:
            lane = int(prompt > 2048)
        self.keep(self.dispatcher.offer(self.now, Ticket(self._ids, lane, prompt, output, **fields)))
        return self._ids

    def first_token(self, *ids):
        return [effect for i in ids for effect in self.keep(self.dispatcher.first_token(self.now, i))]

    def part_ended(self, i, cached=None):
        return self.keep(self.dispatcher.part_ended(self.now, i, cached))

    def part_failed(self, i):
        return self.keep(self.dispatcher.part_failed(self.now, i))

    def give_back(self, i):
        return self.keep(self.dispatcher.give_back(self.now, i))

    def leave(self, *ids, ending=Ending.MEASURED, **facts):
        return [e for i in ids for e in self.keep(self.dispatcher.leave(self.now, i, ending, **facts))]

    def wake(self):
        return self.keep(self.dispatcher.wake(self.now))

    def up(self, name, up):
        return self.keep(self.dispatcher.set_backend_up(self.now, name, up))

    def reconfigure(self, backends=None, **changes):
        self.scheduling = dataclasses.replace(self.scheduling, **changes)
        self.backends = backends or self.backends
        return self.keep(self.dispatcher.reconfigure(self.now, self.scheduling, self.backends))

    def see(self):
        return self.dispatcher.snapshot(self.now)

    def lane(self, index):
        return self.see().lanes[index]

    def backend(self, index=0):
        return self.see().backends[index]

    @property
    def granted(self):
        """Ids in the order of their grants."""
        return [grant.ticket.id for grant in self.grants]

    @property
    def refused(self):
        """(id, outcome, reason) in order."""
        return [(refusal.ticket.id, refusal.outcome.value, refusal.reason.value) for refusal in self.refusals]


@pytest.fixture
def desk():
    """Build a desk: number of backends, then what differs from the defaults."""
    return Desk


@pytest.fixture
def parts():
    """Settings of installments: parts of 1024 tokens."""
    return Installments(part_tokens=1024, parts_at_most=16, pause=0.25)
