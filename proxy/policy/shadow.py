"""Deciding on paper: what the lanes would do with the traffic that passes them by.

A second Dispatcher gets what really happens (requests come, show a first token, end) and its grants and refusals are
written down instead of obeyed. What it takes for running are the requests that it granted on paper, for as long as they
really run; so under overload it is on the dark side, because the engine is really slower than it would be behind lanes.
Concurrency limits do not adapt on paper and long prompts are not fed in parts: both would need an engine that feels
what was decided.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from proxy.policy.dispatch import Dispatcher
from proxy.policy.limits import BackendLimits, Scheduling
from proxy.policy.outcome import Ending, Outcome, Reason
from proxy.policy.ticket import Effect, Refuse, Ticket


class Decision(StrEnum):
    """What would have become of a request; the metric label and the word in the trace."""

    SEND = "send"
    """Sent at once."""
    QUEUE = "queue"
    """Sent after waiting, or still waiting on paper when the real request was over."""
    REJECT = "reject"
    """Never queued."""
    EXPIRE = "expire"
    """Dropped from the queue by its deadline."""
    TOO_LONG = "too_long"
    """Answered 400: it can never fit."""
    INVALID = "invalid"
    """Answered 400: its body cannot be understood."""


@dataclass(slots=True)
class Would:
    """What would have become of one request. `decision` is None until that is known."""

    decision: Decision | None = None
    reason: Reason | None = None
    wait_s: float | None = None
    """Seconds it would have waited, where it would have waited or been sent; at least that many when it was over before
    its turn came."""
    cap: int | None = None
    """Output cap that the engine would have been asked for instead of the client's own."""
    cap_rule: str | None = None


@dataclass(slots=True)
class _Open:
    """A ticket on paper that has not left."""

    would: Would
    offered: float
    first_token: bool = False


def on_paper(limits: Sequence[BackendLimits]) -> tuple[BackendLimits, ...]:
    """Return backends whose concurrency stays as it is configured."""
    return tuple(replace(one, adaptive=None) for one in limits)


class Shadow:
    """Decides on paper for traffic that a real Dispatcher lets pass.

    Args:
        scheduling: the settings that are tried out.
        backends: the backends as configured.
        real: the Dispatcher that the traffic goes through: it sees how fast the engines really prefill.
    """

    def __init__(self, scheduling: Scheduling, backends: Sequence[BackendLimits], real: Dispatcher) -> None:
        self.dispatcher = Dispatcher(replace(scheduling, installments=None), on_paper(backends))
        self._real = real
        self._open: dict[int, _Open] = {}

    def __repr__(self) -> str:
        return f"<Shadow {len(self._open)} open, {self.dispatcher!r}>"

    def offer(self, now: float, ticket: Ticket, would: Would) -> None:
        """Take a request that goes to an engine.

        Args:
            now: monotonic seconds.
            ticket: the ticket; one that is `at_once` on paper too only takes its place.
            would: filled when it is decided.
        """
        self.dispatcher.take_speeds(self._real)
        self._open[ticket.id] = _Open(would, now)
        # Its budget comes back by the clock, or with the real first token: it teaches nothing, because the real engine
        # has more to prefill than was granted on paper.
        self._apply(now, self.dispatcher.offer(now, ticket._replace(streams=False, splittable=False)))

    def first_token(self, now: float, ticket_id: int) -> None:
        """Take the first token of a request; again, or of an unknown one, is harmless."""
        one = self._open.get(ticket_id)
        if one is None or one.first_token:
            return
        one.first_token = True
        if one.would.decision in {Decision.SEND, Decision.QUEUE}:
            self._apply(now, self.dispatcher.first_token(now, ticket_id))

    def leave(self, now: float, ticket_id: int, ending: Ending, output_tokens: int | None = None) -> None:
        """Take the end of a request; what waits on paper then would have waited at least until now."""
        one = self._open.pop(ticket_id, None)
        if one is None:
            return
        if one.would.decision is None:
            one.would.decision, one.would.wait_s = Decision.QUEUE, now - one.offered
        self._apply(now, self.dispatcher.leave(now, ticket_id, ending, output_tokens))

    def wake(self, now: float) -> None:
        """Do what is due."""
        self._apply(now, self.dispatcher.wake(now))

    def next_wake(self) -> float | None:
        """Return when `wake` has something to do; None while nothing is due ever."""
        return self.dispatcher.next_wake()

    def set_backend_up(self, now: float, name: str, up: bool) -> None:
        """Take note that a backend can or cannot be reached.

        Raises:
            KeyError: no such backend.
        """
        self._apply(now, self.dispatcher.set_backend_up(now, name, up))

    def reconfigure(
        self, now: float, scheduling: Scheduling, backends: Sequence[BackendLimits], down: Collection[str] = ()
    ) -> None:
        """Take new settings and backends.

        Raises:
            ValueError: see `Dispatcher.reconfigure`.
        """
        self._apply(
            now,
            self.dispatcher.reconfigure(now, replace(scheduling, installments=None), on_paper(backends), down),
        )

    def _apply(self, now: float, effects: list[Effect]) -> None:
        """Write decisions down. A request that waited on paper while its real first token came has no prefill left."""
        todo = list(effects)
        while todo:
            effect = todo.pop(0)
            one = self._open.get(effect.ticket.id)
            if one is None:
                continue
            would = one.would
            would.wait_s = now - one.offered
            if isinstance(effect, Refuse):
                expired = effect.outcome is Outcome.EXPIRED
                would.decision, would.reason = (Decision.EXPIRE if expired else Decision.REJECT), effect.reason
                continue
            would.decision = Decision.QUEUE if would.wait_s > 0 else Decision.SEND
            if one.first_token:
                todo += self.dispatcher.first_token(now, effect.ticket.id)
