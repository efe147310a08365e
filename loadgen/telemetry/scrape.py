"""Reads metrics pages beside a run, once a second each, and streams what they say into the run folder."""

import asyncio
import contextlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import IO, Any
from urllib.parse import urlsplit

import aiohttp
import orjson

from loadgen.client import Target, tls_of
from loadgen.failure import StopError, UsageError
from loadgen.flight import Timeline
from loadgen.options import ReplayOptions
from loadgen.telemetry.pages import card_numbers, engine_numbers
from loadgen.telemetry.samples import Kind, Sample

EVERY_S = 1.0
"""Wall-clock seconds between two readings of one source: gauges change once per engine step, and a reading costs the
engine 5 to 38 ms (vLLM 0.32, measured)."""
TIMEOUT_S = 5.0
OFF = "none"


@dataclass(frozen=True, slots=True)
class Source:
    """One metrics page."""

    kind: Kind
    url: str
    file: str
    """Name of its file in the run folder."""

    def facts(self) -> dict[str, Any]:
        """Return what the manifest says of it."""
        return {"kind": self.kind.value, "url": self.url, "file": self.file, "every_s": EVERY_S}


class PageReader:
    """Asks for metrics pages on a session of its own; the target's key goes to the target alone."""

    def __init__(self, target: Target, key: str | None, *, insecure: bool) -> None:
        self._target = target
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._tls = tls_of(target, insecure=insecure)
        self._session: aiohttp.ClientSession | None = None

    async def page(self, url: str) -> str:
        """Return the text of a page.

        Raises:
            StopError: it does not answer with one, and why.
        """
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
            connector = aiohttp.TCPConnector(ssl=self._tls or True)
            self._session = aiohttp.ClientSession(timeout=timeout, connector=connector)
        headers = self._headers if urlsplit(url).netloc == self._target.netloc else {}
        try:
            async with self._session.get(url, headers=headers) as answer:
                if answer.status != 200:
                    raise StopError(f"{url} answers with status {answer.status}")
                return await answer.text(errors="replace")
        except TimeoutError:
            raise StopError(f"{url} does not answer within {TIMEOUT_S:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise StopError(f"{url} does not answer: {str(error) or type(error).__name__}") from None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()


async def sources_of(options: ReplayOptions, target: Target, reader: PageReader) -> tuple[Source, ...]:
    """Decide what is read beside a run.

    Engines: the pages that `engine_metrics` names; without it the page that the prefix-cache counts come from, when it
    is a vLLM's. Cards: the pages that `card_metrics` names.

    Raises:
        UsageError: an address is none, or its page is of something else.
        StopError: a named page does not answer.
    """
    engines = [url for url in options.engine_metrics if url != OFF]
    for url in (*engines, *options.card_metrics):
        _check(url)
    for url in engines:
        if not engine_numbers(await reader.page(url)):
            raise UsageError(
                f"--engine-metrics {url}: has none of vLLM's metrics on it; give the engine's own /metrics"
            )
    for url in options.card_metrics:
        if not card_numbers(await reader.page(url)):
            raise UsageError(
                f"--card-metrics {url}: has none of npu-exporter's chip metrics on it; its port is 8082 unless changed"
            )
    if not options.engine_metrics:
        engines = await _unasked(options.metrics_url or f"{target.url}/metrics", reader)
    return (*_named(Kind.ENGINE, engines), *_named(Kind.CARDS, options.card_metrics))


async def _unasked(url: str, reader: PageReader) -> list[str]:
    try:
        return [url] if engine_numbers(await reader.page(url)) else []
    except StopError:
        return []


def _check(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(f"{url}: is no address of a metrics page; write http://HOST:PORT/metrics")


def _named(kind: Kind, urls: Iterable[str]) -> list[Source]:
    return [
        Source(kind, url, f"{kind.value}.jsonl" if at == 0 else f"{kind.value}-{at + 1}.jsonl")
        for at, url in enumerate(urls)
    ]


class Readings:
    """The readings of one run: one before it, one a second during it, one after it. Each is on disk when it is made.

    Args:
        sources: what is read.
        folder: the run folder.
        reader: what asks.
    """

    def __init__(self, sources: Sequence[Source], folder: Path, reader: PageReader) -> None:
        self._sources = sources
        self._folder = folder
        self._reader = reader
        self._files: list[IO[bytes]] = []
        self._task: asyncio.Task[None] | None = None
        self._line = Timeline(0, 1.0)

    async def before(self) -> None:
        """Open the files and take the reading that differences count from; its time is -1."""
        for source in self._sources:
            try:
                self._files.append((self._folder / source.file).open("wb", buffering=0))
            except OSError as error:
                raise StopError(f"{self._folder / source.file}: cannot be written: {error.strerror}") from None
        await self._take(lambda: -1.0)

    def start(self, line: Timeline) -> None:
        """Go on reading until `stop`; must be called inside the event loop."""
        self._line = line
        if self._sources:
            self._task = asyncio.get_running_loop().create_task(self._go_on(), name="telemetry")

    async def stop(self) -> None:
        """Read no more, but for one last reading."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._take(self._now)
        for file in self._files:
            file.close()
        self._files.clear()

    async def _go_on(self) -> None:
        due = time.monotonic()
        while True:
            due = max(due + EVERY_S, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            await self._take(self._now)

    def _now(self) -> float:
        return self._line.seconds(perf_counter_ns()) or 0.0

    async def _take(self, now: Any) -> None:
        await asyncio.gather(*(self._one(at, now) for at in range(len(self._files))))

    async def _one(self, at: int, now: Any) -> None:
        """Read one source. Its time is that of the answer: what it says was true at the latest then."""
        source = self._sources[at]
        try:
            page = await self._reader.page(source.url)
        except StopError as error:
            sample = Sample(now(), error=str(error))
        else:
            sample = read_page(source.kind, page, now(), time.time())
        with contextlib.suppress(OSError):  # a full disk ends the run through its journal, which says so
            self._files[at].write(orjson.dumps(sample.line(), option=orjson.OPT_APPEND_NEWLINE))


def read_page(kind: Kind, page: str, t: float, at_s: float) -> Sample:
    """Turn a page into a reading; one without a number says so.

    Args:
        kind: what the page is of.
        page: its text.
        t: seconds of the plan.
        at_s: Unix time, for stale cards.
    """
    if kind is Kind.ENGINE:
        numbers = engine_numbers(page)
        return Sample(t, numbers=numbers, error=None if numbers else "none of vLLM's metrics on the page")
    cards = card_numbers(page, at_s)
    return Sample(t, cards=cards, error=None if cards else "no chip on the page, or its stamps are old")
