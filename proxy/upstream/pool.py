"""Connections to one backend, kept warm: last in, first out, without a cap. Lanes limit, not the pool."""

import asyncio
import logging
import os
import socket
import ssl
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

from proxy.upstream.connection import Connection

_log = logging.getLogger("lanewise")


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
    """

    def __init__(self, address: Origin, *, connect_timeout_s: float = 2.0, idle_s: float = 4.0) -> None:
        self.address = address
        self.authority = address.authority
        self._connect_timeout_s = connect_timeout_s
        self._idle_s = idle_s
        self._idle: dict[Connection, None] = {}
        """Oldest first. A dict, because a connection that the engine closes leaves from the middle."""
        self._sweep: asyncio.TimerHandle | None = None
        self._tls = ssl.create_default_context() if address.tls else None
        self._closed = False
        self._good: str | None = None
        """Address that the last connection went to: in use while the name cannot be resolved."""
        self._unresolved = False
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
            raise ConnectError(f"no connection within {self._connect_timeout_s:g} s") from None
        except OSError as error:
            raise ConnectError(f"cannot connect: {os.strerror(error.errno) if error.errno else error}") from None
        self.opened += 1
        return connection

    async def _connect(self) -> Connection:
        """Connect by name; while the name cannot be resolved, to the address it had last."""
        try:
            connection = await self._connect_to(self.address.host)
        except socket.gaierror as error:
            if self._good is None:
                raise
            if not self._unresolved:
                self._unresolved = True
                _log.warning(
                    "%s cannot be resolved (%s); %s stays in use for it", self.address.host, error.strerror, self._good
                )
            return await self._connect_to(self._good)
        self._unresolved = False
        return connection

    async def _connect_to(self, host: str) -> Connection:
        name = self.address.host if self._tls else None
        transport, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(self._give, self._forget), host, self.address.port, ssl=self._tls, server_hostname=name
        )
        if (peer := transport.get_extra_info("peername")) is not None:
            self._good = str(peer[0])
        return connection

    def close(self) -> None:
        """Close what is idle now and whatever becomes idle later."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        while self._idle:
            self._idle.popitem()[0].abort()

    def _give(self, connection: Connection) -> None:
        """Take a connection back that has delivered its answer."""
        if self._closed:
            connection.abort()
            return
        connection.idle_since = time.monotonic()
        self._idle[connection] = None
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(self._idle_s, self._close_old)

    def _forget(self, connection: Connection) -> None:
        self._idle.pop(connection, None)

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
