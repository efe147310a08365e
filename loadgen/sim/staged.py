"""A situation played in virtual time: clients, a link, one engine and its cards; what is left is a run folder.

The folder is what `replay` writes: shots, manifest, and the readings of the engine's own metrics page and of an
npu-exporter page, taken once a second. Nothing is waited for, so an hour is played in seconds. It rehearses a
diagnosis where no engine is at hand.
"""

import hashlib
import heapq
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from loadgen.flight import Timeline
from loadgen.journal import Journal, RunFolder
from loadgen.plan import lane_of
from loadgen.preflight import cache_config, host_facts, versions
from loadgen.result import LoadOutcome, Result
from loadgen.sim.driver import Driver
from loadgen.sim.engine import Engine
from loadgen.sim.exposition import Exposition, Life
from loadgen.sim.nouns import Counters, EngineProfile, EngineRequest
from loadgen.sim.workloads import Arrival
from loadgen.summarise import summarise
from loadgen.telemetry.samples import Kind
from loadgen.telemetry.scrape import EVERY_S, Source, read_page

BORDER_TOKENS = 2048
CALL_S = 1e-5
"""From a new connection to the request on it."""
HEAD_S = 0.003
"""vLLM sends the head of a stream 2 to 9 ms after the request came, before it queues it."""


@dataclass(frozen=True, slots=True)
class Cards:
    """The cards of the engine, as an npu-exporter shows them.

    The AI core of a working card is busy while the engine computes; its HBM is busy for the share of that time given
    here, which no step model tells.
    """

    loaded: int = 1
    """Cards that hold a part of the model."""
    working: int = 1
    """Cards of them that compute."""
    bandwidth_share: float = 0.5
    """HBM bandwidth in use while the engine computes."""
    named: bool = True
    """Whether the labels are those of newer releases."""
    hbm_total_mb: int = 65536
    hbm_share: float = 0.9

    def page(self, busy: float) -> str:
        """Return the exporter's page.

        Args:
            busy: share of the last second that the engine computed.
        """
        lines = []
        for card in range(self.loaded):
            more = ',model_name="910B3",vdie_id="0",pcie_bus_info="0000:c1:00.0",namespace="",pod_name=""'
            labels = f'{{id="{card}"{more if self.named else ""}}}'
            working = busy if card < self.working else 0.0
            values = {
                "utilization": 100 * working,
                "hbm_bandwidth_utilization": 100 * working * self.bandwidth_share,
                "hbm_used_memory": self.hbm_share * self.hbm_total_mb,
                "hbm_total_memory": self.hbm_total_mb,
                "health_status": 1,
            }
            lines += [f"npu_chip_info_{name}{labels} {value:.0f}" for name, value in values.items()]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What is played."""

    profile: EngineProfile
    arrivals: Sequence[Arrival]
    out: Path
    link_s: float = 0.0002
    """One way between client and engine."""
    lag_s: float = 0.0
    """Mean lateness of the client itself; each request draws its own."""
    fails: str | None = None
    """`all`, or a lane: those requests are answered with an engine error."""
    in_stream: bool = False
    """Whether that error comes inside the stream, after the head."""
    message: str = "EngineCore encountered an issue. See stack trace (above) for the root cause."
    cards: Cards | None = None
    model: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further keys of the manifest: parameters, flags, premises, proxy."""
    noise_sigma: float = 0.0
    seed: int = 1
    label: str | None = None


class _Client:
    """One request: its due time, and when its tokens left the engine."""

    __slots__ = ("arrival", "due", "index", "left", "sent", "stage", "started", "tokens")

    def __init__(self, index: int, arrival: Arrival, due: float, started: float, stage: "_Stage") -> None:
        self.index, self.arrival, self.due, self.started = index, arrival, due, started
        self.sent = started
        self.left = False
        self.stage = stage
        self.tokens: list[float] = []

    @property
    def finish_reason(self) -> str:
        """Every answer has the length that was asked for."""
        return "length"

    def admitted(self, cached_tokens: int) -> None:
        """Nothing follows from it."""
        del cached_tokens

    def token(self, *, last: bool) -> None:
        """Stamp it."""
        self.tokens.append(self.stage.now)
        if last:
            self.stage.ended(self)


class _Stage:
    """One situation under way: one list of events beside the engine's own next step."""

    def __init__(self, situation: Situation) -> None:
        self._situation = situation
        self._random = random.Random(situation.seed)
        noise = random.Random(f"noise {situation.seed}") if situation.profile.noise_sigma > 0 else None
        self._engine = Engine(situation.profile, noise)
        self._counters: Counters = self._engine.counters
        self._model = situation.model or situation.profile.name
        self._exposition = Exposition(situation.profile, self._model, self._counters)
        self._driver = Driver(self._engine, self._exposition)
        self.now = 0.0
        self._open = 0
        self._kept_alive = 0
        self._events: list[tuple[float, int, Any]] = []
        self._order = itertools.count()
        self._busy_before = 0.0
        self._journal = Journal(situation.out, self._manifest())
        self._files = {source["file"]: (situation.out / source["file"]).open("wb") for source in self._sources()}
        self._line = Timeline(0, 1.0)
        self._late: list[float] = []

    def play(self) -> RunFolder:
        """Play it to its end."""
        self._read(-1.0)
        for index, arrival in enumerate(self._situation.arrivals):
            self._plan(index, arrival)
        self._at(EVERY_S, None)
        due: float | None = None
        while self._events or due is not None:
            if due is not None and (not self._events or due <= self._events[0][0]):
                self.now = due
                due = self._driver.advance(due)
                continue
            self.now, _, client = heapq.heappop(self._events)
            if client is None:
                self._read(self.now)
                if self._open:
                    self._at(self.now + EVERY_S, None)
            elif not client.left:
                self._leave(client)
            elif self._submit(client) and due is None:
                due = self._driver.advance(self.now)
        return self._close()

    def _at(self, when: float, client: _Client | None) -> None:
        heapq.heappush(self._events, (when, next(self._order), client))

    def _plan(self, index: int, arrival: Arrival) -> None:
        lag = self._random.expovariate(1 / self._situation.lag_s) if self._situation.lag_s else 0.0
        due = arrival.at_s - self._situation.arrivals[0].at_s
        self._late.append(lag)
        self._open += 1
        self._at(due + lag, _Client(index, arrival, due, due + lag, self))

    def _leave(self, client: _Client) -> None:
        """Send it, on a connection that is free, or after the handshake of a new one."""
        client.left = True
        if self._kept_alive:
            self._kept_alive -= 1
        else:
            client.sent = self.now + 2 * self._situation.link_s
        self._at(client.sent + self._situation.link_s, client)

    def _submit(self, client: _Client) -> bool:
        arrival = client.arrival
        lane = lane_of(arrival.prompt_tokens, BORDER_TOKENS)
        if self._situation.fails in {"all", lane.value}:
            self._failed(client)
            return False
        request = EngineRequest(client.index, arrival.prompt_tokens, arrival.output_tokens)
        life = Life(arrival.prompt_tokens, arrival.output_tokens, arrival.output_tokens, 1, self.now)
        self._driver.submit(self.now, request, life, client)
        return True

    # --- what clients see

    def _base(self, client: _Client) -> dict[str, Any]:
        arrival = client.arrival
        return {
            "index": client.index,
            "row": client.index + 1,
            "lane": lane_of(arrival.prompt_tokens, BORDER_TOKENS).value,
            "prompt_tokens": arrival.prompt_tokens,
            "output_tokens": arrival.output_tokens,
            "due": client.due,
            "started": client.started,
            "sent": client.sent + (CALL_S if client.sent > client.started else 0.0),
            "connected": client.sent,
            "head": client.sent + 2 * self._situation.link_s + HEAD_S,
        }

    def _failed(self, client: _Client) -> None:
        self._open -= 1
        self._kept_alive += 1
        base = self._base(client)
        status = 200 if self._situation.in_stream else 500
        more = {
            "end": base["head"],
            "status": status,
            "reason": "InternalServerError",
            "detail": self._situation.message,
        }
        self._journal.add(Result(**base, outcome=LoadOutcome.ERROR, **more))

    def ended(self, client: _Client) -> None:
        """Write the line of a request that got its last token."""
        self._open -= 1
        self._kept_alive += 1
        there = [when + self._situation.link_s for when in client.tokens]
        stamps = [round(when * 1e9) for when in there]
        self._journal.add(
            Result(
                **self._base(client),
                outcome=LoadOutcome.OK,
                first=there[0],
                first_content=there[0],
                last=there[-1],
                end=there[-1],
                tokens=len(there),
                tokens_from="usage",
                chunks=len(there),
                status=200,
                finish="length",
                usage_prompt=client.arrival.prompt_tokens,
                events=self._line.event_deltas(stamps, round(client.sent * 1e9)),
            )
        )

    # --- what is read beside it

    def _sources(self) -> list[dict[str, Any]]:
        kinds = [Kind.ENGINE, *([Kind.CARDS] if self._situation.cards is not None else [])]
        return [Source(kind, "virtual time", f"{kind.value}.jsonl").facts() for kind in kinds]

    def _read(self, t: float) -> None:
        pages = {Kind.ENGINE: self._exposition.render().decode()}
        if self._situation.cards is not None:
            busy = min(1.0, max(0.0, self._counters.busy_s - self._busy_before) / EVERY_S)
            pages[Kind.CARDS] = self._situation.cards.page(busy)
        self._busy_before = self._counters.busy_s
        for kind, page in pages.items():
            line = orjson.dumps(read_page(kind, page, t, 0.0).line(), option=orjson.OPT_APPEND_NEWLINE)
            self._files[f"{kind.value}.jsonl"].write(line)

    # --- the folder

    def _manifest(self) -> dict[str, Any]:
        situation, arrivals = self._situation, self._situation.arrivals
        rows = [(round(one.at_s * 1e6), one.prompt_tokens, one.output_tokens) for one in arrivals]
        page = self._exposition.render().decode()
        return {
            "label": situation.label or situation.out.name,
            "virtual": True,
            "plan": {
                "hash": hashlib.sha256(repr(rows).encode()).hexdigest()[:16],
                "requests": len(arrivals),
                "span_s": arrivals[-1].at_s - arrivals[0].at_s,
                "border": BORDER_TOKENS,
            },
            "target": "virtual time",
            "endpoint": "completions",
            "model": self._model,
            "engine": {"version": f"simulated {situation.profile.name}", "cache_config": cache_config(page)},
            "speed": 1.0,
            "salt": f"virtual {situation.seed}",
            "parameters": {},
            "telemetry": self._sources(),
            "host": host_facts(),
            "versions": versions(),
            **situation.facts,
        }

    def _close(self) -> RunFolder:
        self._read(self.now)
        for file in self._files.values():
            file.close()
        folder = self._journal.close(
            complete=True, sent=len(self._late), loop_lag_p99_s=0.0, most_in_flight=None, connections=1
        )
        folder.note(client_limited=summarise(folder).client_limited)
        return folder


def play(situation: Situation) -> RunFolder:
    """Play a situation and return its run folder.

    Raises:
        UsageError: the folder is in use.
        ValueError: a request can never run on this engine.
    """
    return _Stage(situation).play()
