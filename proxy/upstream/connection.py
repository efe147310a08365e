"""One connection to an engine: an asyncio Protocol that sends one request at a time and reads its answer.

No task wakes up per read: what arrives goes straight to the `Receiver` that sent the request. The write side is never
closed alone, because vLLM takes a half-closed connection for a client that left.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, cast

from proxy.exchange import UpstreamError
from proxy.upstream.framing import BadFramingError, Framing
from proxy.upstream.head import BadHeadError, Head, parse_head, split_head

_SHORTEST_TIMER_S = 0.001
"""uvloop's timers count milliseconds."""
_log = logging.getLogger("lanewise")


@dataclass(frozen=True, slots=True)
class Broken:
    """Why an answer will not be whole."""

    kind: UpstreamError
    detail: str
    untouched: bool = False
    """The connection had served before and died without one byte of this answer: the engine had most likely closed it
    while idle and never read the request, so it may be sent once more."""


class Receiver(Protocol):
    """Who sent the request. Its methods are called in this order: head, body…, then end or broken, once."""

    @property
    def on_chunk(self) -> Callable[[bytes], bool] | None:
        """Takes a read that begins where a chunk begins, if it knows it for one whole chunk, and says whether it did.

        Asked for after each call of `on_body`; None: every read shall be framed.
        """
        ...

    def cork(self) -> None:
        """What is written on until `flush` comes out of one read, and may go out in one write."""
        ...

    def flush(self) -> None:
        """The read is over."""
        ...

    def on_head(self, head: Head) -> None:
        """Status and headers are complete (informational heads are swallowed)."""
        ...

    def on_body(self, wire: bytes, payload: bytes) -> None:
        """Body bytes came: as they were framed, and without the framing."""
        ...

    def on_end(self) -> None:
        """The answer is complete. The connection already belongs to somebody else."""
        ...

    def on_broken(self, broken: Broken) -> None:
        """The answer will not be complete."""
        ...


class Connection(asyncio.Protocol):
    """A connection that is either idle or serves one `Receiver`.

    Args:
        on_idle: called when an answer is complete and the connection can serve again.
        on_lost: called when it is closed, by whomever.
    """

    __slots__ = (
        "_alarm",
        "_alarm_at",
        "_buffer",
        "_due",
        "_framing",
        "_keep_alive",
        "_on_chunk",
        "_on_due",
        "_on_idle",
        "_on_lost",
        "_paused",
        "_receiver",
        "_transport",
        "address",
        "held_back",
        "idle_since",
        "served",
        "touched",
    )

    def __init__(self, on_idle: Callable[["Connection"], None], on_lost: Callable[["Connection"], None]) -> None:
        self._on_idle = on_idle
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._receiver: Receiver | None = None
        self._framing: Framing | None = None
        self._on_chunk: Callable[[bytes], bool] | None = None
        """The receiver's, while the next byte begins a chunk."""
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        self._due = 0.0
        self._on_due: Callable[[], None] | None = None
        self._buffer = b""
        self._keep_alive = False
        self._paused = False
        self.served = 0
        """Answers it has delivered whole."""
        self.touched = False
        """A byte of the current answer has come."""
        self.held_back = False
        """Reading was paused since somebody cleared this: the time to the next read says nothing of the engine."""
        self.address = ""
        """Where it goes; set by the pool."""
        self.idle_since = 0.0
        """Monotonic seconds; set by the pool."""

    def __repr__(self) -> str:
        state = "closed" if self.closed else "idle" if self._receiver is None else "busy"
        return f"<Connection {state}, {self.served} served{', paused' if self._paused else ''}>"

    @property
    def closed(self) -> bool:
        """Whether it can no longer be used."""
        return self._transport is None or self._transport.is_closing()

    @property
    def paused(self) -> bool:
        """Whether reading is held back for a slow client."""
        return self._paused

    def send(self, parts: Iterable[bytes], receiver: Receiver) -> None:
        """Write one whole request and let `receiver` have the answer.

        Args:
            parts: head and body; never a HEAD, whose answer has a length and no body.
            receiver: who gets the answer.
        """
        assert self._receiver is None
        assert self._transport is not None
        self._receiver = receiver
        self._framing = self._on_chunk = self._on_due = None
        self.touched = self.held_back = False
        for part in parts:
            self._transport.write(part)

    def remind(self, seconds: float, on_due: Callable[[], None]) -> None:
        """Call `on_due` once in so many seconds, unless another answer or another reminder has taken its place.

        The timer stays from one request to the next and is set anew only to ring earlier: most requests end long before
        their time-outs, and one timer for each would cost them more than all they are worth.
        """
        self._due, self._on_due = time.monotonic() + seconds, on_due
        if self._alarm is None:
            self._set_alarm(seconds)
        elif self._due < self._alarm_at:
            self._alarm.cancel()
            self._set_alarm(seconds)

    def _set_alarm(self, seconds: float) -> None:
        self._alarm_at = self._due
        self._alarm = asyncio.get_running_loop().call_later(max(_SHORTEST_TIMER_S, seconds), self._ring)

    def _ring(self) -> None:
        self._alarm = None
        if self._receiver is None or self._on_due is None:
            return
        left = self._due - time.monotonic()
        if left > 0:
            self._set_alarm(left)
            return
        on_due, self._on_due = self._on_due, None
        on_due()

    def abort(self) -> None:
        """Close at once and forget the receiver; the engine sees the close and frees the sequence."""
        self._receiver = self._on_chunk = None
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Stop reading: the client does not keep up.

        Not where the answer has come whole and the client alone is behind: whoever uses the connection next would wait
        for that client.
        """
        if not self._paused and self._receiver is not None and not self.closed:
            self._paused = self.held_back = True
            self._on_chunk = None
            cast("asyncio.Transport", self._transport).pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._paused:
            self._paused = False
            if not self.closed:
                cast("asyncio.Transport", self._transport).resume_reading()

    def interject(self, payload: bytes) -> bytes:
        """Return bytes that put `payload` next into the stream as it was passed on so far (see `Framing`)."""
        return b"" if self._framing is None else self._framing.interject(payload)

    # asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport (asyncio)."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Pass one read on (asyncio)."""
        on_chunk = self._on_chunk
        try:
            if on_chunk is not None and on_chunk(data):
                return
            receiver, framing = self._receiver, self._framing
            if receiver is None:
                self.abort()  # nobody asked: the next answer on this connection could not be trusted
                return
            if framing is None:
                self._read_head(receiver, data)
                return
            wire, payload = framing.feed(data)
            if framing.done:
                self._read_last(receiver, framing, wire, payload)
                return
            if wire:
                receiver.on_body(wire, payload)
            self._on_chunk = receiver.on_chunk if framing.between_chunks else None
        except (BadHeadError, BadFramingError) as error:
            self._break(Broken(UpstreamError.PROTOCOL, str(error)))
        except Exception as error:  # noqa: BLE001 - whoever waits for this answer must hear of it
            _log.exception("relaying failed")
            self._break(Broken(UpstreamError.PROTOCOL, f"relaying failed: {type(error).__name__}"))

    def eof_received(self) -> None:
        """Let the transport close itself (asyncio); `connection_lost` says what that means for the answer."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever waits (asyncio)."""
        self._transport = self._on_chunk = self._on_due = None
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        receiver, self._receiver = self._receiver, None
        self._on_lost(self)
        if receiver is None:
            return
        if self._framing is None:
            untouched = self.served > 0 and not self.touched
            receiver.on_broken(Broken(UpstreamError.RESET, "closed before it answered", untouched))
        elif exc is None and self._framing.complete_at_close():
            receiver.on_end()
        else:
            receiver.on_broken(Broken(UpstreamError.TRUNCATED_STREAM, "closed in the middle of its answer"))

    def _read_head(self, receiver: Receiver, data: bytes) -> None:
        self.touched = True
        buffer = self._buffer + data if self._buffer else data
        self._buffer = b""
        while end := split_head(buffer):
            head = parse_head(buffer[:end])
            buffer = buffer[end:]
            if head.status >= 200:
                self._begin_body(receiver, head, buffer)
                return
        self._buffer = buffer

    def _begin_body(self, receiver: Receiver, head: Head, rest: bytes) -> None:
        self._keep_alive = head.keep_alive
        framing = self._framing = head.framing()
        receiver.cork()
        try:
            receiver.on_head(head)
            if framing.done:
                framing.excess = rest
                self._finish(receiver, framing)
            elif rest:
                self.data_received(rest)
        finally:
            receiver.flush()

    def _read_last(self, receiver: Receiver, framing: Framing, wire: bytes, payload: bytes) -> None:
        """Pass the last bytes on together with the end."""
        self._on_chunk = None
        receiver.cork()
        try:
            if wire:
                receiver.on_body(wire, payload)
            self._finish(receiver, framing)
        finally:
            receiver.flush()

    def _finish(self, receiver: Receiver, framing: Framing) -> None:
        if self._receiver is None:
            return  # the receiver aborted while it took the last bytes
        self._receiver = self._on_due = None
        self.served += 1
        self.resume()
        if self._reusable(framing):
            self._on_idle(self)
        else:
            self.abort()
        receiver.on_end()

    def _reusable(self, framing: Framing) -> bool:
        if self.closed or framing.excess or not self._keep_alive:
            return False
        # An answer that overtook its own request leaves the rest of that request in the buffer.
        return cast("asyncio.Transport", self._transport).get_write_buffer_size() == 0

    def _break(self, broken: Broken) -> None:
        receiver = self._receiver
        self.abort()
        if receiver is not None:
            receiver.on_broken(broken)
