"""The composition root: settings become objects, objects get connected, started, drained and closed."""

import asyncio
import gc
import itertools
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version

import uvloop

from proxy import recorder
from proxy.account import Account, Observer
from proxy.admin import Admin
from proxy.admission import Admission
from proxy.attempt import Engines
from proxy.backends import Backends, PrefixCaching, State
from proxy.classification import Classification
from proxy.feeding import Feeding
from proxy.handler import Corridor, HandlerLimits, Rooms
from proxy.listener import Listener, PureParserError, check_parser
from proxy.metrics import Metrics
from proxy.pace import Pace
from proxy.policy.classify import CapAction, LanePolicy, OutputPolicy
from proxy.policy.dispatch import Dispatcher
from proxy.policy.installments import DEFAULT_GRANULARITY
from proxy.relay import Patience
from proxy.settings import LANES, Address, Lane, Settings
from proxy.status import Status
from proxy.upstream.pool import Origin, Pool

_log = logging.getLogger("lanewise")

BACKLOG = 4096
"""Connections that may wait to be accepted."""
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

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.listen = settings.listen
        self.admin_listen = settings.admin
        self._scheduling = settings.to_scheduling()
        paces = {backend.label: Pace() for backend in settings.backends}
        self.admission = Admission(Dispatcher(self._scheduling, settings.to_backend_limits()), paces)
        self.backends = Backends(settings, self._backend_changed, self._models_changed, on_caching=self._caching_told)
        self.engines = Engines(_pools(settings), self.backends.report_failure, paces)
        self._contexts: dict[str | None, int | None] = {}
        self.classification = Classification(
            _lane_policies(settings), self._context_tokens, want_blocks=settings.recorder.enabled
        )
        self._recorder = recorder.start(settings)
        self.metrics = Metrics(
            settings, snapshot=self.admission.snapshot, backends=self.backends, recorder=self._recorder
        )
        self.status = Status(settings, snapshot=self.admission.snapshot, backends=self.backends)
        self._admin = Admin(settings.admin, self.metrics, self.status)
        self._turn = itertools.count()
        self.corridor: Corridor | None = None
        self._listener: Listener | None = None
        self._server: asyncio.Server | None = None

    def __repr__(self) -> str:
        active = self.corridor.active if self.corridor is not None else 0
        return f"<App {self.listen}, {active} active, {self.admission!r}>"

    async def start(self) -> None:
        """Bind both addresses, probe the backends once, serve.

        Raises:
            StartError: an address is in use or not ours.
        """
        sock = _bind(self.settings.listen)
        try:
            self.admin_listen = await self._admin.start()
        except OSError as error:
            sock.close()
            raise StartError(_in_use("the admin listener", self.settings.admin, error)) from None
        await self.backends.start()
        self.metrics.lag.start()
        self.corridor = Corridor(self._rooms(), _handler_limits(self.settings))
        self._listener = self._make_listener(self.corridor)
        self._server = await asyncio.get_running_loop().create_server(self._listener, sock=sock, backlog=BACKLOG)
        self.listen = Address(self.settings.listen.host, sock.getsockname()[1])
        self._say_where()

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
        await _first_of(corridor.quiet, hurry, seconds)
        if not corridor.active:
            return
        why = "the proxy shuts down and could not wait any longer"
        refused, cut = self.admission.refuse_waiting(why), self.engines.stop_all()
        _log.warning("drained for %g s or told to hurry: %d waiting refused, %d answers cut", seconds, refused, cut)
        await _first_of(corridor.quiet, None, _GOODBYE_S)

    async def close(self) -> None:
        """Close everything; whatever still runs is cut off."""
        if self._server is not None:
            self._server.close()
        if self._listener is not None:
            self._listener.pre_shutdown()  # idle connections go at once
            await self._listener.shutdown(_GOODBYE_S)
        self.engines.close()
        self.admission.close()
        self.metrics.lag.stop()
        await self.backends.close()
        await self._admin.close()
        if self._recorder is not None:
            await self._recorder.close()

    def _rooms(self) -> Rooms:
        observers: list[Observer] = [self.classification, self.metrics, self.status]
        if self._recorder is not None:
            observers.append(self._recorder)
        feeding = Feeding(self.engines, self.admission, self.backends, self.classification)
        return Rooms(self.classification, self.admission, self.engines, feeding, Account(observers), self._reachable)

    def _make_listener(self, corridor: Corridor) -> Listener:
        return Listener(
            corridor,
            corridor.refuse,
            keepalive_s=self.settings.timeouts.header,
            line_bytes=self.settings.limits.request_line,
            field_bytes=self.settings.limits.header,
        )

    def _reachable(self) -> Iterator[str]:
        """Yield the backends that are up, each time beginning with another."""
        names = [view.name for view in self.backends.views() if view.state is State.UP]
        start = next(self._turn) % len(names) if names else 0
        yield from names[start:] + names[:start]

    def _context_tokens(self, model: str | None) -> int | None:
        if model not in self._contexts:
            if len(self._contexts) > 1000:  # clients choose these names
                self._contexts.clear()
            self._contexts[model] = self.backends.max_model_len(model)
        return self._contexts[model]

    def _backend_changed(self, name: str, up: bool) -> None:
        self.admission.set_backend_up(name, up=up)

    def _caching_told(self, name: str, caching: PrefixCaching) -> None:
        """Let long prompts be fed in parts where the engine's prefix cache can hold them.

        Several engines behind one address have a cache each, and the parts of a prompt would go to different ones.
        """
        trusted = self.settings.installments.mode == "on"
        one = caching.engines is None or caching.engines <= 1
        self.admission.set_prefix_cache(
            name,
            enabled=caching.enabled is not False and (one or trusted),
            granularity=caching.block_tokens or DEFAULT_GRANULARITY,
            trusted=trusted,
        )

    def _models_changed(self) -> None:
        self._contexts.clear()
        limits = self.backends.limits()
        self.admission.apply(self.admission.dispatcher.reconfigure(time.monotonic(), self._scheduling, limits))

    def _say_where(self) -> None:
        settings = self.settings
        engines = ", ".join(
            f"{view.name} ({'up' if view.state is State.UP else 'no answer yet'})" for view in self.backends.views()
        )
        _log.info(
            "lanewise %s listens on %s, admin on %s; mode %s; backends: %s",
            version("lanewise"), self.listen, self.admin_listen, settings.mode, engines,
        )  # fmt: skip
        if not self.backends.any_up:
            _log.warning("no backend answers yet: requests get 503, and /readyz is 503, until one does")


def build(settings: Settings) -> App:
    """Make the proxy of a configuration. Call it in a running event loop.

    Raises:
        StartError: aiohttp without its C parser, or a trace directory that cannot be written.
    """
    try:
        check_parser()
        return App(settings)
    except (PureParserError, recorder.RecorderError) as error:
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


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; a second signal ends the drain.

    Returns:
        The exit code, 0.

    Raises:
        StartError: the proxy could not start.
    """
    _set_up_log()
    _raise_file_limit()
    return uvloop.run(_run(settings))


async def _run(settings: Settings) -> int:
    loop = asyncio.get_running_loop()
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    await serve(build(settings), stop, hurry, _calm_the_collector)
    return 0


def _pools(settings: Settings) -> dict[str, Pool]:
    timeouts = settings.timeouts
    return {
        backend.label: Pool(
            Origin.of_url(backend.url), connect_timeout_s=timeouts.connect, idle_s=timeouts.idle_connection
        )
        for backend in settings.backends
    }


def _lanes(settings: Settings) -> list[tuple[str, Lane]]:
    return [(name, getattr(settings.lanes, name)) for name in LANES]


def _lane_policies(settings: Settings) -> list[LanePolicy]:
    longest = {LANES[0]: settings.lanes.short.max_prompt_tokens, LANES[-1]: settings.limits.prompt_tokens}
    return [
        LanePolicy(
            name=name,
            max_prompt_tokens=longest.get(name),
            output=OutputPolicy(
                default=lane.output.default,
                ceiling=lane.output.ceiling,
                action=CapAction(lane.output.action),
                clamp_to_context=lane.output.clamp_to_context,
            ),
        )
        for name, lane in _lanes(settings)
    ]


def _handler_limits(settings: Settings) -> HandlerLimits:
    timeouts = settings.timeouts
    return HandlerLimits(
        body_bytes=settings.limits.body,
        body_s=timeouts.body,
        patience=tuple(Patience(lane.first_byte_timeout, timeouts.idle_stream) for _, lane in _lanes(settings)),
        answer=Patience(timeouts.answer, timeouts.idle_stream),
        read_s=timeouts.idle_stream,
        id_header=settings.request_id_header.lower(),
    )


def _bind(address: Address) -> socket.socket:
    """Bind and listen at once: a taken port is known before anything else starts, and early clients wait."""
    try:
        family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((address.host, address.port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise StartError(_in_use("the data listener", address, error)) from None


def _in_use(what: str, address: Address, error: OSError) -> str:
    why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
    return f"{what} cannot listen on {address}: {why}. Free the port, or choose another address"


async def _first_of(one: asyncio.Event, other: asyncio.Event | None, seconds: float) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in (one, other) if event is not None]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def _calm_the_collector() -> None:
    """Keep the garbage collector from holding every stream up: what lives for ever is not looked at again.

    A request makes a few hundred objects and almost no cycles, so the youngest generation may grow larger.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def _raise_file_limit() -> None:
    """Each stream takes two file descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _OneLine(logging.Formatter):
    """One event, one line: control characters in a message are escaped."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        text = super().formatMessage(record)
        return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _set_up_log() -> None:
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(message)s"))
    root.addHandler(handler)
    root.setLevel(logging.INFO)
