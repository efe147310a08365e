"""Asks engines and proxy, once, with connections of its own; judges nothing."""

import asyncio
import json
import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from proxy.backends.probing import tls_cause
from proxy.doctor.facts import EngineFacts, ProxyFacts
from proxy.settings import Address, Backend, Settings
from proxy.upstream.access import Access, problem_of
from proxy.wire.startflags import StartFlags, parse_flags, parse_server_info
from proxy.wire.vllm import EngineMetrics, parse_metrics

PATIENCE_S = 5.0
"""For one answer."""
LARGEST_ANSWER = 16 * 2**20
BEYOND = 1.1
"""How much longer than the pool keeps a connection an idle one is watched."""


class GatherError(Exception):
    """Something did not answer as it should; the text says what."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer."""

    status: int
    text: str

    def document(self) -> Any:
        """Return its JSON.

        Raises:
            GatherError: it is none, or the status is not 200.
        """
        if self.status != 200:
            raise GatherError(f"answered {self.status}")
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            raise GatherError("did not answer in JSON") from None


class Asker:
    """Asks over HTTP, with a time limit and a size limit for each answer. An async context manager."""

    def __init__(self, admin_key: str | None = None) -> None:
        self._session: aiohttp.ClientSession
        self._access: dict[str, Access] = {}
        self.admin_key = admin_key
        """Key of the proxy's admin listener."""

    def let_in(self, settings: Settings, access: Mapping[str, Access]) -> None:
        """Take how to come in at the engines of a configuration, by name."""
        self._access = {one.url: access[one.label] for one in settings.backends if one.label in access}

    def tls(self, url: str) -> ssl.SSLContext | None:
        """Return what a connection to an engine is made with, by its base URL; None: it is not encrypted."""
        if not url.startswith("https:"):
            return None
        return self._access.get(url, Access()).context or ssl.create_default_context()

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=PATIENCE_S),
            trust_env=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def get(self, url: str, key: str | None = None) -> Answer:
        """Fetch a URL.

        Args:
            url: the URL.
            key: API key to send with it.

        Raises:
            GatherError: no answer; the text says why.
        """
        access = self._access.get("/".join(url.split("/", 3)[:3]), Access())
        key, tls = access.key or key, access.context or True
        headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {})
        try:
            async with self._session.get(url, headers=headers, allow_redirects=False, ssl=tls) as answer:
                parts, size = [], 0
                async for part in answer.content.iter_any():
                    parts.append(part)
                    size += len(part)
                    if size > LARGEST_ANSWER:
                        raise GatherError(f"the answer is larger than {LARGEST_ANSWER // 2**20} MiB")
                return Answer(answer.status, b"".join(parts).decode("utf-8", "replace"))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise GatherError(_why(error)) from None


async def ask_engines(asker: Asker, settings: Settings, apart_s: float) -> tuple[EngineFacts, ...]:
    """Ask every engine, all at the same time; each is looked at twice.

    Args:
        asker: asks.
        settings: names the engines, and how long the pool keeps connections.
        apart_s: seconds between the two looks.
    """
    return tuple(await asyncio.gather(*(_ask_engine(asker, settings, one, apart_s) for one in settings.backends)))


async def _ask_engine(asker: Asker, settings: Settings, backend: Backend, apart_s: float) -> EngineFacts:
    name, url = backend.label, backend.url
    error = await _dead(asker, url)
    if error is not None:
        return EngineFacts(name, url, error=error)
    wait_s = settings.timeouts.idle_connection * BEYOND
    key = settings.probes.api_key.get_secret_value() if settings.probes.api_key is not None else None
    looks, (closed_s, watched), version, models, info = await asyncio.gather(
        _look_twice(asker, url, apart_s),
        watch_idle(url, wait_s, asker.tls(url)),
        _document(asker, url + "/version"),
        _document(asker, url + "/v1/models", key),
        _document(asker, url + "/server_info?config_format=json"),
    )
    told, written = parse_server_info(info), parse_flags(backend.engine_flags)
    return EngineFacts(
        name=name,
        url=url,
        version=_version(version),
        models=_models(models),
        first=looks[0],
        second=looks[1],
        apart_s=apart_s,
        flags=told.over(written),
        flags_from=_source(told, written),
        closed_after_s=closed_s,
        waited_s=wait_s if watched else None,
    )


async def _dead(asker: Asker, url: str) -> str | None:
    """Return why nothing can be asked there; None when it lives."""
    try:
        alive = await asker.get(url + "/health")
        if alive.status in {404, 405}:
            alive = await asker.get(url + "/v1/models")
    except GatherError as error:
        return str(error)
    return f"/health answered {alive.status}" if alive.status >= 500 else None


async def ask_proxy(asker: Asker, address: Address) -> ProxyFacts | None:
    """Ask the admin listener of a proxy; None: nobody is there, or it is no lanewise."""
    base = f"http://{reachable(address)}"
    try:
        status = (await asker.get(base + "/status.json", asker.admin_key)).document()
        metrics = await asker.get(base + "/metrics", asker.admin_key)
    except GatherError:
        return None
    if not isinstance(status, dict) or "lanes" not in status:
        return None
    return ProxyFacts(str(address), status, samples(metrics.text) if metrics.status == 200 else {})


async def ask_settings(asker: Asker, address: Address) -> tuple[Settings, str]:
    """Return the settings that a running proxy has in force, secrets left out, and the hash they have there.

    Raises:
        GatherError: nobody is there, or it is another version that does not tell them.
    """
    url = f"http://{reachable(address)}/config.json"
    try:
        document = (await asker.get(url, asker.admin_key)).document()
        return Settings.model_validate(document["settings"]), str(document["config"])
    except (GatherError, KeyError, TypeError, ValueError) as error:
        why = str(error) if isinstance(error, GatherError) else "its configuration is not understood by this version"
        raise GatherError(f"the proxy with its admin listener at {address} cannot be asked: {why}") from None


def samples(text: str) -> dict[str, list[tuple[Mapping[str, str], float]]]:
    """Read Prometheus text; what cannot be read counts as not there."""
    found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
    except ValueError:
        return {}
    return found


def reachable(address: Address) -> Address:
    """Return where a listener can be reached from this machine: one that is bound to everything, on loopback."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)  # noqa: S104 - compared, not bound
    return Address(host, address.port)


async def watch_idle(url: str, wait_s: float, tls: ssl.SSLContext | None = None) -> tuple[float | None, bool]:
    """Make one request on a connection of its own, and watch how soon the engine closes it afterwards.

    Args:
        url: base URL of the engine.
        wait_s: how long to watch.
        tls: for an encrypted connection; None: it is not.

    Returns:
        After how many seconds it was closed (None: not within `wait_s`), and whether it could be watched at all.
    """
    parts = urlsplit(url)
    port = parts.port or (443 if tls else 80)
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=tls)
            writer.write(f"GET /health HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode("ascii"))
            if not await reader.read(65536):
                return 0.0, True
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(wait_s):
                while await reader.read(65536):
                    began = loop.time()
        except TimeoutError:
            return None, True
        return loop.time() - began, True
    except (OSError, TimeoutError, UnicodeError):
        return None, False
    finally:
        if writer is not None:
            writer.close()


async def _look_twice(asker: Asker, url: str, apart_s: float) -> tuple[EngineMetrics | None, EngineMetrics | None]:
    first = await _look(asker, url)
    await asyncio.sleep(apart_s)
    return first, await _look(asker, url)


async def _look(asker: Asker, url: str) -> EngineMetrics | None:
    try:
        answer = await asker.get(url + "/metrics")
    except GatherError:
        return None
    return parse_metrics(answer.text) if answer.status == 200 else None


async def _document(asker: Asker, url: str, key: str | None = None) -> Any:
    try:
        return (await asker.get(url, key)).document()
    except GatherError:
        return None


def _version(document: Any) -> str | None:
    told = document.get("version") if isinstance(document, Mapping) else None
    return told[:64] if isinstance(told, str) else None


def _models(document: Any) -> tuple[tuple[str, int | None], ...] | None:
    listed = document.get("data") if isinstance(document, Mapping) else None
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        return None
    return tuple(
        (one["id"], _length(one.get("max_model_len")))
        for one in listed
        if isinstance(one, Mapping) and isinstance(one.get("id"), str)
    )


def _length(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _source(told: StartFlags, written: StartFlags) -> str:
    sources = [name for flags, name in ((told, "its /server_info"), (written, "engine_flags")) if flags.known]
    return " and ".join(sources)


def _why(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if (cause := tls_cause(error)) is not None:
        return f"cannot connect: {problem_of(cause)}"
    if isinstance(error, aiohttp.ClientConnectorError) and error.errno:
        return f"cannot connect: {os.strerror(error.errno)}"
    return str(error) or type(error).__name__
