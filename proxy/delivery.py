"""How one answer is written to its client. The way is chosen once, when the engine's head has come.

| the engine frames by | the client gets |
|---|---|
| chunks | the same chunks, byte for byte |
| chunks, and the usage event is taken out or corrected | chunks of our own around what is left |
| a length, up to `HOLD_BYTES` | head and body in one write, once the body is whole |
| a longer length | the bytes as they come |
| the close of its connection | chunks of our own |

A client that speaks HTTP/1.0 gets the bare bytes, and the end of its connection as their end.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass

from proxy.listener import ClientConnection, head_bytes
from proxy.upstream.framing import LAST_CHUNK, chunk
from proxy.upstream.head import Head
from proxy.wire import headers
from proxy.wire.parts import UsageTeller
from proxy.wire.sse import UsageRemover

HOLD_BYTES = 1024 * 1024
"""An answer up to this length is sent once it is whole, so that one cut short can still become a 502."""
HOLD_TO_EDIT_BYTES = 16 * 1024 * 1024
"""The same for one whose usage is corrected; a longer one, or one without a length, passes as it is."""
_READ_LAST_S = 5.0
"""How long a client may take to read the last event of a stream that is then cut."""
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: on, 0 seconds. Closing then resets the connection, which no client takes for a clean end."""
_CHUNKED = ((b"Transfer-Encoding", b"chunked"),)

Fields = tuple[tuple[bytes, bytes], ...]
Sieve = UsageRemover | UsageTeller
"""Takes one event out of a stream, or corrects it."""


@dataclass(slots=True)
class ClientSide:
    """The client's half of one request, as far as its answer is concerned."""

    connection: ClientConnection
    http10: bool
    keep_alive: bool
    """The client lets its connection stay."""
    headers: Fields = ()
    """Fields that are added to an engine's answer."""


class Delivery:
    """Writes one answer of an engine.

    Attributes:
        pass_on: takes `wire` and `payload` of each read, after `begin`.
        passes_chunks: one whole chunk, known to hold no more than a token event, goes to the client as it came, unless
            `sifting`; after `begin`.
        started: the head was written: no status of ours can follow.
        holding: the body is kept until it is whole.
    """

    __slots__ = (
        "_client",
        "_close",
        "_corked",
        "_edit",
        "_framed",
        "_held",
        "_own_chunks",
        "_sieve",
        "holding",
        "pass_on",
        "passes_chunks",
        "started",
    )

    def __init__(self, client: ClientSide) -> None:
        self._client = client
        self._sieve: Sieve | None = None
        self._edit: Callable[[bytes], bytes] | None = None
        self._held: list[bytes] = []
        self._corked: list[bytes] | None = None
        """What waits for the end of a read; None: nothing has to."""
        self._own_chunks = False
        self._framed = True
        """The client can tell a whole body from one that was cut."""
        self._close = not client.keep_alive
        self.pass_on: Callable[[bytes, bytes], None] = self._splice
        self.passes_chunks = False
        self.started = False
        self.holding = False

    @property
    def keep_alive(self) -> bool:
        """Whether the client's connection stays after this answer."""
        return not self._close

    @property
    def sifting(self) -> bool:
        """Whether a part of an event is held back, which comes before anything that follows."""
        return self._sieve is not None and self._sieve.holding

    def begin(
        self,
        head: Head,
        *,
        stream: bool,
        sieve: Sieve | None = None,
        edit: Callable[[bytes], bytes] | None = None,
    ) -> None:
        """Choose the way, and write the head unless the body is held.

        Args:
            head: what the engine said.
            stream: the body is a stream of events, which is never held.
            sieve: what a stream goes through.
            edit: what is done to the body of an answer that is held.
        """
        self._sieve, self._edit = sieve, edit
        most = HOLD_BYTES if edit is None else HOLD_TO_EDIT_BYTES
        if not stream and (head.bodyless or (head.length is not None and head.length <= most)):
            self.holding = True
            self.pass_on = self._hold
            return
        self._write_head(head, self._choose(head))

    def cork(self) -> None:
        """Keep what is written until `flush`: head and first event, last event and end then take one write each."""
        if self._corked is None:
            self._corked = []

    def flush(self) -> None:
        """Write what was kept."""
        corked, self._corked = self._corked, None
        if corked:
            self._write(b"".join(corked))

    def end(self, head: Head) -> bytes:
        """Write what ends a whole answer; return the body that was held as the engine sent it, or b""."""
        if self.holding:
            body = b"".join(self._held)
            self._held.clear()
            told = body if self._edit is None else self._edit(body)
            length = () if head.bodyless else ((b"Content-Length", b"%d" % len(told)),)
            self._write_head(head, length, told)
            return body
        rest = self._sieve.end() if self._sieve is not None else b""
        if self._own_chunks:
            self._write((chunk(rest) if rest else b"") + LAST_CHUNK)
        elif self._framed and head.chunked:
            self._write(LAST_CHUNK)
        else:
            self._write(rest)
        return b""

    def cut(self, last: bytes, interject: Callable[[bytes], bytes]) -> None:
        """End an answer that is not whole so that no client takes it for one: without its end.

        Args:
            last: an event that says what happened, or b"".
            interject: puts bytes next into the engine's own framing.
        """
        transport = self._client.connection.transport
        if transport is None:
            return
        if not self._framed:
            connection = transport.get_extra_info("socket")
            if connection is not None:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            transport.abort()
            return
        if last:
            transport.write(chunk(last) if self._own_chunks else interject(last))
        transport.close()  # what is written still arrives; the end of the framing never does
        asyncio.get_running_loop().call_later(_READ_LAST_S, transport.abort)

    def _choose(self, head: Head) -> Fields:
        """Set `pass_on`; return the fields that tell the client its framing."""
        if head.length is not None and self._sieve is None:
            self.pass_on = self._bare
            return ((b"Content-Length", b"%d" % head.length),)
        if self._client.http10:
            self._close, self._framed = True, False
            self.pass_on = self._bare if self._sieve is None else self._sift
            return ()
        if self._sieve is not None:
            self._own_chunks, self.pass_on = True, self._sift
        elif not head.chunked:
            self._own_chunks, self.pass_on = True, self._rechunk
        self.passes_chunks = head.chunked
        return _CHUNKED

    def _write_head(self, head: Head, framing: Fields, body: bytes = b"") -> None:
        client = self._client
        block = head_bytes(
            head.status,
            (*framing, *client.headers),
            keep_alive=not self._close,
            http10=client.http10,
            reason=head.reason,
            lines=_client_lines(head),
        )
        self.started = True
        self._write(block + body)

    # The ways. These run for every read.
    def _splice(self, wire: bytes, payload: bytes) -> None:  # noqa: ARG002 - all ways have one signature
        self._write(wire)

    def _bare(self, wire: bytes, payload: bytes) -> None:  # noqa: ARG002
        self._write(payload)

    def _rechunk(self, wire: bytes, payload: bytes) -> None:  # noqa: ARG002
        if payload:
            self._write(chunk(payload))

    def _sift(self, wire: bytes, payload: bytes) -> None:  # noqa: ARG002
        rest = self._sieve.feed(payload)  # type: ignore[union-attr]
        if rest:
            self._write(chunk(rest) if self._own_chunks else rest)

    def _hold(self, wire: bytes, payload: bytes) -> None:  # noqa: ARG002
        self._held.append(payload)

    def _write(self, data: bytes) -> None:
        if self._corked is not None:
            self._corked.append(data)
            return
        transport = self._client.connection.transport
        if transport is not None and data:
            transport.write(data)


def _client_lines(head: Head) -> bytes:
    """Return the engine's fields as lines for a client; made once for all answers that share a head."""
    if head.client_lines is None:
        fields = headers.client_headers(head.headers)
        head.client_lines = b"".join([b"%b: %b\r\n" % field for field in fields if field[0] != b"x-request-id"])
    return head.client_lines
