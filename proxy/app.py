"""The composition root: settings become objects, objects get connected, started, drained and closed."""

import asyncio
import itertools
import logging
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import uvloop
from prometheus_client.metrics_core import Metric

from proxy import logs, process, recorder, tasks, tracing
from proxy.account import Account, Observer
from proxy.admin import Admin
from proxy.admission import Admission
from proxy.attempt import Engines
from proxy.backends import Backends, PrefixCaching, Told
from proxy.classification import Classification
from proxy.control import Control
from proxy.credentials import Credentials
from proxy.credentials import read as read_credentials
from proxy.door import Door, DoorError, in_use
from proxy.evidence import Reports
from proxy.explain import Explanations
from proxy.feeding import Feeding
from proxy.forwarding import Forwarding
from proxy.handler import Corridor, HandlerLimits, Rooms
from proxy.history import HistoryFile, state_directory
from proxy.inforce import InForce
from proxy.lately import Lately
from proxy.leases import NoClientError, join
from proxy.leases.shown import share_document, share_sentence
from proxy.lengths import ExactLengths, LengthMemory
from proxy.listener import Listener, ListenerLimits, PureParserError, check_parser
from proxy.metrics.lengths import length_families
from proxy.metrics.whole import Metrics
from proxy.modes import Modes
from proxy.notify import ServiceManager
from proxy.orders import Orders
from proxy.pace import Pace
from proxy.paper import Paper
from proxy.policy.dispatch import Dispatcher
from proxy.policy.health import hold_s
from proxy.policy.installments import DEFAULT_GRANULARITY
from proxy.policy.limits import Mode
from proxy.policy.shadow import Shadow, on_paper
from proxy.relay import Patience
from proxy.reload import Reloader
from proxy.repeats import Repeats
from proxy.settings import LANES, Lane, Loaded, Settings
from proxy.settings.tree import leaves
from proxy.status import Status
from proxy.tenancy import Tenancy
from proxy.upstream.access import Access
from proxy.upstream.names import Names
from proxy.upstream.pool import Origin, Pool

_log = logging.getLogger("lanewise")

_GOODBYE_S = 1.0
"""How long answers that are on their way may take to leave, after the drain."""


class StartError(Exception):
    """The proxy cannot start; the text is for people."""


class App:
    """The whole proxy.

    Attributes:
        listen: address of the data listener, with its real port once started.
        admin_listen: the same of the admin listener.
    """

    def __init__(
        self,
        settings: Settings,
        loaded: Loaded | None = None,
        read: Callable[[], Loaded] | None = None,
        *,
        names: Names | None = None,
    ) -> None:
        self.settings = settings
        self.credentials = read_credentials(settings, os.environ)
        self._loaded = loaded or Loaded(settings, dict.fromkeys(leaves(Settings), ""), None)
        self.in_force = InForce(settings)
        self.listen = settings.listen
        self.admin_listen = settings.admin
        self._scheduling = settings.to_scheduling()
        self._paces = {backend.label: Pace() for backend in settings.backends}
        self.admission = Admission(Dispatcher(self._scheduling, settings.to_backend_limits()), self._paces)
        self.names = Names(refresh_s=settings.names.refresh) if names is None else names
        self.backends = Backends(
            settings,
            self._backend_changed,
            self._models_changed,
            on_caching=self._caching_told,
            told=Told(entry=self.admission.set_entry, drained=self.admission.set_drained),
            names=self.names,
        )
        self._pools: dict[str, Pool] = {}
        self._change_pools()
        self._ranks: dict[str, int] = {}
        self.engines = Engines(self._pools, self._reports(), self._paces)
        self._configure_retries()
        self._contexts: dict[str | None, int | None] = {}
        self.classification = Classification(
            settings.to_lane_policies(), self._context_tokens, want_blocks=settings.recorder.enabled
        )
        self.classification.rules = settings.to_length_policies()
        self.classification.has_choice = self._has_choice
        self._choices: dict[str | None, bool] = {}
        self.tenancy, self.repeats = Tenancy(settings, self._owners()), Repeats(settings)
        self._recorder = recorder.start(settings)
        self.engines.keep_bodies = settings.recorder.text
        if self._recorder is not None:
            self.engines.on_stream = self._recorder.take_prompt
        self.request_log = logs.RequestLog(settings)
        self.spans = tracing.start(settings)
        self.metrics = Metrics(
            settings,
            snapshot=self.admission.snapshot,
            backends=self.backends,
            recorder=self._recorder,
            in_force=self.in_force,
        )
        self.lately = Lately(self.admission.snapshot, self.backends.views)
        self.status = Status(
            self.in_force,
            snapshot=self.admission.snapshot,
            backends=self.backends,
            would=lambda: self.metrics.would,
            reuse=None if self._recorder is None else self._recorder.reuse,
            last_minute=self.lately.last_minute,
        )
        self.keeper = join(settings, self.admission)
        self.status.sharing = self._sharing
        self.reloader = Reloader(self, self.in_force, read)
        self._control = Control(Orders(self.backends, self.admission.snapshot, self.reloader.obey).obey)
        self.explanations = Explanations(self.in_force, self.classification.estimator)
        self.exact = ExactLengths(settings.estimate, self.engines, self.backends.up_for, self.classification)
        self.metrics.extra += [self._length_families, self._credential_families]
        if self.keeper is not None:
            self.metrics.extra.append(self.keeper.families)
        self._lengths = LengthMemory(self.classification.estimator, None)
        self._admin = Admin(settings.admin, self.metrics, self.status, self.explanations, self.lately)
        self._let_in()
        self._turn = itertools.count()
        self.corridor: Corridor | None = None
        self.manager = ServiceManager()
        self.worker: int | None = None
        """Its number among the workers of one port; None: it is alone."""
        self._listener: Listener | None = None
        self._door: Door | None = None

    def __repr__(self) -> str:
        active = self.corridor.active if self.corridor is not None else 0
        return f"<App {self.listen}, {active} active, {self.admission!r}>"

    async def start(self) -> None:
        """Bind both addresses, probe the backends once, serve.

        Raises:
            StartError: an address is in use or not ours.
        """
        try:
            door = self._door = Door(self.settings.listen, shared=self.worker is not None)
        except DoorError as error:
            raise StartError(str(error)) from None
        try:
            self.admin_listen = await self._admin.start()
        except OSError as error:
            door.close()
            raise StartError(in_use("the admin listener", self.settings.admin, error)) from None
        self._limit()
        self.names.start()
        if self.keeper is not None:
            await self.keeper.start()
        await self.backends.start()
        self.metrics.lag.start()
        self.lately.start()
        self.corridor = Corridor(self._rooms(), _handler_limits(self.settings, self.credentials))
        self._listener = self._make_listener(self.corridor)
        await self._open(door)
        self.listen = door.address
        await self.reloader.begin(self._loaded, self._history_file())
        self._lengths.path = self._length_file()
        await self._lengths.begin()
        await self._control.start(self.admin_listen.port)
        self._say_where()
        for doubt in self.credentials.doubts(self.settings, time.time()):
            _log.warning(doubt)

    @property
    def told(self) -> str:
        """What the service manager shows of it, one line."""
        views = list(self.backends.views())
        usable = sum(1 for view in views if view.serves)
        return f"{self.settings.mode} on {self.listen}, {usable} of {len(views)} backends up"

    @property
    def busy(self) -> str | None:
        """Why the configuration cannot change now, or None."""
        if self.corridor is None:
            return "the proxy has not started yet"
        return "the proxy shuts down" if self.corridor.draining else None

    async def change_to(self, settings: Settings) -> tuple[str, ...]:
        """Follow another configuration, under whatever waits and runs: requests that have begun lose nothing.

        New backends are probed first; from then on everything changes in one step of the event loop.

        Returns:
            What is to be said about it, one sentence each.

        Raises:
            ConfigurationError: a file that it names cannot be used; nothing has moved.
        """
        credentials = await asyncio.to_thread(read_credentials, settings, os.environ)
        self.backends.let_in({**_by_url(self.settings, self.credentials), **_by_url(settings, credentials)})
        met = await self.backends.meet(settings)
        self.manager.reloading()
        old, self.settings = self.settings, settings
        anew = self._other_doors(old, credentials)
        self.credentials = credentials
        self._scheduling = settings.to_scheduling()
        self.names.refresh_s = settings.names.refresh
        self._change_pools()
        self._configure_retries()
        self.backends.change(settings, met)
        self._contexts.clear()
        self._choices.clear()
        self.classification.lanes = settings.to_lane_policies()
        self.classification.rules = settings.to_length_policies()
        self.tenancy.configure(settings, self._owners())
        self.repeats.configure(settings)
        self.explanations.configure(settings)
        self.request_log.configure(settings)
        self.exact.settings = settings.estimate
        self._limit([one.name for one in met if not one.up])
        if self.keeper is not None:
            self.keeper.configure(settings)
        self.backends.introduce(met)
        if settings.installments != old.installments:
            self.backends.tell_caching()
        self.metrics.configure(settings)
        if self.corridor is not None:
            self.corridor.configure(_handler_limits(settings, credentials))
        if self._listener is not None:
            self._listener.configure(_listener_limits(settings))
        self._let_in()
        if anew and self._door is not None:
            await self._open(self._door)
        self.manager.ready(self.told)
        silent = (f"backend {one.name} does not answer yet: {one.error}" for one in met if not one.up)
        return (*silent, *credentials.doubts(settings, time.time()))

    async def renew(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Read the files again that the settings name: keys and certificates may have changed.

        Returns:
            The keys of those that hold something else now, and what is doubtful about them.

        Raises:
            ConfigurationError: one cannot be used; nothing has moved.
        """
        settings = self.settings
        credentials = await asyncio.to_thread(read_credentials, settings, os.environ)
        renewed = credentials.renewed(self.credentials)
        if renewed:
            anew = self._other_doors(settings, credentials)
            self.credentials = credentials
            self._change_pools()
            self.tenancy.configure(settings, self._owners())
            if self.corridor is not None:
                self.corridor.configure(_handler_limits(settings, credentials))
            self._let_in()
            if anew and self._door is not None:
                await self._open(self._door)
        return renewed, credentials.doubts(settings, time.time())

    async def drain(self, hurry: asyncio.Event) -> None:
        """Refuse what comes from now on; let what runs or waits finish, within the time to drain or until `hurry`.

        The listener stays open and answers 503 until then, so that nobody is refused by a closed port.
        """
        corridor = self.corridor
        if corridor is None:
            return
        corridor.draining = True
        self.admission.drain()
        _log.info("draining: %d requests to finish", corridor.active)
        seconds = self.settings.timeouts.drain
        self.manager.stopping(seconds)
        await _first_of(corridor.quiet, hurry, seconds)
        if not corridor.active:
            return
        why = "the proxy shuts down and could not wait any longer"
        refused, cut = self.admission.refuse_waiting(why), self.engines.stop_all()
        _log.warning("drained for %g s or told to hurry: %d waiting refused, %d answers cut", seconds, refused, cut)
        await _first_of(corridor.quiet, None, _GOODBYE_S)

    async def close(self) -> None:
        """Close everything; whatever still runs is cut off."""
        await self._control.close()
        if self._door is not None:
            self._door.close()
        if self._listener is not None:
            self._listener.pre_shutdown()  # idle connections go at once
            await self._listener.shutdown(_GOODBYE_S)
        self.engines.close()
        if self.keeper is not None:
            await self.keeper.close()
        self.admission.close()
        self.metrics.lag.stop()
        self.lately.stop()
        await self._lengths.close()
        await self.backends.close()
        await self.names.close()
        await self._admin.close()
        if self._recorder is not None:
            await self._recorder.close()
        if self.spans is not None:
            await self.spans.close()

    def _rooms(self) -> Rooms:
        observers: list[Observer] = [self.classification, self.metrics, self.status, self.lately, self.request_log]
        if self._recorder is not None:
            observers.append(self._recorder)
        if self.spans is not None:
            observers.append(self.spans)
        observers.append(self.explanations)
        feeding = Feeding(self.engines, self.admission, self.backends, self.classification, self._ranks)
        return Rooms(
            self.classification,
            self.admission,
            self.engines,
            feeding,
            Account(observers),
            self._reachable,
            self.tenancy,
            self.repeats,
            self.explanations,
            self.exact,
            self.spans,
        )

    def _owners(self) -> dict[str, str]:
        """Return whose the keys of clients are, by digest."""
        return {} if self.credentials.clients is None else self.credentials.clients.tenants

    def _let_in(self) -> None:
        """Let everybody follow the keys and certificates in force."""
        self._admin.keys = self.credentials.admin
        self.backends.let_in(_by_url(self.settings, self.credentials))
        for name, pool in self._pools.items():
            pool.let_in(self.credentials.backends.get(name, Access()))

    def _other_doors(self, old: Settings, credentials: Credentials) -> bool:
        """End warm connections to backends that would have to show another certificate now.

        Returns:
            Whether connections of clients are made differently from now on.
        """
        renewed = credentials.renewed(self.credentials)
        was = {one.label: (one.ca_file, one.insecure) for one in old.backends}
        for one in self.settings.backends:
            changed = was.get(one.label) != (one.ca_file, one.insecure)
            if (changed or f"backends[{one.label}].ca_file" in renewed) and one.label in self._pools:
                self._pools[one.label].close()
        return self.settings.tls != old.tls or any(key.startswith("tls.") for key in renewed)

    async def _open(self, door: Door) -> None:
        """Let clients in, encrypted or not, as the settings in force say."""
        assert self._listener is not None
        await door.open(self._listener, self.credentials.listener, self.settings.timeouts.header)

    def _make_listener(self, corridor: Corridor) -> Listener:
        return Listener(corridor, corridor.refuse, _listener_limits(self.settings))

    def _limit(self, down: Collection[str] = ()) -> None:
        """Let the Dispatcher, and whoever decides on paper, follow the settings and what is known of the backends.

        Args:
            down: backends that are new to them and do not answer.
        """
        limits = self.backends.limits()
        enforces = self.settings.mode is Mode.ENFORCE
        # A limit that holds nobody back has no effect to adapt to.
        self.admission.reconfigure(self._scheduling, limits if enforces else on_paper(limits), down)
        if self.settings.mode is not Mode.OBSERVE:
            self.admission.paper = None
        elif self.admission.paper is None:
            shadow = Shadow(self._scheduling, limits, self.admission.dispatcher)
            for backend in self.admission.snapshot().backends:  # one that is drained gets nothing on paper either
                shadow.set_backend_up(time.monotonic(), backend.name, backend.up)
            self.admission.paper = Paper(shadow)

    def _change_pools(self) -> None:
        """Keep a pool for each backend. That of a backend that is gone only ends what it has begun."""
        timeouts = self.settings.timeouts
        wanted = {backend.label: Origin.of_url(backend.url) for backend in self.settings.backends}
        for name, pool in list(self._pools.items()):
            if pool.closed and name not in wanted:
                del self._pools[name]
            elif wanted.get(name) != pool.address:
                pool.close()
        for name, origin in wanted.items():
            if name not in self._pools or self._pools[name].closed:
                self._pools[name] = Pool(origin, names=self.names)
            self._pools[name].configure(connect_timeout_s=timeouts.connect, idle_s=timeouts.idle_connection)
        for name in wanted:
            self._paces.setdefault(name, Pace())
        for name in self._paces.keys() - wanted.keys():
            del self._paces[name]

    def _history_file(self) -> HistoryFile | None:
        directory = state_directory(self.settings, os.environ)
        return None if directory is None else HistoryFile(directory, self.admin_listen.port)

    def _length_file(self) -> Path | None:
        directory = state_directory(self.settings, os.environ) if self.settings.estimate.remember else None
        return None if directory is None else directory / f"lengths-{self.admin_listen.port}.json"

    def _sharing(self) -> dict[str, Any] | None:
        return share_document(self.settings) if self.keeper is None else self.keeper.document()

    def _length_families(self) -> Iterator[Metric]:
        return length_families(self.exact.asked, self.classification.estimator, self.settings.model_labels)

    def _credential_families(self) -> Iterator[Metric]:
        return self.credentials.families()

    def _reachable(self) -> Iterator[str]:
        """Yield the backends that are up, each time beginning with another."""
        names = [view.name for view in self.backends.views() if view.serves]
        start = next(self._turn) % len(names) if names else 0
        yield from names[start:] + names[:start]

    def _context_tokens(self, model: str | None) -> int | None:
        if model not in self._contexts:
            if len(self._contexts) > 1000:  # clients choose these names
                self._contexts.clear()
            self._contexts[model] = self.backends.max_model_len(model)
        return self._contexts[model]

    def _has_choice(self, model: str | None) -> bool:
        """Whether several backends may serve a model, and what they have computed before is to weigh in the choice."""
        known = self._choices.get(model)
        if known is None:
            if len(self._choices) > 1000:  # clients choose these names
                self._choices.clear()
            serving = sum(
                1 for limits in self.backends.limits() if model is None or model in (limits.models or {model})
            )
            known = self._choices[model] = serving > 1 and self.settings.prefixes.enabled
        return known

    def _reports(self) -> Reports:
        """Return who hears what requests say about their backends."""
        return Reports(
            unreachable=self.backends.report_failure,
            served=self.backends.report_served,
            fault=self.backends.report_fault,
            busy=self._backend_busy,
            on_trial=self.backends.on_trial,
        )

    def _configure_retries(self) -> None:
        chosen = self.settings.retries
        self.engines.configure(
            retry_ratio=chosen.ratio, retry_floor=chosen.floor, stale_connections=chosen.stale_connections
        )

    def _backend_busy(self, name: str, asked_s: float | None) -> None:
        """Leave a backend alone for a while: it works, and has enough to do."""
        seconds = hold_s(asked_s, self.settings.health.busy_at_most)
        self.admission.hold_back(name, seconds)

    def _backend_changed(self, name: str, up: bool) -> None:
        self.admission.set_backend_up(name, up=up)

    def _caching_told(self, name: str, caching: PrefixCaching) -> None:
        """Let long prompts be fed in parts where the engine's prefix cache can hold them.

        Several engines behind one address have a cache each: the parts of a prompt name the one that they go to, and
        where that is not heeded the missing hits say so.
        """
        self._ranks[name] = caching.engines or 1
        trusted = self.settings.installments.mode == "on"
        self.admission.set_prefix_cache(
            name,
            enabled=caching.enabled is not False,
            granularity=caching.block_tokens or DEFAULT_GRANULARITY,
            trusted=trusted,
        )

    def _models_changed(self) -> None:
        self._contexts.clear()
        self._choices.clear()
        self._limit()

    def _say_where(self) -> None:
        settings = self.settings
        engines = ", ".join(
            f"{view.name} ({'up' if view.state.usable else 'no answer yet'})" for view in self.backends.views()
        )
        _log.info(
            "lanewise %s listens on %s, admin on %s; mode %s; backends: %s",
            version("lanewise"), self.listen, self.admin_listen, settings.mode, engines,
        )  # fmt: skip
        if (told := share_sentence(settings)) is not None:
            _log.info(told)
        if not self.backends.any_up:
            _log.warning("no backend answers yet: requests get 503, and /readyz is 503, until one does")


def build(settings: Settings, loaded: Loaded | None = None, read: Callable[[], Loaded] | None = None) -> App:
    """Make the proxy of a configuration. Call it in a running event loop.

    Args:
        settings: the configuration.
        loaded: the same with the sources of its values.
        read: reads it again; without it nothing can be reloaded.

    Raises:
        StartError: aiohttp without its C parser, a trace directory that cannot be written, or tracing without
            OpenTelemetry.
    """
    try:
        check_parser()
        return App(settings, loaded, read)
    except (PureParserError, recorder.RecorderError, tracing.TracingError, NoClientError) as error:
        raise StartError(str(error)) from None


async def serve(
    app: App, stop: asyncio.Event, hurry: asyncio.Event, started: Callable[[], None] = lambda: None
) -> None:
    """Run until `stop`, drain until `hurry` or the time to drain is over, close.

    Args:
        app: not started yet.
        stop: ends the service and begins the drain.
        hurry: ends the drain.
        started: called once requests are served.

    Raises:
        StartError: see `App.start`.
    """
    try:
        await app.start()
        started()
        await stop.wait()
        await app.drain(hurry)
    finally:
        await app.close()


def run(loaded: Loaded, read: Callable[[], Loaded], worker: int | None = None) -> int:
    """Serve until SIGTERM or SIGINT; a second signal ends the drain. SIGHUP reloads.

    Args:
        loaded: the configuration.
        read: reads it again.
        worker: its number among the workers of one port; it ends when their supervisor does.

    Returns:
        The exit code, 0.

    Raises:
        StartError: the proxy could not start.
    """
    logs.set_up(loaded.settings.log_format)
    process.raise_file_limit()
    if worker is not None:
        process.end_with_parent()
    return uvloop.run(_run(loaded, read, worker))


async def _run(loaded: Loaded, read: Callable[[], Loaded], worker: int | None) -> int:
    loop = asyncio.get_running_loop()
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    manager = ServiceManager.of_environment(os.environ)
    app = build(loaded.settings, loaded, read)
    app.manager, app.worker = manager, worker

    async def reload() -> None:
        await app.reloader.reload()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    loop.add_signal_handler(signal.SIGHUP, lambda: tasks.spawn(reload(), "reload"))

    def started() -> None:
        process.calm_the_collector()
        manager.ready(app.told)
        tasks.spawn(manager.watch(lambda: app.told), "watchdog")

    await serve(app, stop, hurry, started)
    return 0


def _lanes(settings: Settings) -> list[tuple[str, Lane]]:
    return [(name, getattr(settings.lanes, name)) for name in LANES]


def _listener_limits(settings: Settings) -> ListenerLimits:
    return ListenerLimits(
        keepalive_s=settings.timeouts.header,
        line_bytes=settings.limits.request_line,
        field_bytes=settings.limits.header,
    )


def _by_url(settings: Settings, credentials: Credentials) -> dict[str, Access]:
    known = credentials.backends
    return {one.url: known[one.label] for one in settings.backends if one.label in known}


def _handler_limits(settings: Settings, credentials: Credentials) -> HandlerLimits:
    timeouts = settings.timeouts
    return HandlerLimits(
        body_bytes=settings.limits.body,
        body_s=timeouts.body,
        patience=tuple(Patience(lane.first_byte_timeout, timeouts.idle_stream) for _, lane in _lanes(settings)),
        answer=Patience(timeouts.answer, timeouts.idle_stream),
        read_s=timeouts.idle_stream,
        id_header=settings.request_id_header.lower(),
        modes=Modes(settings.mode, settings.trusted_networks),
        config=settings.hash,
        keys=credentials.clients,
        forwarding=Forwarding(settings.trusted_proxies),
        log_client=settings.log_client,
    )


async def _first_of(one: asyncio.Event, other: asyncio.Event | None, seconds: float) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in (one, other) if event is not None]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
