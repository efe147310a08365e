"""Connections to one backend, kept warm: last in, first out, without a cap. Lanes limit, not the pool."""

import asyncio
import os
import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

from proxy.upstream.access import Access, problem_of
from proxy.upstream.connection import Connection
from proxy.upstream.names import Names


class ConnectError(OSError):
    """No connection to a backend."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a backend listens."""

    host: str
    port: int
    tls: bool = False

    @property
    def authority(self) -> str:
        """Return the value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = 443 if self.tls else 80
        return host if self.port == default else f"{host}:{self.port}"

    @classmethod
    def of_url(cls, url: str) -> "Origin":
        """Read `http://HOST:PORT` or `https://HOST:PORT`.

        Raises:
            ValueError: another scheme, or no host.
        """
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"{url!r} is no http URL of a backend")
        tls = parts.scheme == "https"
        return cls(parts.hostname, parts.port or (443 if tls else 80), tls)


class Pool:
    """Warm connections to one backend.

    The connection used last is taken first, so that under low load the others grow old and are closed together.

    Args:
        address: where the backend listens.
        connect_timeout_s: seconds for a connection to be made.
        idle_s: seconds that an unused connection is kept. Below the engine's own keep-alive time (uvicorn: 5 s).
        names: knows where its name leads.
    """

    def __init__(
        self, address: Origin, *, connect_timeout_s: float = 2.0, idle_s: float = 4.0, names: Names | None = None
    ) -> None:
        self.address = address
        self.authority = address.authority
        self._connect_timeout_s = connect_timeout_s
        self._idle_s = idle_s
        self._idle: dict[Connection, None] = {}
        """Oldest first. A dict, because a connection that the engine closes leaves from the middle."""
        self._sweep: asyncio.TimerHandle | None = None
        self._tls: ssl.SSLContext | None = None
        self.key: str | None = None
        """API key that goes with every request; None: what the client sent."""
        self._closed = False
        self._names = names or Names()
        self._names.watch(address.host, self._moved)
        self._valid: frozenset[str] | None = None
        """The addresses that count since the name moved; None: it has not."""
        self._new = partial(Connection, self._give, self._forget)
        self.opened = 0
        """Connections made so far."""

    def __repr__(self) -> str:
        return f"<Pool {self.address.host}:{self.address.port}, {len(self._idle)} idle, {self.opened} opened>"

    @property
    def idle(self) -> int:
        """Connections that wait for work."""
        return len(self._idle)

    @property
    def closed(self) -> bool:
        """Whether it keeps nothing any more."""
        return self._closed

    def configure(self, *, connect_timeout_s: float, idle_s: float) -> None:
        """Take new times, for connections made or looked at from now on."""
        self._connect_timeout_s = connect_timeout_s
        self._idle_s = idle_s

    def let_in(self, access: Access) -> None:
        """Take another key, and what connections made from now on have to be shown."""
        self.key = access.key
        if access.context is not None:
            self._tls = access.context

    def take(self) -> Connection | None:
        """Return a warm connection, the one used last, or None."""
        limit = time.monotonic() - self._idle_s
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.closed:
                continue
            if connection.idle_since > limit:
                return connection
            connection.abort()
        return None

    async def connect(self) -> Connection:
        """Open a new connection.

        Raises:
            ConnectError: refused, unreachable, unknown host, or not there within the connect timeout.
        """
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                connection = await self._connect()
        except TimeoutError:
            self._names.look_soon(self.address.host)
            raise ConnectError(f"no connection within {self._connect_timeout_s:g} s") from None
        except OSError as error:
            raise ConnectError(f"cannot connect: {_reason(error)}") from None
        self.opened += 1
        return connection

    async def _connect(self) -> Connection:
        """Connect to where the name leads; when nobody is there, look whether it leads elsewhere now."""
        host = self.address.host
        addresses = await self._names.addresses(host)
        try:
            return await self._connect_to(addresses)
        except OSError:
            found = await self._names.look_again(host)
            if found == addresses:
                raise
            return await self._connect_to(found)

    async def _connect_to(self, addresses: Sequence[str]) -> Connection:
        """Connect to the first of some addresses where somebody is."""
        loop = asyncio.get_running_loop()
        if self.address.tls and self._tls is None:
            self._tls = ssl.create_default_context()
        name = self.address.host if self._tls else None
        for nth, address in enumerate(addresses, 1):
            try:
                _, connection = await loop.create_connection(
                    self._new,
                    address,
                    self.address.port,
                    ssl=self._tls,
                    server_hostname=name,
                )
            except OSError:
                if nth == len(addresses):
                    raise
                continue
            connection.address = address
            return connection
        raise OSError("the name has no address")

    def close(self) -> None:
        """Close what is idle now and whatever becomes idle later."""
        self._closed = True
        self._names.unwatch(self.address.host, self._moved)
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        while self._idle:
            self._idle.popitem()[0].abort()

    def _give(self, connection: Connection) -> None:
        """Take a connection back that has delivered its answer."""
        if self._closed or (self._valid is not None and connection.address not in self._valid):
            connection.abort()
            return
        connection.idle_since = time.monotonic()
        self._idle[connection] = None
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(self._idle_s, self._close_old)

    def _forget(self, connection: Connection) -> None:
        self._idle.pop(connection, None)

    def _moved(self, addresses: Sequence[str]) -> None:
        """Take where the name leads now: end connections that go elsewhere, those in use when they are idle."""
        self._valid = frozenset(addresses)
        for connection in list(self._idle):
            if connection.address not in self._valid:
                del self._idle[connection]
                connection.abort()

    def _close_old(self) -> None:
        """Close what has been idle too long; come back when the next one will have been."""
        self._sweep = None
        limit = time.monotonic() - self._idle_s
        for connection in list(self._idle):
            if connection.idle_since > limit:
                delay = connection.idle_since - limit
                self._sweep = asyncio.get_running_loop().call_later(delay, self._close_old)
                return
            del self._idle[connection]
            connection.abort()


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return problem_of(error)
    resolving = isinstance(error, socket.gaierror)  # its numbers are not those of the system
    return str(error.strerror or error) if resolving or not error.errno else os.strerror(error.errno)
