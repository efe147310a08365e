"""A real vLLM on the CPU, started and stopped: what the suite needs of the machine, and where it finds the engine."""

import asyncio
import contextlib
import ctypes
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from tests.faults import wire
from tests.faults.station import ROOT, free_port

VENV, MODEL = "LANEWISE_ENGINE_VENV", "LANEWISE_ENGINE_MODEL"
"""Environment variables: an environment that has vLLM for the CPU, and a folder with a model; made when not set."""
HOME = ROOT / "runs/engine"
NAME = "tiny"
"""What the model is served as."""
CONTEXT = 16_384
KV_BLOCK = 128
"""Tokens of one KV block of vLLM on the CPU."""
START_S = 600.0
STOP_S = 20.0
_PR_SET_PDEATHSIG = 1
_SAMPLE = re.compile(r"^(\w[\w:]*)(\{[^}]*\})? (\S+)$", re.MULTILINE)
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
}


class UnfitError(Exception):
    """This machine or its set-up cannot run the suite; the text says why and what to do."""


class EngineError(Exception):
    """The engine did not start; the text is the end of its log."""


@dataclass(frozen=True)
class Installation:
    """Where vLLM and the model are, and which kind of numbers this CPU is fast with."""

    python: Path
    model: Path
    dtype: str


def installation() -> Installation:
    """Find vLLM and the model; make what the environment does not name.

    Raises:
        UnfitError: another platform, or an environment variable that leads nowhere.
        subprocess.CalledProcessError: the installation failed; its output says why.
    """
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise UnfitError(f"the real-engine suite needs Linux on x86-64; this is {sys.platform} on {platform.machine()}")
    wide = "avx512f" in Path("/proc/cpuinfo").read_text("ascii", "replace")
    python = Path(os.environ.get(VENV) or HOME / "venv") / "bin/python"
    if not python.exists():
        if os.environ.get(VENV):
            raise UnfitError(f"{VENV} names {python.parent.parent}, which has no bin/python")
        done = subprocess.run([str(ROOT / "tools/engine/install.sh"), str(HOME / "venv")], check=False)
        if done.returncode == 2:
            raise UnfitError("vLLM for the CPU cannot be installed here (see above)")
        done.check_returncode()
    size = "wide" if wide else "narrow"
    model = Path(os.environ.get(MODEL) or HOME / f"model-{size}")
    if not (model / "config.json").exists():
        if os.environ.get(MODEL):
            raise UnfitError(f"{MODEL} names {model}, which has no config.json")
        maker = str(ROOT / "tools/engine/make_model.py")
        subprocess.run([str(python), maker, str(model), "--size", size], check=True)
    return Installation(python, model, "bfloat16" if wide else "float32")


@dataclass
class Engine:
    """A running vLLM."""

    popen: "subprocess.Popen[bytes]"
    port: int
    log_path: Path

    @property
    def url(self) -> str:
        return f"http://{wire.HOST}:{self.port}"

    @property
    def log(self) -> str:
        return self.log_path.read_text("utf-8", "replace")

    async def metrics(self) -> dict[str, float]:
        """Every series, by its name with labels."""
        page = await wire.ask(self.port, b"GET /metrics HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n", 30.0)
        found = _SAMPLE.findall(page.answer.body.decode())
        return {name + labels: float(value) for name, labels, value in found}

    async def total(self, name: str, having: str = "") -> float:
        """Sum of a family over its series whose labels contain that text."""
        found = await self.metrics()
        return sum(value for key, value in found.items() if key.partition("{")[0] == name and having in key)

    async def computed_tokens(self) -> float:
        """Prompt tokens that were computed so far, not taken from the prefix cache."""
        return await self.total("vllm:prompt_tokens_by_source_total", 'source="local_compute"')

    async def idle(self, within: float) -> float:
        """Wait until nothing runs or waits; return the seconds that took.

        Raises:
            AssertionError: something still runs after that time.
        """
        began = time.monotonic()
        while True:
            metrics = await self.metrics()
            busy = sum(
                value for key, value in metrics.items() if re.match(r"vllm:num_requests_(running|waiting)\{", key)
            )
            if not busy:
                return time.monotonic() - began
            assert time.monotonic() - began < within, f"{busy} requests are still in the engine after {within} s"
            await asyncio.sleep(0.01)

    def core_pid(self) -> int:
        """The process that computes, apart from the one that speaks HTTP.

        Raises:
            LookupError: it is not there.
        """
        for pid in _descendants(self.popen.pid):
            with contextlib.suppress(OSError):
                if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
        raise LookupError("the engine has no EngineCore process")

    def kill_core(self) -> None:
        """End the computing process at once, as a crash does."""
        os.kill(self.core_pid(), signal.SIGKILL)

    def kill(self) -> None:
        """End all its processes at once, as a machine that goes does."""
        os.killpg(self.popen.pid, signal.SIGKILL)

    async def stop(self) -> None:
        """End it and every process of its own."""
        started = [self.popen.pid, *_descendants(self.popen.pid)]
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGINT)
        until = time.monotonic() + STOP_S
        while self.popen.poll() is None and time.monotonic() < until:  # noqa: ASYNC110 - a process sets no event
            await asyncio.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        for pid in started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.popen.wait()


def _descendants(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text("ascii").split():
                found += [int(child), *_descendants(int(child))]
    return found


@contextlib.asynccontextmanager
async def serving(installed: Installation, *flags: str) -> AsyncIterator[Engine]:
    """Run `vllm serve` with these flags beside the usual ones.

    Args:
        installed: what to run.
        flags: laid over 32 sequences and prompt token details.

    Raises:
        EngineError: it ended, or did not answer within `START_S`.
    """
    with tempfile.TemporaryDirectory(prefix="engine-") as folder:
        engine = _spawn(installed, Path(folder), flags)
        try:
            await _ready(engine)
            yield engine
        finally:
            await engine.stop()


def _spawn(installed: Installation, folder: Path, flags: tuple[str, ...]) -> Engine:
    port = free_port()
    command = [
        *(str(installed.python), "-m", "vllm.entrypoints.cli.main", "serve", str(installed.model)),
        *("--served-model-name", NAME, "--host", wire.HOST, "--port", str(port), "--dtype", installed.dtype),
        *("--max-model-len", str(CONTEXT), "--max-num-seqs", "32", "--enforce-eager"),
        *("--enable-prompt-tokens-details", *flags),
    ]
    # `auto` computes on all cores but one, so that prefill leaves one for HTTP and for the clients.
    own = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "auto", "VLLM_SERVER_DEV_MODE": "1"}
    log_path = folder / "vllm.log"
    with log_path.open("wb") as log:
        popen = subprocess.Popen(
            command,
            cwd=folder,
            env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | _OFFLINE | own,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_us,  # noqa: PLW1509 - the runner has one thread
        )
    return Engine(popen, port, log_path)


def _end_with_us() -> None:
    """Let the kernel interrupt the engine when this process is gone, however it went."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)


async def _ready(engine: Engine) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until and engine.popen.poll() is None:
        with contextlib.suppress(OSError, TimeoutError):
            page = await wire.ask(engine.port, b"GET /health HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n", 2.0)
            if page.answer.status == 200:
                return
        await asyncio.sleep(0.2)
    raise EngineError(f"exit {engine.popen.poll()}: {engine.log[-2000:]}")
