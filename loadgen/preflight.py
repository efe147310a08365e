"""What is settled before the first request: whether the target may be loaded, what it is, what this machine is."""

import ipaddress
import os
import platform
import re
import resource
import sys
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import numpy.typing as npt

from loadgen.alignment import align
from loadgen.client import Target, tls_of
from loadgen.failure import StopError, UsageError
from loadgen.options import Endpoint, ReplayOptions
from loadgen.prompts import Asking, Calibration, Prompts

ASK_TIMEOUT_S = 10.0
OPEN_FOR_S = 1.0
"""How long a request is taken to hold its connection at least, wall-clock seconds, where open files are counted: a
language model rarely answers faster, and a target that stalls holds far more."""
OTHER_FILES = 32
"""Open files beside the connections: streams, the run folder, libraries, the event loop."""


def guard(target: Target, allow: tuple[str, ...], *, yes_production: bool) -> None:
    """Refuse to load a machine by mistake.

    Raises:
        UsageError: the target is neither loopback nor allowed.
    """
    if yes_production or target.host == "localhost" or _loopback(target.host):
        return
    if target.host in allow or f"{target.host}:{target.port}" in allow:
        return
    raise UsageError(
        f"--target {target.url}: {target.host} is not this machine, and a replay can overload it; "
        f"name it with --allow-target {target.host}, or say --yes-production"
    )


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def api_key(file: Path | None) -> str | None:
    """Return the API key from the file, else from LANEWISE_API_KEY.

    Raises:
        UsageError: the file cannot be read, or the key is not one printable word.
    """
    if file is None:
        key = os.environ.get("LANEWISE_API_KEY", "").strip()
    else:
        try:
            key = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--api-key-file {file}: cannot be read: {error}") from None
    if key and (not key.isascii() or not key.isprintable() or " " in key):
        raise UsageError("the API key is not one printable word")
    return key or None


def raise_file_limit() -> int:
    """Raise the limit on open files to what this user may have, and return it. One request needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def check_file_limit(limit: int, due_ns: npt.NDArray[np.int64], speed: float) -> None:
    """Refuse a plan that this process has not enough open files for, before it distorts its own result.

    Every request holds a connection, and a connection is an open file. What is certain to be too many is refused: the
    requests that come due within `OPEN_FOR_S`, with `OTHER_FILES` beside them.

    Args:
        limit: most open files of this process.
        due_ns: due times of the plan, sorted.
        speed: how much faster than the plan the wall clock goes.

    Raises:
        UsageError: the limit is below that number, which it names.
    """
    window = round(OPEN_FOR_S * speed * 1e9)
    first = np.searchsorted(due_ns, due_ns - window, side="right")
    at_once = int((np.arange(len(due_ns)) - first).max()) + 1
    if limit != resource.RLIM_INFINITY and limit < at_once + OTHER_FILES:
        raise UsageError(
            f"the limit on open files is {limit} and this plan needs at least {at_once + OTHER_FILES}: {at_once} "
            f"requests come due within {OPEN_FOR_S:g} s; raise the hard limit (ulimit -Hn {2 * at_once + OTHER_FILES}) "
            "or send fewer with --rate or --scale"
        )


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """What the target said about itself; None where it did not answer."""

    model: str
    version: str | None
    cache_config: dict[str, str] | None
    """Labels of vllm:cache_config_info."""
    calibration: Calibration


class Asker:
    """Asks the target the few questions around a run, on a session of its own."""

    def __init__(self, target: Target, key: str | None, metrics_url: str | None, *, insecure: bool = False) -> None:
        self._url = target.url
        self._tls = tls_of(target, insecure=insecure)
        self._metrics_url = metrics_url or f"{target.url}/metrics"
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    async def facts(self, options: ReplayOptions) -> TargetFacts:
        """Ask for model, version, cache configuration, and how text becomes tokens.

        Raises:
            StopError: nothing answers there, or no model can be found out.
        """
        async with self._session() as session:
            models = await self._models(session)
            model = options.model or (models[0] if models else None)
            if model is None:
                raise StopError(f"{self._url}/v1/models lists no model; name one with --model")
            engine = await _json(session, f"{self._url}/version")
            found = engine.get("version") if isinstance(engine, dict) else None
            calibration = Calibration()
            if options.endpoint is Endpoint.CHAT:
                calibration = await self._calibrate(session, model)
            metrics = await _text(session, self._metrics_url)
            return TargetFacts(model, found if isinstance(found, str) else None, cache_config(metrics), calibration)

    async def prefix_cache(self) -> dict[str, float] | None:
        """Return the engine's prefix cache counters (tokens asked, tokens hit), or None."""
        async with self._session() as session:
            return prefix_cache(await _text(session, self._metrics_url))

    def _session(self) -> aiohttp.ClientSession:
        timeout = aiohttp.ClientTimeout(total=ASK_TIMEOUT_S)
        connector = aiohttp.TCPConnector(ssl=self._tls or True)
        return aiohttp.ClientSession(timeout=timeout, headers=self._headers, connector=connector)

    async def _models(self, session: aiohttp.ClientSession) -> list[str]:
        try:
            document = await _json(session, f"{self._url}/v1/models", quiet=False)
        except aiohttp.ClientConnectorCertificateError as error:
            raise StopError(
                f"{self._url}: its certificate is not trusted: {_distrust(error)}; have the system trust who signed it "
                "(SSL_CERT_FILE names a bundle), or say --insecure"
            ) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise StopError(f"{self._url} does not answer: {_why(error)}; is it running?") from None
        data = document.get("data") if isinstance(document, dict) else None
        return [str(entry["id"]) for entry in data or () if isinstance(entry, dict) and "id" in entry]

    async def _calibrate(self, session: aiohttp.ClientSession, model: str) -> Calibration:
        def text(asked: Calibration, words: int) -> str:
            return Prompts(Asking(Endpoint.CHAT, model, "calibration", asked)).sample(words)

        return await align(partial(self._tokenize, session, model), text)

    async def _tokenize(self, session: aiohttp.ClientSession, model: str, text: str) -> int | None:
        body = {"model": model, "messages": [{"role": "user", "content": text}]}
        try:
            async with session.post(f"{self._url}/tokenize", json=body) as answer:
                document = await answer.json() if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return None
        count = document.get("count") if isinstance(document, dict) else None
        return count if isinstance(count, int) else None


def _why(error: Exception) -> str:
    """Say in few words why a connection failed."""
    code = error.os_error.errno if isinstance(error, aiohttp.ClientConnectorError) else None
    if code is not None and code > 0:
        return os.strerror(code).lower()
    return str(error) or type(error).__name__


def _distrust(error: aiohttp.ClientConnectorCertificateError) -> str:
    cause = error.certificate_error
    return str(getattr(cause, "verify_message", "") or cause)


async def _json(session: aiohttp.ClientSession, url: str, *, quiet: bool = True) -> Any:
    try:
        async with session.get(url) as answer:
            return await answer.json(content_type=None) if answer.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        if quiet or not isinstance(
            error, aiohttp.ClientError | OSError
        ):  # an error of certificates is a ValueError too
            return None
        raise


async def _text(session: aiohttp.ClientSession, url: str) -> str:
    try:
        async with session.get(url) as answer:
            return await answer.text() if answer.status == 200 else ""
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return ""


_SAMPLE = re.compile(r"^vllm:(?:gpu_)?prefix_cache_(queries|hits)(?:_total)?(?:\{[^}]*\})? (\S+)", re.MULTILINE)
_CACHE_CONFIG = re.compile(r"^vllm:cache_config_info\{(.*)\} ", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def prefix_cache(metrics: str) -> dict[str, float] | None:
    """Sum the prefix cache counters over all engines of a metrics page; None when it has none."""
    found: dict[str, float] = {}
    for name, value in _SAMPLE.findall(metrics):
        found[name] = found.get(name, 0.0) + float(value)
    return found or None


def cache_config(metrics: str) -> dict[str, str] | None:
    """Return the labels of vllm:cache_config_info; None when the page has none."""
    match = _CACHE_CONFIG.search(metrics)
    return dict(_LABEL.findall(match.group(1))) if match else None


def host_facts() -> dict[str, Any]:
    """Return what the load generator runs on."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _cpu_model(),
        "system": platform.system(),
        "machine": platform.machine(),
        "kernel": platform.release(),
    }


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "unknown"
    match = re.search(r"^(?:model name|CPU part|Hardware)\s*:\s*(.+)$", text, re.MULTILINE)
    return match.group(1).strip() if match else "unknown"


def versions() -> dict[str, str]:
    """Return the versions that a run depends on."""
    found = {"python": sys.version.split()[0]}
    for name in ("lanewise", "uvloop", "httptools", "orjson", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found
