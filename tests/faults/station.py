"""A proxy under test: a real process, its recording upstream in front of us, its log in a file."""

import asyncio
import contextlib
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults import wire
from tests.faults.upstream import Script, Upstream, healthy

ROOT = Path(__file__).resolve().parents[2]
INJECT = Path(__file__).resolve().parent / "inject"
"""Put on PYTHONPATH, its `sitecustomize` module plants faults inside the process under test."""
_LISTENS = re.compile(r"listens on ([\d.]+):(\d+), admin on ([\d.]+):(\d+)")
_START_S = 120.0

QUIET_PROBES = {"interval": "1h", "timeout": "20s", "scrape_metrics": False}
"""One probe at the start, then none: all that reaches the upstream is a client's doing."""
NO_DEADLINE = {"drop_factor": "never"}

BASE: dict[str, Any] = {
    "probes": QUIET_PROBES,
    "scheduling": NO_DEADLINE,
    "timeouts": {"header": "3s", "body": "3s", "idle_stream": "3s", "drain": "5s"},
}
"""The configuration of the suite: deadlines of 20, 30 and 60 s in production are 3 s here."""


def merged(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return the first mapping with the second laid over it, level by level."""
    both = dict(base)
    for key, value in more.items():
        inner = both.get(key)
        both[key] = merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return both


@dataclass
class Process:
    """One process with its log."""

    popen: "subprocess.Popen[bytes]"
    log_path: Path
    command: list[str]

    @property
    def log(self) -> str:
        return self.log_path.read_text("utf-8", "replace")

    def signal(self, number: int) -> None:
        self.popen.send_signal(number)

    async def exit(self, within: float) -> int | None:
        """The exit code; None when it still runs after that time."""
        until = time.monotonic() + within
        while self.popen.poll() is None and time.monotonic() < until:
            await asyncio.sleep(0.02)
        return self.popen.poll()

    async def stop(self) -> None:
        """End it, gently first."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
            if await self.exit(1.5) is None:
                self.popen.kill()
        await self.exit(5.0)

    @property
    def rss_mb(self) -> float:
        """Resident memory, MB."""
        pages = int(Path(f"/proc/{self.popen.pid}/statm").read_text("ascii").split()[1])
        return pages * resource.getpagesize() / 1e6

    @property
    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.popen.pid}/fd"))

    @property
    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.popen.pid}/stat").read_text("ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass
class Options:
    """How a process is started, beside its configuration."""

    env: dict[str, str] = field(default_factory=dict)
    before: Callable[[], None] | None = None
    """Runs in the child before the program: resource limits."""
    prefix: tuple[str, ...] = ()
    """Put in front of the command."""


def spawn(command: list[str], folder: Path, options: Options) -> Process:
    """Start a program with its output in a file."""
    log_path = Path(tempfile.mkstemp(prefix="log-", dir=folder)[1])
    env = {key: value for key, value in os.environ.items() if not key.startswith("LANEWISE_")}
    with log_path.open("wb") as log:
        popen = subprocess.Popen(
            [*options.prefix, *command],
            cwd=folder,
            env=env | {"PYTHONUNBUFFERED": "1"} | options.env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=options.before,
        )
    return Process(popen, log_path, command)


@dataclass
class Station:
    """A proxy, the upstreams behind it, and where to reach both."""

    upstream: Upstream
    process: Process
    port: int
    admin: int
    folder: Path
    config: Path
    target: str

    @property
    def log(self) -> str:
        return self.process.log

    async def ask(self, document: Any = None, within: float = 10.0, **how: Any) -> wire.Talk:
        """Send one request and read its answer."""
        return await wire.ask(self.port, wire.request(document, **how), within)

    async def connect(self) -> wire.Client:
        return await wire.Client.connect(self.port)

    async def open(self, document: Any, **how: Any) -> wire.Client:
        """Send a request and leave the rest to the case."""
        client = await self.connect()
        client.send(wire.request(document, **how))
        return client

    async def page(self, path: str) -> wire.Talk:
        """Read a page of the admin listener."""
        return await wire.ask(self.admin, f"GET {path} HTTP/1.1\r\nHost: t\r\n\r\n".encode(), 60.0)

    async def metrics(self) -> dict[str, float]:
        """Every series by its full name with labels."""
        text = (await self.page("/metrics")).answer.body.decode()
        lines = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
        return {name.removeprefix("lanewise_"): float(value) for name, _, value in lines}

    async def total(self, name: str, *having: str) -> float:
        """Sum of the series of that name whose labels contain all those texts."""
        found = await self.metrics()
        return sum(
            value
            for series, value in found.items()
            if series.partition("{")[0] == name and all(text in series for text in having)
        )

    async def outcomes(self) -> dict[str, float]:
        """Requests by outcome."""
        found: dict[str, float] = {}
        for series, value in (await self.metrics()).items():
            match = re.search(r'^requests_total\{.*outcome="(\w+)"', series)
            if match and value:
                found[match[1]] = found.get(match[1], 0) + value
        return found

    async def status(self) -> dict[str, Any]:
        document = (await self.page("/status.json")).answer.document
        return document if isinstance(document, dict) else {}

    async def held(self) -> dict[str, float]:
        """What the scheduler holds now: all must be 0 when nobody is served."""
        status = await self.status()
        backends, lanes = status["backends"], status["lanes"]
        return {
            "waiting": sum(lane["waiting_requests"] for lane in lanes),
            "waiting_tokens": sum(lane["waiting_tokens"] for lane in lanes),
            "waiting_bytes": sum(lane["waiting_bytes"] for lane in lanes),
            "in_flight": sum(backend["in_flight"] for backend in backends),
            "prefill_tokens": sum(backend["prefill_tokens"] for backend in backends),
        }

    async def settled(self, within: float = 5.0) -> dict[str, float]:
        """What the scheduler holds once it holds nothing, or after that time."""
        return await eventually(self.held, lambda held: not any(held.values()), within)

    async def waiting(self, requests: int, within: float = 5.0) -> int:
        """Wait until that many requests are queued; return how many are."""
        held = await eventually(self.held, lambda held: held["waiting"] >= requests, within)
        return int(held["waiting"])


async def eventually(look: Callable[[], Any], enough: Callable[[Any], bool], within: float) -> Any:
    """Look again and again until it is enough, or the time is over; return what was seen last."""
    until = time.monotonic() + within
    while True:
        seen = await look()
        if enough(seen) or time.monotonic() > until:
            return seen
        await asyncio.sleep(0.02)


def free_port() -> int:
    with socket.create_server((wire.HOST, 0)) as sock:
        return int(sock.getsockname()[1])


class StartError(Exception):
    """The proxy did not come up; the text is the end of its log."""


async def _wait_for(process: Process, ready: Callable[[], Any]) -> Any:
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        found = ready()
        if found:
            return found
        if process.popen.poll() is not None:
            break
        await asyncio.sleep(0.03)
    raise StartError(f"exit {process.popen.poll()}: {process.log[-600:]}")


def lanewise(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "proxy", *arguments]


@contextlib.asynccontextmanager
async def start(
    config: dict[str, Any] | None = None,
    script: Script = healthy,
    *,
    options: Options | None = None,
    backends: list[Any] | None = None,
    target: str = "lanewise",
) -> AsyncIterator[Station]:
    """Run a proxy with an upstream of its own behind it.

    Args:
        config: laid over `BASE`.
        script: what the upstream does.
        options: how the process is started.
        backends: what stands in the configuration instead of the one upstream; "" stands for its URL.
        target: `lanewise`, or `naive` for the forwarder that the suite must find wanting.
    """
    options = options or Options()
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        folder = Path(name)
        async with Upstream(script) as upstream:
            path = folder / "lanewise.yaml"
            if target == "naive":
                process, port, admin = await _start_naive(upstream, folder)
            else:
                wanted = [item or upstream.url for item in backends or [""]]
                document = merged(BASE, config or {}) | {"backends": wanted}
                path.write_text(json.dumps(document | {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0"}), "utf-8")
                process, port, admin = await _start_lanewise(path, folder, options)
            try:
                yield Station(upstream, process, port, admin, folder, path, target)
            finally:
                await process.stop()


async def _start_lanewise(path: Path, folder: Path, options: Options) -> tuple[Process, int, int]:
    env = {"PYTHONPATH": os.pathsep.join([str(INJECT), str(ROOT)])} | options.env
    command = lanewise("serve", "--config", str(path))
    process = spawn(command, folder, Options(env, options.before, options.prefix))
    try:
        match = await _wait_for(process, lambda: _LISTENS.search(process.log))
    except StartError:
        await process.stop()
        raise
    return process, int(match[2]), int(match[4])


async def _start_naive(upstream: Upstream, folder: Path) -> tuple[Process, int, int]:
    port = free_port()
    command = [sys.executable, str(ROOT / "tests/bench/proxies/aiohttp_naive.py")]
    process = spawn(command, folder, Options({"UP": upstream.url, "PORT": str(port)}))

    def listens() -> bool:
        with contextlib.suppress(OSError), socket.create_connection((wire.HOST, port), 0.2):
            return True
        return False

    await _wait_for(process, listens)
    return process, port, 0


class Pool:
    """Stations that cases of one configuration share, one case at a time."""

    def __init__(self) -> None:
        self._idle: dict[str, list[Station]] = {}
        self._stack = contextlib.AsyncExitStack()

    @contextlib.asynccontextmanager
    async def borrow(self, config: dict[str, Any] | None = None) -> AsyncIterator[Station]:
        """Lend a station; one whose case failed to observe is not lent again."""
        key = json.dumps(config or {}, sort_keys=True)
        idle = self._idle.setdefault(key, [])
        station = idle.pop() if idle else await self._stack.enter_async_context(start(config))
        station.upstream.script = healthy
        yield station
        idle.append(station)

    async def close(self) -> None:
        """Stop them all."""
        await self._stack.aclose()
        self._idle.clear()
        self._stack = contextlib.AsyncExitStack()


POOL = Pool()


async def trace_rows(station: Station, at_least: int, within: float = 5.0) -> list[dict[str, Any]]:
    """The recorded lines of the requests so far, once there are that many (`recorder.directory` is `trace`)."""

    async def look() -> list[dict[str, Any]]:
        files = sorted((station.folder / "trace").glob("trace-*.jsonl"))
        lines = [line for file in files for line in file.read_text("utf-8").split("\n") if line]
        rows = [json.loads(line) for line in lines]
        return [row for row in rows if "outcome" in row]

    found: list[dict[str, Any]] = await eventually(look, lambda rows: len(rows) >= at_least, within)
    return found
