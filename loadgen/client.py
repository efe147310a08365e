"""The HTTP client of the replay: one asyncio Protocol per connection, stamps taken where bytes arrive.

A connection carries one request at a time. The pool keeps idle connections, the latest used first, and has no limit:
an open-loop sender must never wait for a connection to come free.

Two things keep the stamps near the wire. A request is written to the socket at once, not when the loop's turn ends:
what is done in the rest of the turn (the next body, say) would count as the target's. And what one turn of the loop
reads is stamped first, all of it, and parsed afterwards: else the last of many sockets would be read later by the
parsing of all before it.
"""

import asyncio
import contextlib
import os
import socket
import ssl
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

import httptools

from loadgen.failure import UsageError


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go."""

    scheme: str
    host: str
    port: int
    prefix: str
    """Path before /v1, usually empty."""

    @property
    def url(self) -> str:
        """Return the base URL."""
        return f"{self.scheme}://{self.netloc}{self.prefix}"

    @property
    def netloc(self) -> str:
        """Return host and port as the Host header has them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_target(url: str) -> Target:
    """Read a base URL.

    Raises:
        UsageError: it is no http(s) URL, or carries something that a base URL does not have.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"--target {url}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--target {url}: give a base URL like http://127.0.0.1:8000")
    if parts.query or parts.fragment or parts.username or parts.password:
        raise UsageError(f"--target {url}: a base URL has no query, fragment or password in it")
    default = 443 if parts.scheme == "https" else 80
    prefix = parts.path.rstrip("/").removesuffix("/v1")
    return Target(parts.scheme, parts.hostname, port or default, prefix)


def tls_of(target: Target, *, insecure: bool = False) -> ssl.SSLContext | None:
    """Return how connections to a target are secured; None: not at all.

    Args:
        target: where requests go.
        insecure: take whatever certificate it shows.
    """
    if target.scheme != "https":
        return None
    context = ssl.create_default_context()
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class Receiver(Protocol):
    """Whoever a connection tells what comes back for its request. Times are `perf_counter_ns`."""

    def on_connected(self, now_ns: int) -> None:
        """A new connection is ready."""

    def on_sent(self, now_ns: int) -> None:
        """The request is about to be written."""

    def on_head(self, status: int, headers: dict[bytes, bytes], now_ns: int) -> None:
        """The response head is complete; header names are lower case."""

    def on_body(self, data: bytes, now_ns: int) -> None:
        """Body bytes, framing removed."""

    def on_complete(self, now_ns: int) -> None:
        """The body ended as its framing says."""

    def on_broken(self, reason: str, detail: str, now_ns: int) -> None:
        """Nothing more will come."""

    def on_reconnect(self) -> None:
        """A kept-alive connection turned out closed; the request goes out again on a new one."""


class Call:
    """One request on its way: on a connection, or waiting for a new one."""

    __slots__ = ("_client", "connecting", "connection", "receiver", "request")

    def __init__(self, client: "Client", receiver: Receiver, request: bytes) -> None:
        self._client = client
        self.receiver: Receiver | None = receiver
        self.request = request
        self.connection: Connection | None = None
        self.connecting: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        """Give the request up: its connection is closed at once and the receiver hears nothing more."""
        self.receiver = None
        if self.connection is not None:
            self.connection.abort()
        if self.connecting is not None:
            self.connecting.cancel()

    async def on_new_connection(self) -> None:
        """Open a connection and send on it."""
        try:
            connection = await self._client.connect()
        except TimeoutError:
            self.end("connect_timeout", "no connection within the limit")
        except OSError as error:
            self.end("connect", str(error))
        else:
            self.connecting = None
            if self.receiver is None:
                connection.abort()
                return
            self.receiver.on_connected(perf_counter_ns())
            connection.send(self)

    def end(self, reason: str, detail: str) -> None:
        """Tell the receiver that nothing more will come."""
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            receiver.on_broken(reason, detail, perf_counter_ns())


class Connection(asyncio.Protocol):
    """One connection and the call it carries."""

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._transport: asyncio.Transport | None = None
        self._call: Call | None = None
        self._parser: Any = None
        self._used = False
        self._answered = False
        self._status = 0
        self._headers: dict[bytes, bytes] = {}
        self._now = self._sent_ns = 0
        self._socket = -1
        """File descriptor that requests are written to; -1: through the transport alone (TLS)."""
        self._parts: list[bytes] = []
        self.on_body = self._parts.append
        """Called by the parser with body bytes, which are kept until the read is parsed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport; called by the event loop."""
        self._transport = cast("asyncio.Transport", transport)
        if transport.get_extra_info("ssl_object") is None:
            self._socket = transport.get_extra_info("socket").fileno()

    def send(self, call: Call) -> None:
        """Write the request of a call; what comes back goes to its receiver."""
        assert call.receiver is not None
        self._call, call.connection = call, self
        self._answered, self._status, self._headers = False, 0, {}
        self._parts.clear()
        self._parser = httptools.HttpResponseParser(self)
        self._sent_ns = perf_counter_ns()
        call.receiver.on_sent(self._sent_ns)
        self._write(call.request)

    def _write(self, request: bytes) -> None:
        """Write to the socket now, and leave to the transport what that does not take: it also meets the errors.

        What is left of a request that was answered before it had gone out goes first.
        """
        assert self._transport is not None
        done = 0
        if self._socket >= 0 and not self._transport.is_closing() and not self._transport.get_write_buffer_size():
            with contextlib.suppress(OSError):
                done = os.write(self._socket, request)
        if done < len(request):
            self._transport.write(request[done:])

    def abort(self) -> None:
        """Close at once, without a word to anybody."""
        self._call = None
        if self._transport is not None:
            self._transport.abort()

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent on it any more."""
        return self._transport is None or self._transport.is_closing()

    def data_received(self, data: bytes) -> None:
        """Stamp what arrived; called by the event loop."""
        self._client.arrived(self, perf_counter_ns(), data)

    def parse(self, now_ns: int, data: bytes) -> None:
        """Parse what arrived at `now_ns`; called by the client once all that arrived with it has its stamp."""
        self._now = now_ns
        if self._call is None:
            self.abort()
            return
        if now_ns < self._sent_ns:
            self._break("protocol", "bytes came after the end of the answer before it")
            return
        self._answered = True
        try:
            self._parser.feed_data(data)
            if self._parts:
                self._deliver()
        except httptools.HttpParserError as error:
            self._break("protocol", f"the answer is not HTTP as it should be: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """Report a request that was still open; called by the event loop."""
        self._client.forget(self)
        self._client.parse_arrived()
        call = self._call
        if call is None or call.receiver is None:
            return
        self._now = perf_counter_ns()
        if self._used and not self._answered:
            self._call = None
            call.receiver.on_reconnect()
            self._client.send_anew(call)
        elif self._ends_by_closing():
            self._done()
        else:
            self._break("connection", str(exc) if exc else "closed in the middle of the answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep one header; called by the parser."""
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Pass the head on; called by the parser."""
        self._status = self._parser.get_status_code()
        if self._status >= 200 and self._call is not None and self._call.receiver is not None:
            self._call.receiver.on_head(self._status, self._headers, self._now)

    def _deliver(self) -> None:
        """Pass the body bytes of one read on together: they came at one time."""
        parts, call = self._parts, self._call
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        if call is not None and call.receiver is not None:
            call.receiver.on_body(data, self._now)

    def on_message_complete(self) -> None:
        """End the request and give the connection back; called by the parser."""
        if self._status < 200:
            self._headers = {}
            return
        if self._parts:
            self._deliver()
        keep = self._parser.should_keep_alive()
        self._done()
        if keep and not self.closed:
            self._used = True
            self._client.put_back(self)
        elif self._transport is not None:
            self._transport.close()

    def _ends_by_closing(self) -> bool:
        """Without a length or chunks the close is the end of the body (RFC 9112, 6.3)."""
        framed = b"content-length" in self._headers or b"transfer-encoding" in self._headers
        return self._status >= 200 and not framed

    def _done(self) -> None:
        call, self._call = self._call, None
        if call is not None and call.receiver is not None:
            receiver, call.receiver, call.connection = call.receiver, None, None
            receiver.on_complete(self._now)

    def _break(self, reason: str, detail: str) -> None:
        call, self._call = self._call, None
        if self._transport is not None:
            self._transport.abort()
        if call is not None:
            call.end(reason, detail)


class Client:
    """Sends requests to one target. `reuse` keeps connections alive between requests; `insecure` trusts anybody."""

    def __init__(
        self, target: Target, *, reuse: bool = True, connect_timeout_s: float = 10.0, insecure: bool = False
    ) -> None:
        self._target = target
        self._reuse = reuse
        self._timeout_s = connect_timeout_s
        self._idle: dict[Connection, None] = {}
        """In the order they came back."""
        self._unread: list[tuple[Connection, int, bytes]] = []
        """What arrived in this turn of the loop, with its stamp."""
        self._host = target.host
        self._ssl = tls_of(target, insecure=insecure)
        self.opened = 0
        """Connections made so far."""

    async def resolve(self) -> None:
        """Look the host up once, so that no request pays for it.

        Raises:
            OSError: the name has no address.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self._target.host, self._target.port, type=socket.SOCK_STREAM)
        self._host = str(found[0][4][0])

    def send(self, receiver: Receiver, request: bytes) -> Call:
        """Send now: on an idle connection, or on a new one as soon as it is ready."""
        call = Call(self, receiver, request)
        while self._idle:
            connection, _ = self._idle.popitem()
            if not connection.closed:
                connection.send(call)
                return call
        self.send_anew(call)
        return call

    def send_anew(self, call: Call) -> None:
        """Send on a new connection."""
        call.connection = None
        call.connecting = asyncio.get_running_loop().create_task(call.on_new_connection(), name="connect")

    async def connect(self) -> Connection:
        """Open one connection.

        Raises:
            OSError: it cannot be opened.
            TimeoutError: not within the limit.
        """
        name = self._target.host if self._ssl else None
        async with asyncio.timeout(self._timeout_s):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(self), self._host, self._target.port, ssl=self._ssl, server_hostname=name
            )
        self.opened += 1
        return connection

    def arrived(self, connection: Connection, now_ns: int, data: bytes) -> None:
        """Keep what a connection read until everything that can be read now has its stamp."""
        if not self._unread:
            asyncio.get_running_loop().call_soon(self.parse_arrived)
        self._unread.append((connection, now_ns, data))

    def parse_arrived(self) -> None:
        """Parse what arrived. Whoever ends a request for its silence calls this first."""
        unread, self._unread = self._unread, []
        for connection, now_ns, data in unread:
            connection.parse(now_ns, data)

    def put_back(self, connection: Connection) -> None:
        """Keep a connection whose request has ended, or close it."""
        if self._reuse:
            self._idle[connection] = None
        else:
            connection.abort()

    def forget(self, connection: Connection) -> None:
        """Drop a connection that closed while idle."""
        self._idle.pop(connection, None)

    def close(self) -> None:
        """Close the idle connections."""
        idle, self._idle = self._idle, {}
        for connection in idle:
            connection.abort()
