"""Reading what an engine says about itself, beside its probes. Whatever fails stays as it was, and grows old."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import aiohttp

from proxy.backends.describing import PrefixCaching, ProbeError, read_models, read_version
from proxy.backends.probing import Prober, reason
from proxy.backends.watched import Watched
from proxy.settings.sections import Probes
from proxy.wire import vllm

_log = logging.getLogger("lanewise")

COUNTER_S = 1.0
"""For one reading of an engine's counter of cache hits."""
MODELS_EVERY_S = 30.0
"""Adapters come and go while an engine runs."""


class Learner:
    """Reads models, version and metrics of engines.

    Args:
        probes: the settings in force; may be replaced.
        prober: asks.
        clock: monotonic seconds.
        on_models: called when the model list of some backend changed, or the size of its KV cache.
        on_caching: told (name, what it says about its prefix cache) when that is new.
    """

    def __init__(
        self,
        probes: Probes,
        prober: Prober,
        clock: Callable[[], float],
        on_models: Callable[[], None],
        on_caching: Callable[[str, PrefixCaching], None],
    ) -> None:
        self.probes = probes
        self._prober = prober
        self._clock = clock
        self._on_models = on_models
        self._on_caching = on_caching

    async def learn(self, watched: Watched) -> None:
        """Read what the engine says about itself. Whatever fails stays as it was, and grows old."""
        readings: list[Coroutine[Any, Any, None]] = []
        if watched.models_at is None or self._clock() - watched.models_at >= MODELS_EVERY_S:
            readings += [self._learn_models(watched), self._learn_version(watched)]
        if self.probes.scrape_metrics:
            readings.append(self._scrape(watched))
        await asyncio.gather(*map(self._quietly, readings))

    async def _quietly(self, reading: Coroutine[Any, Any, None]) -> None:
        try:
            async with asyncio.timeout(self.probes.timeout):
                await reading
        except (ProbeError, aiohttp.ClientError, OSError, ValueError) as error:
            _log.debug("an engine's description of itself could not be read: %s", reason(error))

    async def _learn_models(self, watched: Watched) -> None:
        key = self.probes.api_key
        secret = None if key is None else key.get_secret_value()
        status, body = await self._prober.get(watched.view.url, "/v1/models", secret)
        if status != 200:
            raise ProbeError(f"/v1/models answered {status}")
        models = read_models(body)
        watched.models_at = self._clock()
        if models != watched.view.models:
            watched.view = replace(watched.view, models=models)
            if watched.introduced:
                self._on_models()

    async def _learn_version(self, watched: Watched) -> None:
        status, body = await self._prober.get(watched.view.url, "/version")
        watched.view = replace(watched.view, version=read_version(body) if status == 200 else None)

    async def _scrape(self, watched: Watched) -> None:
        status, body = await self._prober.get(watched.view.url, "/metrics")
        if status != 200:
            raise ProbeError(f"/metrics answered {status}")
        read = vllm.parse_metrics(body.decode("utf-8", "replace"))
        watched.scraped_at = self._clock()
        resized = read.kv_tokens != watched.view.kv_tokens
        watched.view = replace(
            watched.view,
            waiting=read.waiting,
            running=read.running,
            kv_usage=read.kv_usage,
            kv_tokens=read.kv_tokens,
        )
        if resized and watched.introduced:
            self._on_models()
        cache = read.cache or vllm.CacheConfig()
        caching = PrefixCaching(cache.enable_prefix_caching, cache.block_size, read.engines, read.process_start_time_s)
        if caching != watched.caching:
            self.tell_caching(watched, caching)

    def tell_caching(self, watched: Watched, caching: PrefixCaching) -> None:
        """Remember what an engine says about its prefix cache, and tell it to whoever knows the backend."""
        watched.caching = caching
        if watched.introduced:
            self._on_caching(watched.view.name, caching)

    async def prefix_hits(self, watched: Watched) -> float | None:
        """Read an engine's own count of prompt tokens found in its prefix cache, now; None when that cannot be."""
        try:
            async with asyncio.timeout(COUNTER_S):
                status, body = await self._prober.get(watched.view.url, "/metrics")
        except (ProbeError, aiohttp.ClientError, OSError):
            return None
        return vllm.parse_metrics(body.decode("utf-8", "replace")).prefix_hits_total if status == 200 else None
