"""Watches the engines: are they up, which models do they serve, how busy do they say they are.

Probing tells the Dispatcher which backends may be used. Nothing else here is needed for scheduling: an engine whose
metrics cannot be read is scheduled as well as before.
"""

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import aiohttp

from proxy import tasks
from proxy.policy.limits import BackendLimits
from proxy.settings import Settings
from proxy.settings.sections import Probes
from proxy.upstream.names import LastGoodNames
from proxy.wire import vllm

_log = logging.getLogger("lanewise")

COUNTER_S = 1.0
"""For one reading of an engine's counter of cache hits."""
MODELS_EVERY_S = 30.0
"""Adapters come and go while an engine runs."""
STALE_AFTER_PROBES = 5.0
"""Engine metrics older than this many intervals are unknown."""
_LARGEST_ANSWER = 8 * 2**20


class State(StrEnum):
    """Where a backend stands."""

    STARTING = "starting"
    """No probe has ended yet."""
    UP = "up"
    DOWN = "down"


_AFTER_FIRST_PROBE = {True: State.UP, False: State.DOWN}


class Health:
    """State of one backend with hysteresis: the first probe decides at once, later ones need to agree in a row."""

    def __init__(self, *, down_after: int, up_after: int) -> None:
        self.state = State.STARTING
        self._against = 0
        self._needed = {State.UP: down_after, State.DOWN: up_after}

    def __repr__(self) -> str:
        return f"<Health {self.state.value}, {self._against} against>"

    def configure(self, *, down_after: int, up_after: int) -> None:
        """Take how many must agree; the state stays."""
        self._needed = {State.UP: down_after, State.DOWN: up_after}

    def note(self, *, good: bool) -> bool:
        """Take note of one sign of life or of its absence.

        Returns:
            Whether the state changed.
        """
        told = _AFTER_FIRST_PROBE[good]
        if told is self.state:
            self._against = 0
            return False
        self._against += 1
        if self._against < self._needed.get(self.state, 1):
            return False
        self.state, self._against = told, 0
        return True


@dataclass(frozen=True, slots=True)
class Model:
    """A model as `/v1/models` lists it."""

    name: str
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class BackendView:
    """What is known of one backend."""

    name: str
    url: str
    state: State
    models: tuple[Model, ...] = ()
    version: str | None = None
    waiting: float | None = None
    """Requests that wait in the engine, as it says. None: unknown or stale."""
    running: float | None = None
    kv_usage: float | None = None
    """Share of its KV cache in use, 0 to 1."""
    kv_tokens: int | None = None
    """Size of its KV cache in tokens, as it says."""
    scrape_age_s: float | None = None
    """None: never read."""
    probe_age_s: float | None = None
    error: str | None = None
    """What was wrong with the last probe."""
    reported_failures: int = 0
    """Connections of requests that failed, in all."""


@dataclass(frozen=True, slots=True)
class PrefixCaching:
    """What an engine process says about its prefix cache; None: it does not say."""

    enabled: bool | None = None
    block_tokens: int | None = None
    engines: int | None = None
    """Data-parallel engines behind the one address, each with a cache of its own."""
    started_s: float | None = None
    """When the process began, Unix seconds: another one has an empty cache."""


@dataclass(slots=True, eq=False)
class _Watched:
    """Mutable state of one backend; only `Backends` touches it."""

    view: BackendView
    health: Health
    probed_at: float | None = None
    scraped_at: float | None = None
    models_at: float | None = None
    caching: PrefixCaching | None = None
    """Told last."""
    introduced: bool = True
    """Others know of it: what happens to it is told."""
    task: asyncio.Task[None] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A backend of a configuration to come, probed once."""

    watched: _Watched

    @property
    def name(self) -> str:
        """Its name."""
        return self.watched.view.name

    @property
    def up(self) -> bool:
        """Whether it answered."""
        return self.watched.health.state is State.UP

    @property
    def error(self) -> str | None:
        """What was wrong with its probe."""
        return self.watched.view.error


class ProbeError(Exception):
    """A probe failed; the text says how."""


class Backends:
    """All engines, watched.

    Args:
        settings: URLs and probe settings.
        on_change: told (name, up) whenever a backend becomes usable or stops being so.
        on_models: called when the model list of some backend changed.
        clock: monotonic seconds.
        on_caching: told (name, what it says about its prefix cache) when a backend comes up, when its process is
            another, and when it says something else.
    """

    def __init__(
        self,
        settings: Settings,
        on_change: Callable[[str, bool], None],
        on_models: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        on_caching: Callable[[str, PrefixCaching], None] = lambda _name, _caching: None,
    ) -> None:
        self._probes = settings.probes
        self._limits = settings.to_backend_limits()
        self._on_change = on_change
        self._on_models = on_models
        self._on_caching = on_caching
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        self._watched = {
            backend.label: _Watched(
                BackendView(backend.label, backend.url, State.STARTING),
                Health(down_after=self._probes.down_after, up_after=self._probes.up_after),
            )
            for backend in settings.backends
        }

    async def start(self) -> None:
        """Probe every backend once, then keep probing in the background.

        Until its first probe has ended a backend counts as down.
        """
        for name in self._watched:
            self._on_change(name, False)
        await asyncio.gather(*(self.probe(name) for name in self._watched))
        for watched in self._watched.values():
            self._watch(watched)

    async def meet(self, settings: Settings) -> tuple[Newcomer, ...]:
        """Probe the backends of a configuration to come that are new, or elsewhere than before; nobody is told yet."""
        urls = {name: watched.view.url for name, watched in self._watched.items()}
        met = [
            self._stranger(backend.label, backend.url, settings.probes)
            for backend in settings.backends
            if urls.get(backend.label) != backend.url
        ]
        await asyncio.gather(*(self._probe(watched) for watched in met))
        return tuple(Newcomer(watched) for watched in met)

    def change(self, settings: Settings, met: Sequence[Newcomer]) -> None:
        """Watch the backends of another configuration.

        Args:
            settings: the configuration.
            met: what `meet` found for it. They stay strangers to everybody else until `introduce`.
        """
        anew = settings.probes != self._probes
        new = {one.name: one.watched for one in met}
        wanted = {
            backend.label: new.get(backend.label) or self._watched[backend.label] for backend in settings.backends
        }
        gone = [watched for watched in self._watched.values() if watched not in wanted.values()]
        self._probes, self._limits, self._watched = settings.probes, settings.to_backend_limits(), wanted
        for watched in (*gone, *(wanted.values() if anew else ())):
            if watched.task is not None:
                watched.task.cancel()
                watched.task = None
        for watched in wanted.values():
            watched.health.configure(down_after=self._probes.down_after, up_after=self._probes.up_after)
            if watched.task is None:
                self._watch(watched)

    def introduce(self, met: Sequence[Newcomer]) -> None:
        """Tell what is known of new backends, now that everybody knows their names."""
        for one in met:
            watched = one.watched
            watched.introduced = True
            self._on_change(one.name, watched.health.state is State.UP)
            if watched.caching is not None:
                self._on_caching(one.name, watched.caching)

    def tell_caching(self) -> None:
        """Say again what the engines say about their prefix caches."""
        for name, watched in self._watched.items():
            if watched.caching is not None:
                self._on_caching(name, watched.caching)

    def _stranger(self, name: str, url: str, probes: Probes) -> _Watched:
        health = Health(down_after=probes.down_after, up_after=probes.up_after)
        return _Watched(BackendView(name, url, State.STARTING), health, introduced=False)

    def _watch(self, watched: _Watched) -> None:
        watched.task = tasks.spawn(self._keep_probing(watched), f"probe {watched.view.name}")

    async def close(self) -> None:
        """Stop probing and close the connections."""
        running = [watched.task for watched in self._watched.values() if watched.task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def probe(self, name: str) -> None:
        """Probe one backend now."""
        await self._probe(self._watched[name])

    async def _probe(self, watched: _Watched) -> None:
        try:
            async with asyncio.timeout(self._probes.timeout):
                await self._alive(watched)
        except (ProbeError, aiohttp.ClientError, OSError) as error:
            self._note(watched, good=False, error=_reason(error))
            return
        self._note(watched, good=True, error=None)
        await self._learn(watched)

    def report_failure(self, name: str) -> None:
        """Count a request's connection to a backend that failed as one failed probe."""
        watched = self._watched.get(name)
        if watched is None:
            return
        watched.view = replace(watched.view, reported_failures=watched.view.reported_failures + 1)
        if watched.health.state is not State.STARTING:
            self._note(watched, good=False, error="connections of requests failed")

    def views(self) -> tuple[BackendView, ...]:
        """Return what is known of every backend; engine metrics that are stale are unknown, never zero."""
        now = self._clock()
        return tuple(self._aged(watched, now) for watched in self._watched.values())

    @property
    def any_up(self) -> bool:
        """Whether some backend can be used."""
        return any(watched.health.state is State.UP for watched in self._watched.values())

    @property
    def models(self) -> tuple[Model, ...]:
        """All models that some backend is known to serve, each once."""
        found: dict[str, Model] = {}
        for watched in self._watched.values():
            for model in watched.view.models:
                found.setdefault(model.name, model)
        return tuple(found.values())

    def max_model_len(self, model: str | None) -> int | None:
        """Return the longest context that some backend offers for a model; None when nobody said.

        Args:
            model: its name; None: the longest of all.
        """
        lengths = [
            known.max_model_len
            for watched in self._watched.values()
            for known in watched.view.models
            if known.max_model_len is not None and model in {None, known.name}
        ]
        return max(lengths, default=None)

    def limits(self) -> tuple[BackendLimits, ...]:
        """Return the configured limits of every backend, with the models it turned out to serve where none is named."""
        return tuple(
            configured
            if configured.models is not None
            else replace(
                configured,
                models=frozenset(model.name for model in self._watched[configured.name].view.models) or None,
            )
            for configured in self._limits
        )

    def up_for(self, model: str | None) -> list[str]:
        """Return the names of the backends that are up and serve a model, as far as is known."""
        return [
            limits.name
            for limits in self.limits()
            if self._watched[limits.name].health.state is State.UP
            and (model is None or limits.models is None or model in limits.models)
        ]

    async def prefix_hits(self, name: str) -> float | None:
        """Read an engine's own count of prompt tokens found in its prefix cache, now.

        Returns:
            The counter; None when it cannot be read, or metrics are not to be read at all.
        """
        watched = self._watched.get(name)
        if watched is None or not self._probes.scrape_metrics:
            return None
        try:
            async with asyncio.timeout(COUNTER_S):
                status, body = await self._get(watched, "/metrics")
        except (ProbeError, aiohttp.ClientError, OSError):
            return None
        return vllm.parse_metrics(body.decode("utf-8", "replace")).prefix_hits_total if status == 200 else None

    async def _keep_probing(self, watched: _Watched) -> None:
        due = self._clock()
        while True:
            due = max(due + self._probes.interval, self._clock())
            await asyncio.sleep(due - self._clock())
            await self._probe(watched)

    async def _alive(self, watched: _Watched) -> None:
        status, _ = await self._get(watched, "/health")
        if status in {404, 405}:
            status, _ = await self._get(watched, "/v1/models")
            if status < 500:
                return
        if status != 200:
            raise ProbeError(f"/health answered {status}")

    def _note(self, watched: _Watched, *, good: bool, error: str | None) -> None:
        watched.probed_at = self._clock()
        watched.view = replace(watched.view, error=error)
        changed = watched.health.note(good=good)
        watched.view = replace(watched.view, state=watched.health.state)
        if not changed:
            return
        if good:
            watched.models_at = None
            self._tell_caching(watched, PrefixCaching())
            _log.info("backend %s is up", watched.view.name)
        else:
            _log.warning("backend %s is down: %s", watched.view.name, error)
        if watched.introduced:
            self._on_change(watched.view.name, good)

    async def _learn(self, watched: _Watched) -> None:
        """Read what the engine says about itself. Whatever fails stays as it was, and grows old."""
        readings: list[Coroutine[Any, Any, None]] = []
        if watched.models_at is None or self._clock() - watched.models_at >= MODELS_EVERY_S:
            readings += [self._learn_models(watched), self._learn_version(watched)]
        if self._probes.scrape_metrics:
            readings.append(self._scrape(watched))
        await asyncio.gather(*map(self._quietly, readings))

    async def _quietly(self, reading: Coroutine[Any, Any, None]) -> None:
        try:
            async with asyncio.timeout(self._probes.timeout):
                await reading
        except (ProbeError, aiohttp.ClientError, OSError, ValueError) as error:
            _log.debug("an engine's description of itself could not be read: %s", _reason(error))

    async def _learn_models(self, watched: _Watched) -> None:
        status, body = await self._get(watched, "/v1/models")
        if status != 200:
            raise ProbeError(f"/v1/models answered {status}")
        models = _models(json.loads(body))
        watched.models_at = self._clock()
        if models != watched.view.models:
            watched.view = replace(watched.view, models=models)
            if watched.introduced:
                self._on_models()

    async def _learn_version(self, watched: _Watched) -> None:
        status, body = await self._get(watched, "/version")
        document = json.loads(body) if status == 200 else None
        version = document.get("version") if isinstance(document, Mapping) else None
        watched.view = replace(watched.view, version=version[:64] if isinstance(version, str) else None)

    async def _scrape(self, watched: _Watched) -> None:
        status, body = await self._get(watched, "/metrics")
        if status != 200:
            raise ProbeError(f"/metrics answered {status}")
        read = vllm.parse_metrics(body.decode("utf-8", "replace"))
        watched.scraped_at = self._clock()
        watched.view = replace(
            watched.view,
            waiting=read.waiting,
            running=read.running,
            kv_usage=read.kv_usage,
            kv_tokens=read.kv_tokens,
        )
        cache = read.cache or vllm.CacheConfig()
        caching = PrefixCaching(cache.enable_prefix_caching, cache.block_size, read.engines, read.process_start_time_s)
        if caching != watched.caching:
            self._tell_caching(watched, caching)

    def _tell_caching(self, watched: _Watched, caching: PrefixCaching) -> None:
        watched.caching = caching
        if watched.introduced:
            self._on_caching(watched.view.name, caching)

    async def _get(self, watched: _Watched, path: str) -> tuple[int, bytes]:
        headers = {"Accept-Encoding": "identity"}
        key = self._probes.api_key
        if key is not None and path == "/v1/models":
            headers["Authorization"] = f"Bearer {key.get_secret_value()}"
        url = watched.view.url + path
        async with self._client().get(url, headers=headers, allow_redirects=False) as answer:
            return answer.status, await _read_at_most(answer.content)

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            names = LastGoodNames(aiohttp.ThreadedResolver())
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0, keepalive_timeout=4.0, enable_cleanup_closed=False, resolver=names
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),  # each use has a time limit of its own
                trust_env=False,
            )
        return self._session

    def _aged(self, watched: _Watched, now: float) -> BackendView:
        scrape_age = None if watched.scraped_at is None else now - watched.scraped_at
        probe_age = None if watched.probed_at is None else now - watched.probed_at
        view = replace(watched.view, scrape_age_s=scrape_age, probe_age_s=probe_age)
        fresh = scrape_age is not None and scrape_age <= STALE_AFTER_PROBES * self._probes.interval
        return view if fresh and view.state is State.UP else replace(view, waiting=None, running=None, kv_usage=None)


async def _read_at_most(content: aiohttp.StreamReader) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in content.iter_any():
        size += len(part)
        if size > _LARGEST_ANSWER:
            raise ProbeError(f"the answer is larger than {_LARGEST_ANSWER // 2**20} MiB")
        parts.append(part)
    return b"".join(parts)


def _models(document: Any) -> tuple[Model, ...]:
    listed = document.get("data") if isinstance(document, Mapping) else None
    if not isinstance(listed, list):
        raise ProbeError("/v1/models is no list of models")
    return tuple(
        Model(item["id"], _length(item.get("max_model_len")))
        for item in listed
        if isinstance(item, Mapping) and isinstance(item.get("id"), str)
    )


def _length(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot connect: {os.strerror(error.errno) if error.errno else error}"
    return str(error) or type(error).__name__
