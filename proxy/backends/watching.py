"""Watches the engines: are they up, which models do they serve, how busy do they say they are.

Health tells the Dispatcher which backends may be used, and how they come back. Nothing else here is needed for
scheduling: an engine whose metrics cannot be read is scheduled as well as before.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import aiohttp

from proxy import tasks
from proxy.backends.describing import BackendView, Model, PrefixCaching, ProbeError
from proxy.backends.learning import Learner
from proxy.backends.probing import Prober, reason
from proxy.backends.watched import Newcomer, Told, Watched, say, silent
from proxy.policy.health import Health, State
from proxy.policy.job import NEVER
from proxy.policy.limits import BackendLimits
from proxy.settings import Settings
from proxy.upstream.access import Access
from proxy.upstream.names import Names, NamesResolver

STALE_AFTER_PROBES = 5.0
"""Engine metrics older than this many intervals are unknown."""


class Backends:
    """All engines, watched.

    Args:
        settings: URLs and probe settings.
        on_change: told (name, up) whenever a backend becomes usable or stops being so.
        on_models: called when the model list of some backend changed, or the size of its KV cache.
        clock: monotonic seconds.
        on_caching: told (name, what it says about its prefix cache) when a backend comes up, when its process is
            another, and when it says something else.
        told: who else is told what.
        names: knows where the names of the backends lead.
    """

    def __init__(
        self,
        settings: Settings,
        on_change: Callable[[str, bool], None],
        on_models: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        on_caching: Callable[[str, PrefixCaching], None] = silent,
        *,
        told: Told | None = None,
        names: Names | None = None,
    ) -> None:
        self._probes = settings.probes
        self._limits = settings.to_backend_limits()
        self._health = settings.to_health_limits()
        self._on_change = on_change
        self._on_caching = on_caching
        self._told = told or Told()
        self._clock = clock
        self._prober = Prober(NamesResolver(names or Names()))
        self._learner = Learner(self._probes, self._prober, clock, on_models, on_caching)
        self._watched = {
            backend.label: Watched(BackendView(backend.label, backend.url, State.STARTING), Health(self._health))
            for backend in settings.backends
        }

    def let_in(self, access: Mapping[str, Access]) -> None:
        """Take how to come in at each engine, by base URL."""
        self._prober.access = access

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
            Watched(
                BackendView(backend.label, backend.url, State.STARTING),
                Health(settings.to_health_limits()),
                introduced=False,
            )
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
        self._health = settings.to_health_limits()
        new = {one.name: one.watched for one in met}
        wanted = {
            backend.label: new.get(backend.label) or self._watched[backend.label] for backend in settings.backends
        }
        for name, watched in new.items():
            if (before := self._watched.get(name)) is not None:  # elsewhere now; an order is about the name
                watched.view = replace(watched.view, drained=before.view.drained)
        gone = [watched for watched in self._watched.values() if watched not in wanted.values()]
        self._probes, self._limits, self._watched = settings.probes, settings.to_backend_limits(), wanted
        self._learner.probes = settings.probes
        for watched in gone:
            watched.stop()
        for watched in wanted.values() if anew else ():
            if watched.task is not None:
                watched.task.cancel()
                watched.task = None
        for watched in wanted.values():
            watched.health.configure(self._health)
            if watched.task is None:
                self._watch(watched)

    def introduce(self, met: Sequence[Newcomer]) -> None:
        """Tell what is known of new backends, now that everybody knows their names."""
        for one in met:
            watched = one.watched
            watched.introduced = True
            self._told.entry(one.name, watched.entry)
            self._on_change(one.name, watched.health.state.usable)
            if watched.caching is not None:
                self._on_caching(one.name, watched.caching)

    def tell_caching(self) -> None:
        """Say again what the engines say about their prefix caches."""
        for name, watched in self._watched.items():
            if watched.caching is not None:
                self._on_caching(name, watched.caching)

    def _watch(self, watched: Watched) -> None:
        watched.task = tasks.spawn(self._keep_probing(watched), f"probe {watched.view.name}")

    async def close(self) -> None:
        """Stop probing and close the connections."""
        running = [watched.task for watched in self._watched.values() if watched.task is not None]
        for watched in self._watched.values():
            watched.stop()
        await asyncio.gather(*running, return_exceptions=True)
        await self._prober.close()

    async def probe(self, name: str) -> None:
        """Probe one backend now."""
        await self._probe(self._watched[name])

    async def _probe(self, watched: Watched) -> None:
        try:
            async with asyncio.timeout(self._probes.timeout):
                await self._prober.alive(watched.view.url)
        except (ProbeError, aiohttp.ClientError, OSError) as error:
            self._probed(watched, good=False, error=reason(error))
            return
        self._probed(watched, good=True, error=None)
        await self._learner.learn(watched)

    def report_failure(self, name: str) -> None:
        """Count a request's connection to a backend that failed as one failed probe."""
        watched = self._watched.get(name)
        if watched is None:
            return
        watched.view = replace(watched.view, reported_failures=watched.view.reported_failures + 1)
        if watched.health.unreachable(self._clock()):
            watched.view = replace(watched.view, error="connections of requests failed")
            self._changed(watched)

    def on_trial(self, name: str) -> bool:
        """Whether the next request to a backend shows whether it works again."""
        watched = self._watched.get(name)
        return watched is not None and watched.view.state is State.HALF_OPEN

    def report_served(self, name: str, began: float) -> None:
        """Take a request that a backend served.

        Args:
            name: the backend; one that is gone is ignored.
            began: when the request was sent, monotonic seconds.
        """
        watched = self._watched.get(name)
        if watched is not None and watched.health.served(self._clock(), began):
            self._changed(watched)

    def report_fault(self, name: str, began: float, detail: str) -> None:
        """Take a request that failed on a backend by no fault of its own.

        Args:
            name: the backend; one that is gone is ignored.
            began: when the request was sent, monotonic seconds.
            detail: what was wrong, for people.
        """
        watched = self._watched.get(name)
        if watched is None:
            return
        watched.view = replace(watched.view, fault=detail, reported_failures=watched.view.reported_failures + 1)
        if watched.health.failed(self._clock(), began):
            self._changed(watched)

    def drain(self, name: str, *, drained: bool) -> bool:
        """Order that a backend gets nothing new, or that it serves again.

        Returns:
            Whether that changes anything.

        Raises:
            KeyError: there is no such backend.
        """
        watched = self._watched[name]
        if watched.view.drained is drained:
            return False
        watched.view = replace(watched.view, drained=drained)
        self._told.drained(name, drained)
        return True

    def views(self) -> tuple[BackendView, ...]:
        """Return what is known of every backend; engine metrics that are stale are unknown, never zero."""
        now = self._clock()
        return tuple(self._aged(watched, now) for watched in self._watched.values())

    @property
    def any_up(self) -> bool:
        """Whether some backend can be used."""
        return any(watched.view.serves for watched in self._watched.values())

    @property
    def why_none(self) -> str | None:
        """Why no backend can be used, or None."""
        views = [watched.view for watched in self._watched.values()]
        if any(view.serves for view in views):
            return None
        if any(view.drained and view.state.usable for view in views):
            return "every backend that could serve is drained"
        if any(view.state is State.TRIPPED for view in views):
            return "requests fail on every backend that answers"
        return "no backend answers"

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
        """Return the configured limits of every backend; what is not configured is what the backend says of itself.

        That is the models it serves, and the size of its KV cache.
        """
        return tuple(self._told_by(configured, self._watched[configured.name].view) for configured in self._limits)

    @staticmethod
    def _told_by(configured: BackendLimits, view: BackendView) -> BackendLimits:
        models = configured.models or frozenset(model.name for model in view.models) or None
        kv_tokens = view.kv_tokens if configured.kv_tokens is None else configured.kv_tokens
        return replace(configured, models=models, kv_tokens=kv_tokens)

    def up_for(self, model: str | None) -> list[str]:
        """Return the names of the backends that are up and serve a model, as far as is known."""
        return [
            limits.name
            for limits in self.limits()
            if self._watched[limits.name].view.serves
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
        return await self._learner.prefix_hits(watched)

    async def _keep_probing(self, watched: Watched) -> None:
        due = self._clock()
        while True:
            due = max(due + self._probes.interval, self._clock())
            await asyncio.sleep(due - self._clock())
            await self._probe(watched)

    def _probed(self, watched: Watched, *, good: bool, error: str | None) -> None:
        watched.probed_at = now = self._clock()
        watched.view = replace(watched.view, error=error)
        if watched.health.probe(now, good=good):
            self._changed(watched)

    def _changed(self, watched: Watched) -> None:
        """Say what the new state of a backend means, and wake up when its time is over."""
        health, before = watched.health, watched.view.state
        state = health.state
        watched.view = replace(watched.view, state=state)
        if watched.timer is not None:
            watched.timer.cancel()
            watched.timer = None
        if health.due_at != NEVER:
            delay = max(0.0, health.due_at - self._clock())
            watched.timer = asyncio.get_running_loop().call_later(delay, self._tick, watched)
        say(watched, before)
        if state.answers and not before.answers:
            watched.models_at = None
            self._learner.tell_caching(watched, PrefixCaching())
        if not watched.introduced:
            return
        if state.usable:
            self._told.entry(watched.view.name, watched.entry)
        if state.usable is not before.usable:
            self._on_change(watched.view.name, state.usable)

    def _tick(self, watched: Watched) -> None:
        watched.timer = None
        if watched.health.tick(max(self._clock(), watched.health.due_at)):
            self._changed(watched)

    def _aged(self, watched: Watched, now: float) -> BackendView:
        scrape_age = None if watched.scraped_at is None else now - watched.scraped_at
        probe_age = None if watched.probed_at is None else now - watched.probed_at
        view = replace(
            watched.view,
            scrape_age_s=scrape_age,
            probe_age_s=probe_age,
            failed_in_a_row=watched.health.failed_in_a_row,
            entered=dict(watched.health.entered),
        )
        fresh = scrape_age is not None and scrape_age <= STALE_AFTER_PROBES * self._probes.interval
        return view if fresh and view.state.answers else replace(view, waiting=None, running=None, kv_usage=None)
