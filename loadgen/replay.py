"""Replay: from options to a run folder. `replay` is synchronous and runs its own event loop."""

import asyncio
import contextlib
import gc
import secrets
import signal
import threading
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from time import perf_counter, perf_counter_ns
from typing import Any

import uvloop

from loadgen.canary import Canary, Sung, read_canaries
from loadgen.canary_ask import ask_canaries
from loadgen.client import Client, Target, read_target
from loadgen.failure import StopError, UsageError
from loadgen.flight import Flight, Timeline, unsent
from loadgen.journal import Journal, RunFolder, refuse_used
from loadgen.options import Bodies, Endpoint, Progress, ReplayOptions, SourceOptions
from loadgen.pacing import sender_of
from loadgen.plan import Lane, Plan, Shot
from loadgen.preflight import (
    Asker,
    TargetFacts,
    api_key,
    check_file_limit,
    guard,
    host_facts,
    raise_file_limit,
    versions,
)
from loadgen.premises import complete, told
from loadgen.prompts import Asking, Prompts
from loadgen.result import LoadOutcome, Result
from loadgen.send import LEAD_NS, Limits, RequestHead
from loadgen.source import Source, read_source
from loadgen.summarise import summarise
from loadgen.telemetry import scrape

__all__ = ["Endpoint", "OnProgress", "Progress", "ReplayOptions", "SourceOptions", "replay", "replay_in_loop"]

OnProgress = Callable[[Progress], None]
LOOP_SAMPLE_S = 0.01
PROGRESS_S = 0.2
FLUSH_S = 1.0
RECENT = 200
"""Sends that the lag shown in the progress is taken over."""


def replay(options: ReplayOptions, *, on_progress: OnProgress | None = None) -> RunFolder:
    """Send the requests at their due times and write the run folder.

    Runs its own event loop (uvloop), so call it from a thread without one. On the main thread it handles Ctrl-C
    (and SIGTERM): once stops sending, drains within `drain_s` and writes the result; twice stops at once and writes it.
    The folder is complete only when `RunFolder.manifest()["complete"]` is true; `"interrupted"` says why it is not.

    Args:
        options: what to send, where to, and into which folder.
        on_progress: called in the event loop about five times a second; must return quickly.

    Returns:
        The run folder, readable with `loadgen.summarise.summarise`.

    Raises:
        UsageError: an option, a trace line or the folder is wrong; nothing was sent or written.
        StopError: the target does not answer, and nothing was written; or the disk is full, and what is in the folder
            can be read.
    """
    return uvloop.run(replay_in_loop(options, on_progress=on_progress))


async def replay_in_loop(options: ReplayOptions, *, on_progress: OnProgress | None = None) -> RunFolder:
    """Do what `replay` does inside the running event loop. Nothing else should run in it: that would cost accuracy."""
    job = await _prepare(options)
    try:
        run = _Run(job, on_progress)
        with _signals(run), _quiet_collector():
            await run.send()
        folder = await run.finish()
    finally:
        await job.reader.close()
    if job.canaries:
        sung = [one.facts() for one in job.sung]
        folder.note(canaries={"before": sung, "after": [one.facts() for one in await job.sing()]})
    folder.note(client_limited=summarise(folder).client_limited)
    return folder


@dataclass(frozen=True, slots=True)
class _Job:
    """Everything that is settled before the first request."""

    options: ReplayOptions
    target: Target
    key: str | None
    source: Source
    asker: Asker
    facts: TargetFacts
    salt: str
    file_limit: int
    cache_before: dict[str, float] | None
    reader: scrape.PageReader
    pages: tuple[scrape.Source, ...]
    """Metrics pages that are read beside the run."""
    canaries: tuple[Canary, ...]
    sung: list[Sung]
    """What they answered before the run."""
    told: dict[str, Any]
    """Premises, engine flags, proxy and floor, as far as they were told."""

    async def sing(self) -> list[Sung]:
        """Ask the canaries."""
        insecure = self.options.insecure
        return await ask_canaries(self.canaries, self.target, self.facts.model, self.key, insecure=insecure)

    @property
    def plan(self) -> Plan:
        return self.source.plan


async def _prepare(options: ReplayOptions) -> _Job:
    target = read_target(options.target)
    _check(options)
    sender_of(options)
    guard(target, options.allow_targets, yes_production=options.yes_production)
    refuse_used(options.out)
    key = api_key(options.api_key_file)
    canaries = () if options.canaries is None else read_canaries(options.canaries)
    known = await asyncio.to_thread(told, options.premises)
    source = read_source(options.source, endpoint=options.endpoint)
    file_limit = raise_file_limit()
    if options.closed_loop is None:
        check_file_limit(file_limit, source.plan.due_ns, options.speed)
    asker = Asker(target, key, options.metrics_url, insecure=options.insecure)
    facts = await asker.facts(options)
    sung = await ask_canaries(canaries, target, facts.model, key, insecure=options.insecure)
    before = await asker.prefix_cache()
    reader = scrape.PageReader(target, key, insecure=options.insecure)
    try:
        pages = await scrape.sources_of(options, target, reader)
    except BaseException:
        await reader.close()
        raise
    salt = options.salt or secrets.token_hex(8)
    return _Job(
        options, target, key, source, asker, facts, salt, file_limit, before, reader, pages, canaries, sung, known
    )


def _check(options: ReplayOptions) -> None:
    seconds = {
        "--speed": options.speed,
        "--patience-short": options.patience_short_s,
        "--patience-long": options.patience_long_s,
        "--connect-timeout": options.connect_timeout_s,
        "--stall-timeout": options.stall_timeout_s,
        "--timeout": options.timeout_s,
        "--drain": options.drain_s,
    }
    for name, value in seconds.items():
        if value is not None and not 0 < value < float("inf"):
            raise UsageError(f"{name} {value:g}: must be above 0")


class _Run:
    """One replay under way: the sender, the journal, and the clocks beside them."""

    def __init__(self, job: _Job, on_progress: OnProgress | None) -> None:
        self._job = job
        self._on_progress = on_progress
        options = job.options
        self._journal = Journal(options.out, _manifest(job))
        self._client = Client(
            job.target,
            reuse=not options.fresh_connections,
            connect_timeout_s=options.connect_timeout_s / options.speed,
            insecure=options.insecure,
        )
        salted = options.source.bodies is Bodies.SALTED
        asking = Asking(options.endpoint, job.facts.model, job.salt, job.facts.calibration, cache_salt=salted)
        self._sender = sender_of(options)(
            self._client,
            Prompts(asking),
            RequestHead(job.target, options.endpoint, job.salt, job.key),
            _limits(options),
            rejects=frozenset(options.reject_statuses),
            on_end=self._ended,
            on_unsent=self._unsent,
            check_answers=options.check_answers,
        )
        self._line = Timeline(0, options.speed)
        self._outcomes: Counter[str] = Counter()
        self._loop_late_s: array[float] = array("d")
        self._stops = 0
        self._timers: list[asyncio.TimerHandle] = []
        self._readings = scrape.Readings(job.pages, options.out, job.reader)

    async def send(self) -> None:
        """Send the whole plan and wait for the last answer."""
        await self._client.resolve()
        await self._readings.before()
        self._line = Timeline(perf_counter_ns() + LEAD_NS, self._job.options.speed)
        every = ((LOOP_SAMPLE_S, self._sample_loop), (PROGRESS_S, self._show), (FLUSH_S, self._flush))
        self._readings.start(self._line)
        tickers = [_Ticker(period, action) for period, action in every]
        try:
            await self._sender.run(self._job.plan.shots(), self._line)
        finally:
            for ticker in tickers:
                ticker.cancel()
            self._client.close()
            await self._readings.stop()

    def stop(self) -> None:
        """Stop sending and drain; the second time, end what is in flight."""
        self._stops += 1
        self._sender.stop()
        if self._stops > 1:
            self._sender.abort()
        else:
            drain = self._job.options.drain_s / self._job.options.speed
            self._timers.append(asyncio.get_running_loop().call_later(drain, self._sender.abort))

    def _flush(self) -> None:
        """Write what has come; when the disk does not take it, send nothing more: `finish` says why."""
        try:
            self._journal.flush()
        except StopError:
            self._sender.stop()
            self._sender.abort()

    async def finish(self) -> RunFolder:
        """Write the last facts.

        Raises:
            StopError: the disk does not take them.
        """
        for timer in self._timers:
            timer.cancel()
        self._show()
        self._journal.flush()
        after = await self._job.asker.prefix_cache()
        late = sorted(self._sender.late_ns)
        loop_late = sorted(self._loop_late_s)
        return self._journal.close(
            complete=self._stops == 0 and sum(self._outcomes.values()) == len(self._job.plan),
            interrupted="stopped by a signal" if self._stops else None,
            ended_at=_wall_clock(),
            outcomes={outcome.value: self._outcomes[outcome] for outcome in LoadOutcome},
            sent=self._sender.sent,
            most_in_flight=self._sender.most_in_flight,
            connections=self._client.opened,
            started_late_p99_s=_quantile(late, 0.99) / 1e9,
            loop_lag_p99_s=_quantile(loop_late, 0.99),
            loop_lag_max_s=loop_late[-1] if loop_late else 0.0,
            prefix_cache=_cache_delta(self._job.cache_before, after),
        )

    def _ended(self, flight: Flight) -> None:
        self._record(flight.result(self._line))

    def _unsent(self, shot: Shot) -> None:
        self._record(unsent(shot))

    def _record(self, result: Result) -> None:
        self._outcomes[result.outcome] += 1
        self._journal.add(result)

    def _sample_loop(self) -> None:
        now = perf_counter()
        if self._sampled_at:
            self._loop_late_s.append(max(0.0, now - self._sampled_at - LOOP_SAMPLE_S))
        self._sampled_at = now

    _sampled_at = 0.0

    def _show(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self._progress())

    def _progress(self) -> Progress:
        plan, outcomes = self._job.plan, self._outcomes
        elapsed = self._line.seconds(perf_counter_ns()) or 0.0
        recent = sorted(self._sender.late_ns[-RECENT:])
        ok, rejected = outcomes[LoadOutcome.OK], outcomes[LoadOutcome.REJECTED]
        return Progress(
            elapsed_s=max(0.0, elapsed),
            span_s=plan.span_s,
            planned=len(plan),
            sent=self._sender.sent,
            in_flight=self._sender.in_flight,
            ok=ok,
            rejected=rejected,
            failed=sum(outcomes.values()) - ok - rejected,
            lag_p99_s=_quantile(recent, 0.99) / 1e9,
            draining=self._stops > 0 or elapsed > plan.span_s,
        )


class _Ticker:
    """Calls something every so often until it is cancelled."""

    def __init__(self, period_s: float, action: Callable[[], None]) -> None:
        self._period_s = period_s
        self._action = action
        self._timer = asyncio.get_running_loop().call_later(period_s, self._tick)

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._period_s, self._tick)
        self._action()

    def cancel(self) -> None:
        """Stop it."""
        self._timer.cancel()


def _limits(options: ReplayOptions) -> Limits:
    def wall(seconds: float | None) -> float | None:
        return None if seconds is None else seconds / options.speed

    patience = {Lane.SHORT: wall(options.patience_short_s), Lane.LONG: wall(options.patience_long_s)}
    return Limits(patience, options.stall_timeout_s / options.speed, options.timeout_s / options.speed)


def _manifest(job: _Job) -> dict[str, Any]:
    options, plan = job.options, job.plan
    return {
        "label": options.label or options.out.name,
        "plan": {"hash": plan.hash, "requests": len(plan), "span_s": plan.span_s, **job.source.facts},
        "target": job.target.url,
        "insecure": options.insecure,
        "endpoint": options.endpoint,
        "model": job.facts.model,
        "premises": complete(job.told["premises"], job.facts.model),
        "engine": {
            "version": job.facts.version,
            "cache_config": job.facts.cache_config,
            "flags": job.told["flags"],
            "flags_from": job.told["flags_from"],
        },
        "proxy": job.told["proxy"],
        "floor": job.told["floor"],
        "calibration": _calibration(job),
        "speed": options.speed,
        "closed_loop": None if options.closed_loop is None else {"concurrency": options.closed_loop},
        "limits": {
            "patience_short_s": options.patience_short_s,
            "patience_long_s": options.patience_long_s,
            "connect_timeout_s": options.connect_timeout_s,
            "stall_timeout_s": options.stall_timeout_s,
            "timeout_s": options.timeout_s,
        },
        "telemetry": [page.facts() for page in job.pages],
        "reject_statuses": list(options.reject_statuses),
        "fresh_connections": options.fresh_connections,
        "salt": job.salt,
        "parameters": dict(options.parameters),
        "started_at": _wall_clock(),
        "host": host_facts(),
        "open_files_limit": job.file_limit,
        "versions": versions(),
    }


def _calibration(job: _Job) -> dict[str, Any] | None:
    if job.options.endpoint is Endpoint.COMPLETIONS:
        return None
    found = job.facts.calibration
    return {
        "source": found.source,
        "tokens_per_word": found.tokens_per_word,
        "template_tokens": found.template_tokens,
        "worst_error_tokens": found.worst_error_tokens,
    }


def _cache_delta(before: dict[str, float] | None, after: dict[str, float] | None) -> dict[str, float] | None:
    if before is None or after is None:
        return None
    return {name: after[name] - before.get(name, 0.0) for name in after}


def _quantile(ordered: Any, share: float) -> float:
    """Return the value that `share` of them do not exceed; 0 for none."""
    return float(ordered[min(len(ordered) - 1, int(share * len(ordered)))]) if ordered else 0.0


def _wall_clock() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@contextlib.contextmanager
def _signals(run: _Run) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM stop the run, where signals arrive at all."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        loop.add_signal_handler(number, run.stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


@contextlib.contextmanager
def _quiet_collector() -> Iterator[None]:
    """Keep the garbage collector out of the run: a full collection stops the loop for milliseconds."""
    gc.collect()
    gc.freeze()
    thresholds = gc.get_threshold()
    gc.set_threshold(50_000, 50, 1_000)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
