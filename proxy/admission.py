"""The asyncio shell of the Dispatcher: a future per waiting ticket, and one timer for the next thing that is due.

    async with admission.turn(ticket) as turn:
        grant = await turn.grant()          # again for each further grant of a ticket that is fed in parts
        ...                                 # the slot is held to the end of the block, whatever happens in it
        turn.first_token()

Leaving the block is the only way out, so a cancellation at any moment leaves nothing held.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import Self

from proxy.pace import Pace, hand_over
from proxy.paper import Paper
from proxy.policy.dispatch import Dispatcher
from proxy.policy.entry import Entry
from proxy.policy.limits import BackendLimits, Scheduling
from proxy.policy.outcome import Ending, Outcome, Reason
from proxy.policy.shadow import Would
from proxy.policy.snapshot import Snapshot
from proxy.policy.ticket import Effect, Grant, Refuse, Ticket

_SHORTEST_TIMER_S = 0.001
"""uvloop's timers count milliseconds; a shorter one would fire before its moment and find nothing due."""


class RefusedError(Exception):
    """The Dispatcher will not grant this ticket."""

    def __init__(self, refuse: Refuse) -> None:
        super().__init__(refuse.detail)
        self.refuse = refuse


class Turn:
    """One ticket on its way through the Dispatcher. Made by `Admission.turn`."""

    __slots__ = (
        "_admission",
        "_inbox",
        "_paper",
        "_waiter",
        "_would",
        "cached_tokens",
        "ending",
        "output_tokens",
        "ticket",
    )

    def __init__(self, admission: "Admission", ticket: Ticket, would: Would | None = None) -> None:
        self._admission = admission
        self._paper = admission.paper if would is None or would.decision is None else None
        self._would = would
        self._inbox: Effect | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.ticket = ticket
        self.ending = Ending.IGNORED
        """What its end tells the limiter; set it before leaving the block."""
        self.output_tokens: int | None = None
        self.cached_tokens: int | None = None

    async def __aenter__(self) -> Self:
        self._admission._enter(self)  # noqa: SLF001 - the two halves of one thing
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admission._leave(self)  # noqa: SLF001

    async def grant(self) -> Grant:
        """Wait for the next grant.

        Raises:
            RefusedError: there will be none; the ticket is out of the Dispatcher.
        """
        if self._inbox is None:
            await self._wait()
        effect, self._inbox = self._inbox, None
        assert effect is not None
        if isinstance(effect, Refuse):
            raise RefusedError(effect)
        return effect

    async def _wait(self) -> None:
        waiting, lane = self._admission.waiting, self.ticket.lane
        waiting[lane] += 1
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
            waiting[lane] -= 1

    def first_token(self) -> None:
        """Give the prefill budget back."""
        admission = self._admission
        admission.apply(admission.dispatcher.first_token(time.monotonic(), self.ticket.id))
        if self._paper is not None:
            self._paper.first_token(self.ticket.id)

    def part_ended(self, cached_tokens: int | None) -> None:
        """One part is done; the next `grant` continues it."""
        admission = self._admission
        admission.apply(admission.dispatcher.part_ended(time.monotonic(), self.ticket.id, cached_tokens))

    def part_failed(self, *, refused: bool = False, broken: bool = False) -> None:
        """One part came to nothing; the next `grant` is for the rest, whole.

        Args:
            refused: the engine did not like what the client asks for.
            broken: the engine failed, or did not answer.
        """
        admission = self._admission
        admission.apply(
            admission.dispatcher.part_failed(time.monotonic(), self.ticket.id, refused=refused, broken=broken)
        )

    def give_back(self) -> None:
        """The grant could not be used: not one byte was sent. The next `grant` is for another backend, or refuses."""
        admission = self._admission
        admission.apply(admission.dispatcher.give_back(time.monotonic(), self.ticket.id))

    def begin_on_paper(self) -> None:
        """Show the ticket to whoever decides on paper, where somebody does.

        One that goes at once so that it can be judged is judged there; one that would do so anyway takes its place.
        """
        if self._paper is None:
            return
        if self._would is None:
            self._paper.offer(self.ticket, Would())
        else:
            self._paper.offer(self.ticket._replace(at_once=False), self._would)

    def end_on_paper(self) -> None:
        """Show its end there."""
        if self._paper is not None:
            self._paper.leave(self.ticket.id, self.ending, self.output_tokens)

    def show(self, paper: Paper) -> None:
        """Take a place on a new paper, as one that runs already."""
        self._paper, self._would = paper, None
        paper.offer(self.ticket._replace(at_once=True), Would())

    def deliver(self, effect: Effect) -> None:
        """Take what the Dispatcher decided."""
        self._inbox = effect
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    @property
    def waiting(self) -> bool:
        """Whether it waits for a grant that was not decided yet."""
        return self._waiter is not None and self._inbox is None


class Admission:
    """Runs a Dispatcher on the event loop.

    Args:
        dispatcher: decides.
        paces: what the streams of each backend say of its speed; handed to the Dispatcher before it adapts.
    """

    def __init__(self, dispatcher: Dispatcher, paces: Mapping[str, Pace] | None = None) -> None:
        self.dispatcher = dispatcher
        self._paces = {} if paces is None else paces
        self._paper: Paper | None = None
        self.waiting: Counter[int] = Counter()
        """Turns that wait for a grant, by lane: the depth that a refusal tells."""
        self._turns: dict[int, Turn] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self.on_change: Callable[[], None] | None = None
        """Told after each event: whoever keeps the leases."""

    def __repr__(self) -> str:
        return f"<Admission {len(self._turns)} turns, {self.dispatcher!r}>"

    @property
    def live(self) -> int:
        """Tickets that wait or run."""
        return len(self._turns)

    @property
    def paper(self) -> Paper | None:
        """Who decides on paper about what comes; None while nobody does."""
        return self._paper

    @paper.setter
    def paper(self, paper: Paper | None) -> None:
        """Let somebody decide on paper from now on, beginning with what runs; or nobody."""
        if self._paper is not None:
            self._paper.close()
        self._paper = paper
        if paper is not None:
            for turn in self._turns.values():
                if not turn.waiting:
                    turn.show(paper)

    def turn(self, ticket: Ticket, would: Would | None = None) -> Turn:
        """Return the context in which `ticket` waits and runs.

        Args:
            ticket: asks to run.
            would: takes what is decided on paper; None: nobody asks. One that is decided already is not shown there.
        """
        return Turn(self, ticket, would)

    def apply(self, effects: list[Effect]) -> None:
        """Hand effects to whom they concern, and set the timer for what is due next."""
        for effect in effects:
            turn = self._turns.get(effect.ticket.id)
            if turn is not None:
                turn.deliver(effect)
        self._arm()
        if self.on_change is not None:
            self.on_change()

    def set_backend_up(self, name: str, *, up: bool) -> None:
        """Take note that a backend can or cannot be reached.

        Raises:
            KeyError: no such backend.
        """
        self.apply(self.dispatcher.set_backend_up(time.monotonic(), name, up))
        self._show_standing(name)

    def set_entry(self, name: str, entry: Entry) -> None:
        """Take how a backend comes back; see `Dispatcher.set_entry`.

        Raises:
            KeyError: no such backend.
        """
        self.apply(self.dispatcher.set_entry(time.monotonic(), name, entry))

    def hold_back(self, name: str, seconds: float) -> None:
        """Leave a backend alone for a while; see `Dispatcher.hold_back`."""
        now = time.monotonic()
        self.apply(self.dispatcher.hold_back(now, name, now + seconds))

    def set_drained(self, name: str, drained: bool) -> None:
        """Take an order to give a backend nothing new, or the end of that order; see `Dispatcher.set_drained`.

        Raises:
            KeyError: no such backend.
        """
        now = time.monotonic()
        self.apply(self.dispatcher.set_drained(now, name, drained))
        self._show_standing(name)

    def _show_standing(self, name: str) -> None:
        """Show whoever decides on paper whether a backend takes new requests."""
        if self._paper is not None:
            up = self.dispatcher.takes_new(name)
            self._paper.shadow.set_backend_up(time.monotonic(), name, up)
            self._paper.arm()

    def reconfigure(
        self, scheduling: Scheduling, backends: Sequence[BackendLimits], down: Collection[str] = ()
    ) -> None:
        """Change settings and backends under what waits and runs; see `Dispatcher.reconfigure`.

        Raises:
            ValueError: no lanes, or two lanes or backends of one name; then nothing has changed.
        """
        now = time.monotonic()
        self.apply(self.dispatcher.reconfigure(now, scheduling, backends, down))
        if self._paper is not None:
            self._paper.shadow.reconfigure(now, scheduling, backends, down)
            self._paper.arm()

    def set_prefix_cache(self, name: str, *, enabled: bool, granularity: int, trusted: bool) -> None:
        """Take what an engine says about its prefix cache; see `Dispatcher.set_prefix_cache`.

        Raises:
            KeyError: no such backend.
        """
        now = time.monotonic()
        self.apply(self.dispatcher.set_prefix_cache(now, name, enabled, granularity, trusted=trusted))

    def drain(self) -> None:
        """Refuse every new ticket from now on; those that wait or run are served."""
        self.apply(self.dispatcher.drain(time.monotonic()))

    def refuse_waiting(self, detail: str) -> int:
        """Refuse everyone who still waits, because the time to drain is over; return how many."""
        waiting = [turn for turn in self._turns.values() if turn.waiting]
        for turn in waiting:
            turn.deliver(Refuse(turn.ticket, Outcome.DRAINING, Reason.DRAINING, 1.0, detail))
        return len(waiting)

    def snapshot(self) -> Snapshot:
        """Return what can be seen of lanes and backends now."""
        return self.dispatcher.snapshot(time.monotonic())

    def close(self) -> None:
        """Stop the timers."""
        if self._paper is not None:
            self._paper.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _enter(self, turn: Turn) -> None:
        self._turns[turn.ticket.id] = turn
        turn.begin_on_paper()
        self.apply(self.dispatcher.offer(time.monotonic(), turn.ticket))

    def _leave(self, turn: Turn) -> None:
        ticket_id = turn.ticket.id
        del self._turns[ticket_id]
        turn.end_on_paper()
        effects = self.dispatcher.leave(
            time.monotonic(), ticket_id, turn.ending, turn.output_tokens, turn.cached_tokens
        )
        if effects:
            self.apply(effects)
        elif self.on_change is not None:  # nothing is due sooner because somebody left: the timer may stay
            self.on_change()

    def _arm(self) -> None:
        at = self.dispatcher.next_wake()
        if at is None or (self._timer is not None and self._timer_at <= at):
            return  # a timer that comes too early finds nothing due and sets the next
        if self._timer is not None:
            self._timer.cancel()
        delay = max(_SHORTEST_TIMER_S, at - time.monotonic())
        self._timer_at = at
        self._timer = asyncio.get_running_loop().call_later(delay, self._wake)

    def _wake(self) -> None:
        self._timer = None
        hand_over(self._paces, self.dispatcher)
        self.apply(self.dispatcher.wake(time.monotonic()))
