"""One row of a study: a policy, a workload and a load, over several windows, measured in virtual time."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from loadgen.failure import UsageError
from loadgen.sim.changes import UNCHANGED, Change
from loadgen.sim.clients import ABUSER, PATIENT, Clients
from loadgen.sim.drive import Delays, Drive, Driven, Served
from loadgen.sim.engine import Engine
from loadgen.sim.front import Front
from loadgen.sim.nouns import EngineProfile
from loadgen.sim.policies import Balance, Direct, StaticLanes
from loadgen.sim.several import several
from loadgen.sim.srpt import SrptEngine
from loadgen.sim.virtual import (
    LONG_SLO_S,
    SHORT_SLO_S,
    TPOT_SLO_S,
    LaneOptions,
    bounded_queue,
    lanewise,
    reference_front,
)
from loadgen.sim.workloads import Arrival, Workload, load_workload

POLICIES = ("direct", "bounded-queue", "static-lanes", "lanewise", "reference")
BOUNDED_CAP = 64
STATIC_SLOTS = (40, 4)
"""The best static split of short and long slots in the scheduling study (of 48+16, 40+4 and their kin)."""
STATIC_QUEUES = (48, 16)
SATURATING_REQUESTS = 3000
WINDOW_SEED = 5
"""Of the windows. Among the first eight seeds the one whose windows are nearest to the published figures of `direct`,
with the figures of `strict` in view (docs/simulated-engine.md shows both for all eight)."""
WARM_UP = 0.1
"""Share of a window's time that is not counted."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What one row is asked to measure."""

    workload: str
    load: float
    """Multiple of the saturated throughput of all backends together."""
    policy: str
    lanes: LaneOptions = field(default_factory=LaneOptions)
    """Only lanewise looks at it."""
    backends: int = 1
    windows: int = 3
    rows: int = 4000
    """Requests of one window."""
    seed: int = WINDOW_SEED
    """Draws the windows."""
    change: Change = UNCHANGED
    """What is not as in lanewise as it is."""
    clients: Clients = PATIENT
    balance: Balance = Balance.LEAST_REQUESTS
    """Only direct looks at it."""
    queue_cap: int = BOUNDED_CAP
    """Sequences per backend; only bounded-queue looks at it."""
    slots: tuple[int, int] = STATIC_SLOTS
    """Short and long slots; only static-lanes looks at it."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What one window gave; counted from the end of the warm-up on. None: nobody to measure it on."""

    offered: float
    completed: float
    rejected: float
    """Refused at once, or dropped from the queue by the deadline."""
    abandoned: float
    """Clients who left without a first token."""
    short_lost: float | None
    """Share of the short requests that did not complete."""
    long_lost: float | None
    goodput: float
    """Share of all offered requests that completed inside the SLO."""
    goodput_tokens_per_s: float
    """Prompt and output tokens of those, per second."""
    short_ttft_p50_s: float | None
    """TTFT percentiles are over completed requests, from arrival to first token: read them beside the losses."""
    short_ttft_p99_s: float | None
    long_ttft_p50_s: float | None
    long_ttft_p99_s: float | None
    tpot_p99_s: float | None
    preemptions: float
    """Of the engines, in the whole window."""
    recomputed_tokens: float
    """Prompt tokens computed twice, in the whole window."""
    completed_per_s: float
    """Of the requests that arrived in the counted span, over that span."""
    attempts: float = 1.0
    """Per request, the retries of refused clients included."""
    abuser_goodput: float | None = None
    """Of the requests of the one tenant that sends most, where there is one."""
    others_goodput: float | None = None
    """Of the requests of all other tenants."""


class Study:
    """Workloads and saturated throughputs, each built once and kept for every row.

    Args:
        traces: folder of the public traces.
        base: profile of the engines as it is; the saturated throughput is measured with it.
        engine: the same with the flags of this study.
    """

    def __init__(self, traces: Path, base: EngineProfile, engine: EngineProfile) -> None:
        self.traces = traces
        self.base = base
        self.engine = engine
        self._workloads: dict[str, Workload] = {}
        self._saturated: dict[str, float] = {}

    def flagged(self, **flags: Any) -> "Study":
        """Return the same study with other flags of the engines; workloads and saturated throughputs are shared.

        Raises:
            ValueError: a combination that no engine could run with.
        """
        other = Study(self.traces, self.base, replace(self.engine, **flags))
        other._workloads, other._saturated = self._workloads, self._saturated
        return other

    def workload(self, name: str) -> Workload:
        """Return a workload.

        Raises:
            UsageError: as `load_workload`.
        """
        if name not in self._workloads:
            self._workloads[name] = load_workload(name, self.traces)
        return self._workloads[name]

    def saturated_per_s(self, name: str) -> float:
        """Return load 1.0: the completions/s of one engine that has the workload's first 3,000 requests at once.

        Direct, without patience, between the first and the last tenth of the completions. Flags of the study do not
        change it, so that their rows are at the same load.
        """
        if name not in self._saturated:
            rows = self.workload(name).cut(0, min(SATURATING_REQUESTS, len(self.workload(name).times)))
            self._saturated[name] = saturated_per_s(self.base, rows.lengths)
        return self._saturated[name]

    def run(self, trial: Trial) -> Figures:
        """Measure one row: the mean over its windows.

        Raises:
            UsageError: an unknown policy or workload, or a request that the engine can never hold.
        """
        rate = trial.load * self.saturated_per_s(trial.workload) * trial.backends
        windows = self.workload(trial.workload).windows(trial.windows, trial.rows, trial.seed)
        return mean([self.run_window(trial, window.arrivals(rate)) for window in windows])

    def run_window(self, trial: Trial, arrivals: Sequence[Arrival]) -> Figures:
        """Measure one window.

        Raises:
            UsageError: as `run`.
        """
        engines = [_engine(trial, self.engine) for _ in range(trial.backends)]
        hashed = trial.policy == "lanewise" and trial.lanes.installments
        drive = Drive(engines, front(trial, self.engine), arrivals, hashed=hashed, clients=trial.clients)
        try:
            driven = drive.run()
        except ValueError as error:
            raise UsageError(f"engine profile {self.engine.name}: {error}") from None
        return figures(driven, sum(engine.counters.preemptions for engine in engines), trial.clients)


def front(trial: Trial, profile: EngineProfile) -> Front:
    """Build the policy of a trial.

    Raises:
        UsageError: no such policy.
    """
    match trial.policy:
        case "direct":
            return Direct(trial.backends, trial.balance)
        case "bounded-queue":
            return bounded_queue(profile, trial.queue_cap, trial.backends)
        case "static-lanes":
            return StaticLanes(trial.backends, trial.slots, STATIC_QUEUES)
        case "lanewise":
            build = partial(lanewise, profile, trial.lanes, trial.backends, trial.change, trial.clients)
            proxies = trial.lanes.proxies
            return build() if proxies == 1 else several(build, proxies, leased=trial.lanes.leased)
        case "reference":
            return reference_front(profile, trial.backends)
        case _:
            raise UsageError(f"--policy {trial.policy}: not known; one of {', '.join(POLICIES)}")


def _engine(trial: Trial, profile: EngineProfile) -> Engine:
    return SrptEngine(profile) if trial.policy == "reference" else Engine(profile)


def saturated_per_s(profile: EngineProfile, lengths: Sequence[tuple[int, int]]) -> float:
    """Return completions/s of one engine with all requests present at once, without its first and last tenth."""
    arrivals = [Arrival(0.0, *both) for both in lengths]
    delays = Delays(dispatch_s=0.0, patience_short_s=None, patience_long_s=None)
    driven = Drive([Engine(profile)], Direct(1), arrivals, delays).run()
    ends = sorted(served.end_s for served in driven.served if served.end_s is not None)
    low, high = len(ends) // 10, len(ends) - 1 - len(ends) // 10
    return (high - low) / (ends[high] - ends[low])


def good(served: Served) -> bool:
    """Return whether a request completed inside the SLO of its class."""
    ttft, tpot = served.ttft_s, served.tpot_s
    if ttft is None or tpot is None:
        return False
    return ttft <= (SHORT_SLO_S if served.short else LONG_SLO_S) and tpot <= TPOT_SLO_S


def figures(driven: Driven, preemptions: int, clients: Clients = PATIENT) -> Figures:
    """Count one window.

    Args:
        driven: all its requests.
        preemptions: of its engines.
        clients: tells the tenants apart.
    """
    begin, end = driven.served[0].arrived_s, driven.served[-1].arrived_s
    warm = begin + WARM_UP * (end - begin)
    counted = [served for served in driven.served if served.arrived_s >= warm]
    completed = [served for served in counted if served.outcome == "ok"]
    inside = [served for served in completed if good(served)]
    span = max(1e-9, end - warm)
    short = [served.ttft_s for served in completed if served.short]
    long = [served.ttft_s for served in completed if not served.short]
    return Figures(
        offered=len(counted),
        completed=len(completed),
        rejected=_count(counted, "rejected", "expired"),
        abandoned=_count(counted, "client_gone"),
        short_lost=_lost([served for served in counted if served.short]),
        long_lost=_lost([served for served in counted if not served.short]),
        goodput=len(inside) / len(counted),
        goodput_tokens_per_s=sum(served.prompt_tokens + served.output_tokens for served in inside) / span,
        short_ttft_p50_s=_percentile(short, 50),
        short_ttft_p99_s=_percentile(short, 99),
        long_ttft_p50_s=_percentile(long, 50),
        long_ttft_p99_s=_percentile(long, 99),
        tpot_p99_s=_percentile([served.tpot_s for served in completed], 99),
        preemptions=preemptions,
        recomputed_tokens=driven.recomputed_tokens,
        completed_per_s=len(completed) / span,
        attempts=fmean([served.attempts for served in counted]),
        **_by_tenant(driven.served, warm, clients),
    )


def _by_tenant(served: Sequence[Served], warm: float, clients: Clients) -> dict[str, float | None]:
    if clients.abuser <= 0:
        return {}
    inside: dict[bool, list[bool]] = {True: [], False: []}
    for index, one in enumerate(served):
        if one.arrived_s >= warm:
            inside[clients.tenant(index) == ABUSER].append(good(one))
    return {"abuser_goodput": _mean(inside[True]), "others_goodput": _mean(inside[False])}


def mean(rows: Sequence[Figures]) -> Figures:
    """Return the mean of each figure over the windows that have it."""
    means: dict[str, Any] = {item.name: _mean([getattr(row, item.name) for row in rows]) for item in fields(Figures)}
    return Figures(**means)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _count(served: Sequence[Served], *outcomes: str) -> int:
    return sum(1 for one in served if one.outcome in outcomes)


def _lost(served: Sequence[Served]) -> float | None:
    return 1 - _count(served, "ok") / len(served) if served else None


def _percentile(values: Sequence[float | None], percent: float) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.percentile(known, percent)) if known else None
