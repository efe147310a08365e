"""The client's side: aiohttp's server for heads, limits and keep-alive; answers are written straight to the transport.

aiohttp parses requests and keeps the connection; what it would do to write an answer costs more than all our own work,
so a handler writes head and body itself and returns `KEEP` or `CLOSE`, which write nothing.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol, cast

from aiohttp import StreamReader, web
from aiohttp.http_parser import HttpRequestParser, HttpRequestParserPy, RawRequestMessage

from proxy.clienthead import ClientHead

HIGH_WATER = 256 * 1024
"""Bytes that may wait for a slow client before its engine is told to pause."""
LOW_WATER = 64 * 1024
_LENGTH_DIGITS = 16
APART = 16
"""Heads of one received piece that are parsed one by one."""

_REASONS = {status.value: status.phrase.encode("ascii") for status in HTTPStatus}
_log = logging.getLogger("lanewise.http")


class PureParserError(RuntimeError):
    """aiohttp runs without its C parser."""


def check_parser() -> None:
    """Refuse to run on aiohttp's pure-Python parser: it is lenient where a proxy must be strict, and slow.

    Raises:
        PureParserError: the C extensions are missing or switched off.
    """
    if HttpRequestParser is HttpRequestParserPy:
        raise PureParserError(
            "aiohttp runs without its C extensions, whose strict HTTP parser lanewise relies on: "
            "unset AIOHTTP_NO_EXTENSIONS, or install a wheel of aiohttp for this platform"
        )


class Flow(Protocol):
    """Whoever feeds a client and can hold back."""

    def pause(self) -> None:
        """Send no more for now."""
        ...

    def resume(self) -> None:
        """Go on."""
        ...


class Written(web.StreamResponse):
    """Says that the answer is on the wire already; aiohttp only learns whether the connection stays."""

    def __init__(self, *, keep_alive: bool) -> None:
        super().__init__()
        self._keep_alive = keep_alive

    async def prepare(self, request: web.BaseRequest) -> None:
        """Write nothing (aiohttp)."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Write nothing (aiohttp)."""


KEEP = Written(keep_alive=True)
CLOSE = Written(keep_alive=False)


class ClientConnection(web.RequestHandler):
    """One client connection. Tells the `flow` that feeds it when the client does not keep up."""

    __slots__ = ("_body", "_drained", "_in_head", "_listener", "_to_come", "body_bytes", "flow", "head")

    def __init__(self, listener: "Listener", **options: Any) -> None:
        super().__init__(listener, **options)
        self._listener = listener
        self._drained: asyncio.Future[None] | None = None
        self._body: StreamReader | None = None
        """Of the last head that was complete."""
        self._in_head = False
        """A head has begun whose end has not come."""
        self._to_come = 0
        """Bytes of a body that its head has announced and that have not come."""
        self.body_bytes = 0
        """Bytes that came since the last head was complete: what a body took on the wire, chunk framing included."""
        self.flow: Flow | None = None
        self.head: ClientHead | None = None
        """The head of its last request, read."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the water marks (asyncio)."""
        cast("asyncio.Transport", transport).set_write_buffer_limits(HIGH_WATER, LOW_WATER)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Parse (asyncio), each head apart: aiohttp forgets the requests of a piece in which something later is broken.

        After the first head of a piece the rest is parsed on its own, and so on (`APART` heads at most: a body full of
        empty lines costs no more). So a whole request is served, whatever follows it.
        """
        if len(data) <= self._to_come:
            self._to_come -= len(data)
            self._parse(data)
            return
        began, end = 0, data.find(b"\r\n\r\n") + 4
        left = _announced(data, end) - (len(data) - end)
        self._to_come = max(0, left)
        if left >= 0:  # nothing follows this request in the piece, as in most
            self._parse(data)
            return
        for _ in range(APART):
            if end < 4 or end == len(data):
                break
            if self._parse(data[began:end]):
                return
            began, end = end, data.find(b"\r\n\r\n", end) + 4
        self._parse(b"\0" if end < 4 and self._has_no_version(data, began) else data[began:] if began else data)

    def _has_no_version(self, data: bytes, began: int) -> bool:
        """Whether a head begins here whose first line is whole and names no version: aiohttp would wait for its rest.

        In its place the parser is given a byte that it refuses.
        """
        if self._in_head or not (self._body is None or self._body.is_eof()):
            return False
        self._in_head = True
        line, mark, _ = data[began:].lstrip(b"\r\n").partition(b"\r\n")
        return bool(mark) and b" HTTP/" not in line

    def _parse(self, data: bytes) -> bool:
        """Give bytes to the parser; return whether they break HTTP.

        Who reads a body that breaks is told: aiohttp only queues the error, behind the request whose body it is.
        """
        heads = self._request_count
        super().data_received(data)
        if heads == self._request_count:
            self.body_bytes += len(data)
            return False
        self._in_head = False
        message, content = self._messages[-1]
        if isinstance(message, RawRequestMessage):
            self.body_bytes, self._body = 0, content
            return False
        body = self._body
        if body is not None and not body.is_eof() and body.exception() is None:
            body.set_exception(web.RequestPayloadError("the body does not follow its framing"))
            body.feed_eof()  # else aiohttp reads on after the answer, and logs that it cannot
        return True

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Read on (aiohttp). It says so for every body, and runs its parser over nothing then, paused or not."""
        if self._reading_paused or self._buffer_paused:
            super().resume_reading(resume_parser)

    def pause_writing(self) -> None:
        """Hold the engine back (asyncio)."""
        super().pause_writing()
        if self.flow is not None:
            self.flow.pause()

    def resume_writing(self) -> None:
        """Let the engine go on (asyncio)."""
        super().resume_writing()
        if self.flow is not None:
            self.flow.resume()
        self._wake()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Wake who waits for the client to read (asyncio)."""
        super().connection_lost(exc)
        self._wake()

    async def drained(self, timeout_s: float) -> None:
        """Wait until the client has read most of what was written; one that does not within the time is cut off."""
        if not self.writing_paused or self.transport is None:
            return
        self._drained = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await self._drained
        except TimeoutError:
            if self.transport is not None:
                self.transport.abort()
        finally:
            self._drained = None

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002
    ) -> web.StreamResponse:
        """Answer bytes that are no acceptable HTTP (aiohttp)."""
        return self._listener.refuse(request, status, exc)

    def _wake(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)


def _announced(data: bytes, end: int) -> int:
    """Return the length of the body that the head up to `end` announces; -1 when that is not sure."""
    at = data.find(b"ength: ", 0, end) if end >= 4 else -1
    if at < 0:
        return -1
    length = data[at + 7 : data.find(b"\r", at)]
    return int(length) if len(length) < _LENGTH_DIGITS and length.isdigit() else -1


Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Refuse = Callable[[web.BaseRequest, int, BaseException | None], web.StreamResponse]


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """What a client connection may do."""

    keepalive_s: float
    """For the head of a request, and how long an idle connection is kept."""
    line_bytes: int
    """Longest request line."""
    field_bytes: int
    """Longest header field."""


class Listener(web.Server):
    """The protocol factory of the data listener.

    Args:
        handler: serves one request whose head is complete.
        refuse: answers what aiohttp's parser did not accept.
        limits: of connections.
    """

    def __init__(self, handler: Handler, refuse: Refuse, limits: ListenerLimits) -> None:
        super().__init__(
            handler,
            handler_cancellation=True,
            keepalive_timeout=limits.keepalive_s,
            max_line_size=limits.line_bytes,
            max_field_size=limits.field_bytes,
            auto_decompress=False,
            access_log=None,
            logger=_log,
        )
        self.refuse = refuse

    def configure(self, limits: ListenerLimits) -> None:
        """Take new limits, for connections made from now on."""
        self._kwargs.update(
            keepalive_timeout=limits.keepalive_s, max_line_size=limits.line_bytes, max_field_size=limits.field_bytes
        )

    def __call__(self) -> ClientConnection:
        """Make the protocol of one connection (asyncio)."""
        return ClientConnection(self, loop=self._loop, **self._kwargs)


def head_bytes(
    status: int,
    headers: Iterable[tuple[bytes, bytes]],
    *,
    keep_alive: bool,
    http10: bool,
    reason: bytes = b"",
    lines: bytes = b"",
) -> bytes:
    """Build the head of an answer.

    Args:
        status: HTTP status.
        headers: fields in order, free of control characters; neither Connection nor anything hop-by-hop.
        keep_alive: whether the connection stays after this answer.
        http10: the client speaks HTTP/1.0.
        reason: reason phrase; the standard one when empty.
        lines: more fields, as lines already, which come first.
    """
    parts = [b"HTTP/1.%d %d %b\r\n" % (0 if http10 else 1, status, reason or _REASONS.get(status, b"")), lines]
    parts += [b"%b: %b\r\n" % field for field in headers]
    if not keep_alive:
        parts.append(b"Connection: close\r\n\r\n")
    elif http10:
        parts.append(b"Connection: keep-alive\r\n\r\n")
    else:
        parts.append(b"\r\n")
    return b"".join(parts)
