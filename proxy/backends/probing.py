"""Asking an engine whether it is there, and reading small documents from it."""

import os
import ssl
from collections.abc import Mapping

import aiohttp
from aiohttp.abc import AbstractResolver

from proxy.backends.describing import ProbeError
from proxy.upstream.access import Access, problem_of

_LARGEST_ANSWER = 8 * 2**20
_OPEN = Access()


class Prober:
    """Sends the small requests of our own that watch the engines.

    Every one has a connection of its own: a warm one would go on to an address that the name of the backend no longer
    has, and would not show that the engine takes no new ones.

    Args:
        resolver: finds the addresses of names.
    """

    def __init__(self, resolver: AbstractResolver) -> None:
        self.access: Mapping[str, Access] = {}
        """How to come in at each engine, by base URL; those that ask for nothing are not in it."""
        self._resolver = resolver
        self._session: aiohttp.ClientSession | None = None

    async def alive(self, url: str) -> None:
        """Return when an engine says that it is well.

        Raises:
            ProbeError: it says otherwise.
            OSError: it cannot be reached (so are aiohttp's own errors of this kind).
            aiohttp.ClientError: its answer is no answer.
        """
        status, _ = await self.get(url, "/health")
        if status in {404, 405}:
            status, _ = await self.get(url, "/v1/models")
            if status < 500:
                return
        if status != 200:
            raise ProbeError(f"/health answered {status}")

    async def get(self, url: str, path: str, key: str | None = None) -> tuple[int, bytes]:
        """Return status and body of a document.

        Args:
            url: base URL of the engine.
            path: of the document.
            key: goes with it as a bearer token, to an engine that has no key of its own.

        Raises:
            ProbeError: it is too large.
            OSError: the engine cannot be reached.
            aiohttp.ClientError: its answer is no answer.
        """
        headers, access = {"Accept-Encoding": "identity"}, self.access.get(url, _OPEN)
        key = access.key or key
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        tls = True if access.context is None else access.context
        async with self._client().get(url + path, headers=headers, allow_redirects=False, ssl=tls) as answer:
            return answer.status, await _read_at_most(answer.content)

    async def close(self) -> None:
        """Close what is open."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0,
                    force_close=True,
                    enable_cleanup_closed=False,
                    use_dns_cache=False,
                    resolver=self._resolver,
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),  # each use has a time limit of its own
                trust_env=False,
            )
        return self._session


def reason(error: BaseException) -> str:
    """Say for people why a probe failed."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if (cause := tls_cause(error)) is not None:
        return f"cannot connect: {problem_of(cause)}"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot connect: {os.strerror(error.errno) if error.errno else error}"
    return str(error) or type(error).__name__


def tls_cause(error: BaseException) -> ssl.SSLError | None:
    """Return what was wrong with a handshake, where one of aiohttp's errors tells of that."""
    causes = (getattr(error, "certificate_error", None), getattr(error, "os_error", None), error)
    return next((cause for cause in causes if isinstance(cause, ssl.SSLError)), None)


async def _read_at_most(content: aiohttp.StreamReader) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in content.iter_any():
        size += len(part)
        if size > _LARGEST_ANSWER:
            raise ProbeError(f"the answer is larger than {_LARGEST_ANSWER // 2**20} MiB")
        parts.append(part)
    return b"".join(parts)
