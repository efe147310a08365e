"""Replay: from options to a run folder. `replay` is synchronous and runs its own event loop."""

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import uvloop

from loadgen.canary import Canary, Sung, read_canaries
from loadgen.canary_ask import ask_canaries
from loadgen.certify import certify, skipped
from loadgen.client import Target, read_target
from loadgen.failure import StopError, UsageError
from loadgen.flight import Timeline
from loadgen.journal import Journal, RunFolder, refuse_used
from loadgen.live import Recent
from loadgen.options import Endpoint, Progress, ReplayOptions, SourceOptions
from loadgen.pacing import sender_of
from loadgen.plan import NS, Plan
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
from loadgen.result import LoadOutcome, Result
from loadgen.sending import Asked, Sending, Ticker, failed_of, quantile, quiet_collector
from loadgen.shards.meeting import Meeting
from loadgen.shards.nouns import Shard
from loadgen.source import Source, read_source
from loadgen.summarise import summarise
from loadgen.telemetry import scrape
from loadgen.telemetry.exposed import LoadMetrics, LoadPage, RunFacts, Running
from loadgen.workers import Crew, check_workers

__all__ = ["Endpoint", "OnProgress", "Progress", "ReplayOptions", "SourceOptions", "replay", "replay_in_loop"]

OnProgress = Callable[[Progress], None]
PROGRESS_S = 0.2
FLUSH_S = 1.0


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
        with _signals(run), quiet_collector():
            await run.send()
        folder = await run.finish()
    finally:
        await job.reader.close()
        await job.meeting.close()
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
    certificate: dict[str, Any]
    """What the generator's own error was at this load."""
    told: dict[str, Any]
    """Premises, engine flags, proxy and floor, as far as they were told."""
    meeting: Meeting
    """Where several generators find one start."""

    async def sing(self) -> list[Sung]:
        """Ask the canaries."""
        insecure = self.options.insecure
        return await ask_canaries(self.canaries, self.target, self.facts.model, self.key, insecure=insecure)

    @property
    def plan(self) -> Plan:
        return self.source.plan

    @property
    def shard(self) -> Shard:
        return self.meeting.shard

    @property
    def asked(self) -> Asked:
        """Return how requests are made."""
        return Asked(self.target, self.key, self.facts.model, self.facts.calibration, self.salt)


async def _prepare(options: ReplayOptions) -> _Job:
    target = read_target(options.target)
    _check(options)
    sender_of(options)
    check_workers(options)
    shard = options.shards.read()
    guard(target, options.allow_targets, yes_production=options.yes_production)
    refuse_used(options.out)
    key = api_key(options.api_key_file)
    canaries = () if options.canaries is None or shard.index else read_canaries(options.canaries)
    known = await asyncio.to_thread(told, options.premises)
    source = read_source(options.source, endpoint=options.endpoint)
    file_limit = raise_file_limit()
    if options.closed_loop is None:
        check_file_limit(file_limit, source.plan.part_due_ns(shard.index, shard.of), options.speed)
    asker = Asker(target, key, options.metrics_url, insecure=options.insecure)
    facts = await asker.facts(options)
    sung = await ask_canaries(canaries, target, facts.model, key, insecure=options.insecure)
    meeting = Meeting(options.shards, source.plan.hash, options.salt)
    reader = scrape.PageReader(target, key, insecure=options.insecure)
    try:
        salt = await meeting.salt()
        certificate = skipped("--no-certify")
        if not options.no_certify:
            asked = Asked(target, key, facts.model, facts.calibration, salt)
            certificate = await certify(source.plan, options, asked, options.workers * shard.of)
        before = await asker.prefix_cache()
        pages = await scrape.sources_of(options, target, reader) if shard.index == 0 else ()
    except BaseException:
        await reader.close()
        await meeting.close()
        raise
    return _Job(
        options,
        target,
        key,
        source,
        asker,
        facts,
        salt,
        file_limit,
        before,
        reader,
        pages,
        canaries,
        sung,
        certificate,
        known,
        meeting,
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
    """One replay under way: what sends, the journal, and the clocks beside them."""

    def __init__(self, job: _Job, on_progress: OnProgress | None) -> None:
        self._job = job
        self._on_progress = on_progress
        self._recent = Recent()
        self._journal = Journal(job.options.out, _manifest(job))
        kind = Sending if job.options.workers == 1 else Crew
        self._sending = kind(job.options, job.asked, self._taken)
        due_ns = self._due_ns = job.plan.part_due_ns(job.shard.index, job.shard.of)
        self._planned = len(due_ns)
        self._shown = LoadMetrics(due_ns, _run_facts(job), self._running)
        shown_at = job.options.prometheus
        self._page = None if shown_at is None else LoadPage(shown_at, self._shown)
        self._readings = scrape.Readings(job.pages, job.options.out, job.reader)

    async def send(self) -> None:
        """Send the whole plan and wait for the last answer."""
        try:
            line = await self._begin()
        except BaseException:
            await self._sending.abandon()
            if self._page is not None:
                await self._page.close()
            self._journal.discard()
            raise
        self._readings.start(line)
        tickers = [Ticker(PROGRESS_S, self._show), Ticker(FLUSH_S, self._flush)]
        try:
            await self._sending.run(self._job.plan.part(self._job.shard.index, self._job.shard.of), line)
        finally:
            for ticker in tickers:
                ticker.cancel()
            await self._readings.stop()
            if self._page is not None:
                await self._page.close()

    async def _begin(self) -> Timeline:
        """Get everything ready and return the time line of the start, which lies ahead."""
        await self._sending.prepare()
        await self._readings.before()
        if self._page is not None:
            await self._page.start()
        start_ns = await self._job.meeting.start_ns(lambda: self._sending.stops > 0)
        return Timeline(start_ns, self._job.options.speed)

    def _taken(self, result: Result) -> None:
        self._journal.add(result)
        if self._page is not None:
            self._shown.record(result)
        if self._on_progress is not None:
            self._recent.add(result, monotonic())

    def _running(self) -> Running:
        sending = self._sending
        return Running(sending.elapsed_s, self._job.options.speed, sending.sent, sending.in_flight, sending.late_ns)

    def stop(self) -> None:
        """Stop sending and drain; the second time, end what is in flight."""
        self._sending.stop()

    def _flush(self) -> None:
        """Write what has come; when the disk does not take it, send nothing more: `finish` says why."""
        try:
            self._journal.flush()
        except StopError:
            self._sending.give_up()

    async def finish(self) -> RunFolder:
        """Write the last facts.

        Raises:
            StopError: the disk does not take them.
        """
        self._show()
        self._journal.flush()
        after = await self._job.asker.prefix_cache()
        sending, outcomes = self._sending, self._sending.outcomes
        late = sorted(sending.late_ns)
        loop_late = sorted(sending.loop_late_s)
        return self._journal.close(
            complete=sending.interrupted is None and sum(outcomes.values()) == self._planned,
            interrupted=sending.interrupted,
            ended_at=_wall_clock(),
            outcomes={outcome.value: outcomes[outcome] for outcome in LoadOutcome},
            sent=sending.sent,
            most_in_flight=sending.most_in_flight,
            connections=sending.connections,
            cpu_s=sending.cpu_s,
            start_ns=sending.line.start_ns,
            started_late_p99_s=quantile(late, 0.99) / 1e9,
            loop_lag_p99_s=quantile(loop_late, 0.99),
            loop_lag_max_s=loop_late[-1] if loop_late else 0.0,
            prefix_cache=_cache_delta(self._job.cache_before, after),
            **await self._job.meeting.facts(),
        )

    def _show(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self._progress())

    def _progress(self) -> Progress:
        plan, sending = self._job.plan, self._sending
        span_s = plan.span_s if self._job.options.closed_loop is None else None
        over = sending.sent == self._planned if span_s is None else sending.elapsed_s > span_s
        return Progress(
            elapsed_s=sending.elapsed_s,
            span_s=span_s,
            planned=self._planned,
            sent=sending.sent,
            in_flight=sending.in_flight,
            ok=sending.outcomes[LoadOutcome.OK],
            rejected=sending.outcomes[LoadOutcome.REJECTED],
            failed=failed_of(sending.outcomes),
            lag_p99_s=sending.recent_lag_p99_s,
            draining=sending.stops > 0 or over,
            due=None if span_s is None else self._due(sending.elapsed_s),
            lanes=self._recent.lanes(monotonic()),
        )

    def _due(self, elapsed_s: float) -> int:
        return int(self._due_ns.searchsorted(elapsed_s * NS, side="right"))


def _run_facts(job: _Job) -> RunFacts:
    options = job.options
    arm = options.label or options.out.name
    return RunFacts(run_id=options.out.name, arm=arm, trace_sha=job.plan.hash, seed=options.source.seed)


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
        "certificate": job.certificate,
        "workers": options.workers,
        "share": str(job.shard),
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
