"""The virtual-time loop: arrivals, a policy in front, engines behind, and one list of events in time order."""

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from loadgen.sim.clients import PATIENT, Clients
from loadgen.sim.engine import Engine, EngineRequest, Step
from loadgen.sim.front import Front, Lost, Order, Send
from loadgen.sim.workloads import Arrival

BORDER_TOKENS = 2048
"""Longest prompt of the short class."""


@dataclass(frozen=True, slots=True)
class Delays:
    """How long messages and clients take, in seconds."""

    dispatch_s: float = 0.002
    """From the decision to send until the request is in the engine."""
    part_seen_s: float = 0.002
    """From the end of a part until the proxy knows it."""
    patience_short_s: float | None = 30.0
    """A client without a first token leaves after this; None: never."""
    patience_long_s: float | None = 60.0


@dataclass(slots=True)
class Served:
    """What became of one request. Times are virtual seconds."""

    arrived_s: float
    prompt_tokens: int
    output_tokens: int
    first_s: float | None = None
    end_s: float | None = None
    """When its last token came, or when it was lost."""
    outcome: str = ""
    """ok, rejected, expired or client_gone; of the last attempt."""
    reason: str = ""
    attempts: int = 1
    asked_s: float | None = None
    """When the last attempt came; None: it is the first."""

    @property
    def short(self) -> bool:
        """Whether it belongs to the short class of the SLO."""
        return self.prompt_tokens <= BORDER_TOKENS

    @property
    def ttft_s(self) -> float | None:
        """Arrival of the last attempt to first token."""
        if self.first_s is None:
            return None
        return self.first_s - (self.arrived_s if self.asked_s is None else self.asked_s)

    @property
    def tpot_s(self) -> float | None:
        """Mean gap between its tokens; 0 for a single token, None when it did not end well."""
        if self.outcome != "ok" or self.first_s is None or self.end_s is None:
            return None
        return (self.end_s - self.first_s) / max(1, self.output_tokens - 1)


@dataclass(slots=True)
class _Flight:
    """One request inside an engine: a final or a part."""

    index: int
    backend: int
    final: bool
    done: int
    """Prompt tokens that earlier parts covered."""
    cached: int = 0


@dataclass(slots=True)
class Driven:
    """All that a run gives."""

    served: list[Served]
    recomputed_tokens: int = 0
    """Prompt tokens computed twice: thrown away by preemption, or parts of a prompt that had left the cache."""
    needed_tokens: int = 0
    """Prompt tokens of everything that was sent whole."""
    ended_s: float = 0.0


@dataclass(slots=True)
class _State:
    """Per request, beside what is reported."""

    flight: int | None = None
    covered: int = 0
    hashes: list[int] | None = None
    leaves_at: float = 0.0
    """When the client's patience ends."""


@dataclass(slots=True)
class Drive:
    """Runs one list of arrivals through one front and its engines, once.

    Attributes:
        engines: one per backend, fresh.
        front: the policy.
        arrivals: in time order.
        delays: latencies and patience.
        hashed: whether prompts can be found again in the engines' prefix caches (needed for installments).
        clients: how they behave beside their patience.
    """

    engines: Sequence[Engine]
    front: Front
    arrivals: Sequence[Arrival]
    delays: Delays = field(default_factory=Delays)
    hashed: bool = False
    clients: Clients = PATIENT
    _events: list[tuple[float, int, Callable[[float, int], None], int]] = field(default_factory=list)
    _count: int = 0
    _flights: dict[int, _Flight] = field(default_factory=dict)
    _sent: int = 0
    _busy: list[Step | None] = field(default_factory=list)
    _armed: float | None = None
    _states: list[_State] = field(default_factory=list)
    _out: Driven = field(default_factory=lambda: Driven([]))

    def run(self) -> Driven:
        """Run until every request has ended, and return what became of them."""
        self._busy = [None] * len(self.engines)
        self._states = [_State() for _ in self.arrivals]
        self._out = Driven([Served(a.at_s, a.prompt_tokens, a.output_tokens) for a in self.arrivals])
        for index, arrival in enumerate(self.arrivals):
            self._at(arrival.at_s, self._arrive, index)
        events, now = self._events, 0.0
        while events:
            now, _, action, argument = heapq.heappop(events)
            action(now, argument)
        self._out.recomputed_tokens += sum(engine.counters.recomputed_tokens for engine in self.engines)
        self._out.ended_s = now
        return self._out

    def _at(self, when: float, action: Callable[[float, int], None], argument: int) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, action, argument))

    # --- clients

    def _arrive(self, now: float, index: int) -> None:
        arrival, served = self.arrivals[index], self._out.served[index]
        patience = self.delays.patience_short_s if served.short else self.delays.patience_long_s
        self._obey(now, self.front.arrive(now, index, arrival.prompt_tokens, arrival.output_tokens))
        if patience is not None and not served.outcome:
            self._states[index].leaves_at = now + patience
            self._at(now + patience, self._lose_patience, index)

    def _ask_again(self, now: float, index: int) -> None:
        served, state = self._out.served[index], self._states[index]
        served.outcome, served.reason, served.end_s = "", "", None
        served.attempts, served.asked_s = served.attempts + 1, now
        state.covered = 0
        self._arrive(now, index)

    def _turned_away(self, now: float, index: int) -> None:
        """Let the client of a lost request decide whether it asks again."""
        if self._out.served[index].attempts <= self.clients.retries:
            self._at(now + self.clients.retry_after_s, self._ask_again, index)

    def _lose_patience(self, now: float, index: int) -> None:
        served, state = self._out.served[index], self._states[index]
        if served.outcome or served.first_s is not None or now < state.leaves_at:
            return
        served.outcome, served.end_s = "client_gone", now
        if state.flight is not None:
            flight = self._flights.pop(state.flight)
            self.engines[flight.backend].abort(state.flight)
            state.flight = None
        self._turned_away(now, index)
        self._obey(now, self.front.gone(now, index))

    # --- the front

    def _obey(self, now: float, orders: Iterable[Order]) -> None:
        for order in orders:
            if isinstance(order, Send):
                self._send(now, order)
            else:
                self._lose(now, order)
        self._arm(now)

    def _arm(self, now: float) -> None:
        at = self.front.next_wake()
        if at is not None and (self._armed is None or at < self._armed):
            self._armed = max(now, at)
            self._at(self._armed, self._wake, 0)

    def _wake(self, now: float, _: int) -> None:
        if self._armed is not None and now >= self._armed:
            self._armed = None
            self._obey(now, self.front.wake(now))

    def _lose(self, now: float, lost: Lost) -> None:
        served = self._out.served[lost.index]
        served.outcome, served.reason, served.end_s = lost.outcome, lost.reason, now
        self._turned_away(now, lost.index)

    def _send(self, now: float, send: Send) -> None:
        self._sent += 1
        state = self._states[send.index]
        state.flight = self._sent
        self._flights[self._sent] = _Flight(send.index, send.backend, send.final, state.covered)
        state.covered = send.upto_tokens
        if send.final:
            self._out.needed_tokens += self.arrivals[send.index].prompt_tokens
        self._at(now + self.delays.dispatch_s, self._reach, self._sent)

    # --- the engines

    def _reach(self, now: float, sent: int) -> None:
        flight = self._flights.get(sent)
        if flight is None:
            return
        arrival, state = self.arrivals[flight.index], self._states[flight.index]
        prompt, output = (arrival.prompt_tokens, arrival.output_tokens) if flight.final else (state.covered, 1)
        engine = self.engines[flight.backend]
        hashes = self._hashes(flight.index, engine.profile.block_size) if self.hashed else None
        engine.submit(now, EngineRequest(sent, prompt, output, hashes))
        if self._busy[flight.backend] is None:
            self._begin(now, flight.backend)

    def _hashes(self, index: int, block: int) -> list[int] | None:
        """Return one hash per whole block of the prompt; no two prompts share any. Short prompts need none."""
        state, served = self._states[index], self._out.served[index]
        if state.hashes is None and not served.short:
            first = index << 16
            state.hashes = list(range(first, first + served.prompt_tokens // block))
        return state.hashes

    def _begin(self, now: float, backend: int) -> None:
        step = self.engines[backend].step(now)
        self._busy[backend] = step
        if step is not None:
            self._at(now + step.duration_s, self._end_step, backend)

    def _end_step(self, now: float, backend: int) -> None:
        step = self._busy[backend]
        assert step is not None
        self._begin(now, backend)
        if step.decodes:
            self.front.stepped(backend, step.duration_s * step.decodes, step.decodes)
        for sent, cached in step.admitted:
            self._note_cached(int(sent), cached)
        for sent in step.first:
            self._first(now, int(sent))
        for sent in step.finished:
            self._finish(now, int(sent))

    def _note_cached(self, sent: int, cached: int) -> None:
        flight = self._flights.get(sent)
        if flight is not None:
            block = self.engines[flight.backend].profile.block_size
            flight.cached = cached
            self._out.recomputed_tokens += max(0, flight.done // block * block - cached)

    def _first(self, now: float, sent: int) -> None:
        flight = self._flights.get(sent)
        if flight is None or not flight.final:
            return
        self._out.served[flight.index].first_s = now
        self._obey(now, self.front.first_token(now, flight.index))

    def _finish(self, now: float, sent: int) -> None:
        flight = self._flights.pop(sent, None)
        if flight is None:
            return
        self._states[flight.index].flight = None
        if not flight.final:
            self._flights[sent] = flight
            self._at(now + self.delays.part_seen_s, self._part_seen, sent)
            return
        served = self._out.served[flight.index]
        served.end_s, served.outcome = now, "ok"
        self._obey(now, self.front.finished(now, flight.index, served.output_tokens, flight.cached))

    def _part_seen(self, now: float, sent: int) -> None:
        flight = self._flights.pop(sent)
        if not self._out.served[flight.index].outcome:
            self._obey(now, self.front.part_ended(now, flight.index, flight.cached))
