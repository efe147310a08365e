"""`lanewise serve --workers N`: starts N proxies on one port, keeps them running, and speaks for all of them.

Each worker is a `lanewise serve` of its own with the same sources of settings. What differs is said by flags: its admin
address (the configured port + 1, + 2, …), its share, and the store. Where none is configured they share by a `Book` of
the supervisor (`proxy.leases.bookstore`). The supervisor itself serves the merged status on the configured admin port
and hands orders and signals on.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from proxy import logs, process, tasks
from proxy.control import Control, ControlError, Order, Reply, give
from proxy.leases.bookstore import SCHEME, BookServer
from proxy.notify import ServiceManager
from proxy.settings import Address, Settings
from proxy.settings.sharing import MOST_PROXIES
from proxy.workers.front import Front, ask
from proxy.workers.merged import merged_reply

_log = logging.getLogger("lanewise")
_AGAIN_S = (0.5, 30.0)
"""Before a worker that died is started anew: twice as long each time, from and up to."""
_STEADY_S = 60.0
"""One that ran this long starts with the short pause again."""
_LOOK_S = 0.1
_TIMEOUTS = 5
"""Time-outs in a lease: nothing but a lack of processor time keeps the supervisor from answering."""
_ORDER_PATIENCE_S = 60.0


class WorkersError(Exception):
    """The workers cannot be started; the text is for people."""


@dataclass
class Worker:
    """One process."""

    number: int
    admin: Address
    process: asyncio.subprocess.Process | None = None
    restarts: int = 0
    was_ready: bool = False
    started_at: float = 0.0
    pause_s: float = field(default=_AGAIN_S[0])

    @property
    def pid(self) -> int | None:
        """Its process id, while it runs."""
        return self.process.pid if self.process is not None and self.process.returncode is None else None


class Supervisor:
    """Starts, watches and ends the workers.

    Args:
        settings: the configuration, for the addresses and what is shared.
        arguments: where the settings of a worker come from, as flags.
        count: how many workers.

    Raises:
        WorkersError: a static share without a store, or too many of them.
    """

    def __init__(self, settings: Settings, arguments: Sequence[str], count: int) -> None:
        if settings.share > 1 and not settings.leased:
            raise WorkersError(
                f"--workers beside share 1/{settings.share}: the workers of several hosts need a store that all of them"
                " share; set sharing.store"
            )
        if settings.share * count > MOST_PROXIES:
            raise WorkersError(f"{count} workers on {settings.share} hosts are more than {MOST_PROXIES} proxies")
        self._settings = settings
        self._arguments = tuple(arguments)
        self._count = count
        self._stack = ExitStack()
        self._listen, self._admin = settings.listen, settings.admin
        self._book: BookServer | None = None
        self._stop = asyncio.Event()
        self._signals = 0
        self._code: int | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.workers: list[Worker] = []

    async def run(self, manager: ServiceManager) -> int:
        """Run until told to end; return the exit code.

        Raises:
            WorkersError: an address is in use or not ours.
        """
        with self._stack:
            await self._prepare()
            front = Front(self._admin, self.workers)
            try:
                self._admin = await front.start()
            except OSError as error:
                raise WorkersError(f"the admin listener cannot listen on {self._admin}: {error.strerror}") from None
            control = Control(self.obey)
            await control.start(self._admin.port)
            self._listen_to_signals()
            self._tasks = [tasks.spawn(self._keep(worker), f"worker {worker.number}") for worker in self.workers]
            self._tasks.append(tasks.spawn(self._tell(manager), "workers"))
            await self._stop.wait()
            manager.stopping(self._settings.timeouts.drain)
            await asyncio.gather(*(self._end(worker) for worker in self.workers))
            for task in self._tasks:
                task.cancel()
            await control.close()
            await front.close()
            if self._book is not None:
                await self._book.close()
        return self._code or 0

    async def obey(self, order: Order) -> Reply:
        """Give an order to every worker, one after the other, and return what became of it."""
        replies = []
        for worker in self.workers:
            try:
                replies.append(await asyncio.to_thread(give, worker.admin.port, order, _ORDER_PATIENCE_S))
            except ControlError as error:
                replies.append({"done": False, "sentences": [f"worker {worker.number}: {error}"]})
        return merged_reply(replies)

    # ------------------------------------------------------------------ start

    async def _prepare(self) -> None:
        listen, admin = self._settings.listen, self._settings.admin
        self._listen = Address(listen.host, self._reserve(listen))
        ports = [admin.port + 1 + n if admin.port else _free_port(admin.host) for n in range(self._count)]
        self.workers = [Worker(n, Address(admin.host, port)) for n, port in enumerate(ports, 1)]
        if not self._settings.leased:
            folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="lanewise-")))
            self._book = BookServer(folder / "leases")
            await self._book.start()

    def _reserve(self, listen: Address) -> int:
        """Hold the port for the workers, so that it is known, and one that is taken is told at once."""
        family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
        reserved = self._stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
        for option in (socket.SO_REUSEPORT, socket.SO_REUSEADDR):  # the second: connections of a proxy before it linger
            reserved.setsockopt(socket.SOL_SOCKET, option, 1)
        try:
            reserved.bind((listen.host, listen.port))
        except OSError as error:
            raise WorkersError(f"the data listener cannot listen on {listen}: {error.strerror}") from None
        return int(reserved.getsockname()[1])

    def _command(self, worker: Worker) -> list[str]:
        settings = self._settings
        said = [f"listen={self._listen}", f"admin={worker.admin}", f"share=1/{settings.share * self._count}"]
        if self._book is not None:
            said.append(f"sharing.store={SCHEME}://{self._book.path}")
            said.append(f"sharing.timeout={round(1000 * settings.sharing.lease / _TIMEOUTS)}ms")
        if settings.recorder.enabled:
            said.append("recorder.enabled=true")
            said.append(f"recorder.directory={settings.recorder.directory / f'worker-{worker.number}'}")
        flags = [part for one in said for part in ("--set", one)]  # the last word, whatever the arguments set
        return ["serve", *self._arguments, *flags, "--worker", str(worker.number)]

    # ------------------------------------------------------------------ one worker

    async def _keep(self, worker: Worker) -> None:
        """Start a worker, and start it anew whenever it dies."""
        while not self._stop.is_set():
            worker.started_at = time.monotonic()
            try:
                worker.process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "proxy", *self._command(worker), stdin=asyncio.subprocess.DEVNULL
                )
            except OSError as error:  # no memory or no descriptor for it: like a worker that ends at once
                _log.error("worker %d cannot be started: %s", worker.number, error)
                code = 1
            else:
                code = await worker.process.wait()
            if self._stop.is_set():
                return
            if not worker.was_ready:
                _log.error("worker %d ended with code %d before it was ready: all of them end", worker.number, code)
                self._code = code if code > 0 else 1
                self._stop.set()
                return
            if time.monotonic() - worker.started_at > _STEADY_S:
                worker.pause_s = _AGAIN_S[0]
            worker.restarts += 1
            _log.error("worker %d ended with code %d: started anew in %g s", worker.number, code, worker.pause_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(worker.pause_s):
                    await self._stop.wait()
            worker.pause_s = min(2 * worker.pause_s, _AGAIN_S[1])

    async def _end(self, worker: Worker) -> None:
        if worker.process is not None and worker.process.returncode is None:
            with suppress(ProcessLookupError):
                worker.process.terminate()
            await worker.process.wait()

    async def _tell(self, manager: ServiceManager) -> None:
        """Wait until all workers serve, say so, and go on saying that the supervisor is alive."""
        while not all(worker.was_ready for worker in self.workers):
            for worker in self.workers:
                worker.was_ready = worker.was_ready or await ask(worker.admin, "/livez") is not None
            await asyncio.sleep(_LOOK_S)
        how = "their supervisor's store" if self._book is not None else "the configured store"
        told = f"{self._count} workers on {self._listen}, limits shared through {how}"
        _log.info("%s; status of all on %s", told, self._admin)
        manager.ready(told)
        await manager.watch(lambda: told)

    # ------------------------------------------------------------------ signals

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop)
        loop.add_signal_handler(signal.SIGHUP, self._pass_on, signal.SIGHUP)

    def _on_stop(self) -> None:
        """Begin the end; a second signal ends the drain of every worker."""
        self._signals += 1
        self._stop.set()
        if self._signals > 1:
            self._pass_on(signal.SIGTERM)

    def _pass_on(self, number: signal.Signals) -> None:
        """Hand a signal on; SIGHUP not to one that starts, which reads its configuration anyway and would die of it."""
        for worker in self.workers:
            if worker.pid is not None and (worker.was_ready or number is not signal.SIGHUP):
                with suppress(ProcessLookupError):
                    os.kill(worker.pid, number)


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def run(settings: Settings, arguments: Sequence[str], count: int) -> int:
    """Serve with several workers until SIGTERM or SIGINT; a second signal ends the drain. SIGHUP reloads them all.

    Args:
        settings: the configuration.
        arguments: where it comes from, as flags of `serve`.
        count: how many workers.

    Returns:
        The exit code: 0, or that of a worker that could not start.

    Raises:
        WorkersError: they cannot be started.
    """
    logs.set_up(settings.log_format)
    process.raise_file_limit()
    manager = ServiceManager.of_environment(os.environ)
    return asyncio.run(_run(settings, arguments, count, manager))


async def _run(settings: Settings, arguments: Sequence[str], count: int, manager: ServiceManager) -> int:
    return await Supervisor(settings, arguments, count).run(manager)
