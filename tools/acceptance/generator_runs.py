"""Servers and clients of `tools.acceptance.generator`, each a process on its own core."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from loadgen.children import answers, free_address
from loadgen.failure import StopError
from loadgen.journal import RunFolder

CLIENTS = ("lanewise-load", "wire", "bare")
EVENT_MOCK = Path(__file__).parents[2] / "tests/bench/src/mock.c"
READY_S = 30.0
_MB = 1024
"""KB."""

Times = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Taken:
    """What one client did in one run. Times are seconds, stamps those of `perf_counter`."""

    sent: Times
    first: Times
    elapsed_s: float
    """From the first send to the end of the last answer."""
    chunks: int
    cpu_s: float
    """While it sent."""
    rss_mb: float
    certified_s: float | None = None
    """What the self-certificate said of the error of the mean."""

    @property
    def ttft(self) -> Times:
        """TTFT from the send."""
        return self.first - self.sent


@dataclass(frozen=True, slots=True)
class Load:
    """What a client is asked to do."""

    requests: int
    tokens: int
    streams: int | None = None
    """Closed loop."""
    rate: float | None = None
    """Open loop, evenly spaced."""
    certify: bool = False


def _cores() -> tuple[set[int], set[int]]:
    """Return where clients and where servers run: on different cores where there are two."""
    cores = sorted(os.sched_getaffinity(0))
    return {cores[0]}, {cores[-1]}


@contextmanager
def _pinned(cores: set[int]) -> Iterator[None]:
    """Start children on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def _serving(command: Sequence[str], url: Callable[["subprocess.Popen[str]"], str]) -> Iterator[str]:
    """Run a server on its core; `url` says where it is once it was started."""
    with _pinned(_cores()[1]):
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        where = url(server)
        end = time.monotonic() + READY_S
        while not answers(f"{where}/v1/models"):
            if server.poll() is not None or time.monotonic() > end:
                raise StopError(f"{' '.join(command)}: does not answer at {where}")
            time.sleep(0.05)
        yield where
    finally:
        server.kill()
        server.wait()


@contextmanager
def mock(file: Path, ttft_s: float, gap_s: float, tokens: int) -> Iterator[str]:
    """Run the mock and give its URL."""
    port = free_address().rpartition(":")[2]
    options = ["--port", port, "--ttft", str(ttft_s), "--itl", str(gap_s), "--tokens", str(tokens)]
    with _serving([sys.executable, str(file), *options], lambda _: f"http://127.0.0.1:{port}") as url:
        yield url


@contextmanager
def prepared(tokens: int) -> Iterator[str]:
    """Run the server whose answers are prepared."""

    def url(server: "subprocess.Popen[str]") -> str:
        assert server.stdout is not None
        return f"http://127.0.0.1:{server.stdout.readline().strip()}"

    command = [sys.executable, "-m", "tools.acceptance.generator_answers", str(tokens)]
    with _serving(command, url) as where:
        yield where


@contextmanager
def event_by_event(folder: Path) -> Iterator[str]:
    """Compile and run the mock of `make bench`, which writes each event by itself."""
    program = folder / "mock"
    subprocess.run(["cc", "-O2", "-o", str(program), str(EVENT_MOCK)], check=True)
    port = free_address().rpartition(":")[2]
    with _serving([str(program), port], lambda _: f"http://127.0.0.1:{port}") as url:
        yield url


def _run(command: Sequence[str], log: Path) -> tuple[str, float]:
    """Run a client on its core; return what it printed and the largest memory it had, MB.

    Raises:
        StopError: it failed.
    """
    with _pinned(_cores()[0]), log.open("w+") as said, log.with_suffix(".err").open("w+") as errors:
        client = subprocess.Popen(command, stdout=said, stderr=errors)
        _, status, usage = os.wait4(client.pid, 0)
        client.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        errors.seek(0)
        if client.returncode:
            raise StopError(f"{' '.join(command)}: ended with code {client.returncode}: {errors.read()[-2000:]}")
        return said.read(), usage.ru_maxrss / _MB


def _trace(file: Path, load: Load) -> None:
    """Write a trace of equal requests, evenly spaced."""
    gap = 1 / (load.rate or 1000.0)
    with file.open("w") as out:
        out.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
        for number in range(load.requests):
            minutes, seconds = divmod(number * gap, 60)
            out.write(f"2023-11-16 18:{int(minutes):02d}:{seconds:010.7f},64,{load.tokens}\n")


def lanewise_load(url: str, load: Load, folder: Path) -> Taken:
    """Replay with the shipped command."""
    trace, out = folder / "trace.csv", folder / "run"
    _trace(trace, load)
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "loadgen", "replay", str(trace), "--target", url, "--out", str(out)]
    command += ["--engine-metrics", "none", "--json"]
    command += ["--closed-loop", str(load.streams)] if load.streams else []
    command += [] if load.certify else ["--no-certify"]
    _, rss_mb = _run(command, folder / "replay.log")
    run = RunFolder(out)
    manifest = run.manifest()
    results = [one for one in run.results() if one.sent is not None and one.first is not None and one.end is not None]
    if len(results) != load.requests:
        raise StopError(f"{load.requests - len(results)} of {load.requests} requests brought no token: {out}")
    start_s = manifest["start_ns"] / 1e9
    sent = np.array([one.sent for one in results], dtype=np.float64)
    return Taken(
        sent=sent + start_s,
        first=np.array([one.first for one in results], dtype=np.float64) + start_s,
        elapsed_s=max(one.end or 0.0 for one in results) - float(sent.min()),
        chunks=sum(one.chunks for one in results),
        cpu_s=manifest["cpu_s"],
        rss_mb=rss_mb,
        certified_s=manifest["certificate"].get("ttft_error_mean_s"),
    )


def plain(kind: str, url: str, load: Load, folder: Path) -> Taken:
    """Run one of the plain clients."""
    command = [sys.executable, "-m", "tools.acceptance.generator_clients", kind, url]
    command += ["--requests", str(load.requests), "--tokens", str(load.tokens)]
    command += ["--streams", str(load.streams)] if load.streams else ["--rate", str(load.rate)]
    said, rss_mb = _run(command, folder / f"{kind}.log")
    seen = json.loads(said)
    sent = np.array(seen["sent_ns"]) / 1e9
    return Taken(
        sent=sent,
        first=np.array(seen["first_ns"]) / 1e9,
        elapsed_s=seen["ended_ns"] / 1e9 - float(sent.min()),
        chunks=seen["chunks"],
        cpu_s=seen["cpu_s"],
        rss_mb=rss_mb,
    )


def taken(client: str, url: str, load: Load, folder: Path) -> Taken:
    """Run any of the clients."""
    return lanewise_load(url, load, folder) if client == CLIENTS[0] else plain(client, url, load, folder)
