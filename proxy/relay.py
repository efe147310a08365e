"""One attempt at one backend: the request goes out, the answer comes back to the client as it came.

The `Relay` is what an upstream connection calls for each read: it looks at the bytes beside the stream, and its
`Delivery` writes them to the client's transport. No task wakes up until the answer is over.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from proxy.answer_reader import read_answer
from proxy.delivery import ClientSide, Delivery, Sieve
from proxy.exchange import Exchange, UpstreamError
from proxy.pace import Pace
from proxy.policy.outcome import Ending, Outcome
from proxy.upstream.connection import Broken, Connection
from proxy.upstream.head import Head
from proxy.wire import errors
from proxy.wire.parts import ToldUsage, UsageTeller, tell_usage
from proxy.wire.sse import StreamScanner, UsageRemover

_EVENT_STREAM = b"text/event-stream"
_LINE_ENDS = 4
"""Bytes of the longest blank line behind an event."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a backend may take, in seconds."""

    first_byte_s: float
    """From the request to the first byte of the body."""
    idle_s: float
    """Between two reads after that."""


class Stopped(StrEnum):
    """Why a relay was ended from our side."""

    CLIENT_STALLED = "client_stalled"
    """The client has not read for the idle time."""
    DRAINED = "drained"
    """The time to drain is over."""


class Relay:
    """Receives the answer of one attempt and passes it on.

    Args:
        exchange: takes stamps, counts, and how it ended.
        client: where the answer goes.
        patience: time limits.
        on_first_token: called once, when the first token passes.
        pace: takes the gaps between tokens; None: nobody asks for them.
        on_stream: called when a stream begins: nobody needs the request any more.
    """

    __slots__ = (
        "_client",
        "_connection",
        "_done",
        "_exchange",
        "_first_token",
        "_head",
        "_last_read",
        "_last_token",
        "_on_stream",
        "_pace",
        "_patience",
        "_progress",
        "_relayed",
        "_scanner",
        "_stalled_at",
        "_tail",
        "delivery",
        "on_chunk",
    )

    def __init__(
        self,
        exchange: Exchange,
        client: ClientSide,
        patience: Patience,
        on_first_token: Callable[[], None],
        pace: Pace | None = None,
        *,
        on_stream: Callable[[], None] | None = None,
    ) -> None:
        self.delivery = Delivery(client)
        self._client = client
        self._exchange = exchange
        self._patience = patience
        self._pace = pace
        self._on_stream = on_stream
        self._first_token: Callable[[], None] | None = on_first_token
        self._connection: Connection | None = None
        self._done: asyncio.Future[Broken | Stopped | None] | None = None
        self._scanner: StreamScanner | None = None
        self._head: Head | None = None
        self._tail = b""
        """The end of the last payload of a stream that was framed: says whether it stopped between two events."""
        self._last_read = 0.0
        """When body bytes that were framed came last; 0: none yet."""
        self._progress = 0.0
        """When something of them last came that moves the answer on: of a stream the end of a line, since half an event
        is of no use to anybody; else any byte."""
        self._last_token = 0.0
        """When the last token event came, framed or not; 0: none yet."""
        self._relayed = 0
        """Body bytes of this attempt, without chunk framing."""
        self._stalled_at = 0.0
        """When the last bytes had come as the clock last found the client not reading."""
        self.on_chunk: Callable[[bytes], bool] | None = None
        """See `Receiver`."""

    async def run(self, connection: Connection, parts: Iterable[bytes]) -> Broken | Stopped | None:
        """Send the request and relay the answer.

        Returns:
            None when the answer came whole; else what ended it. `delivery.started` then says whether a status can
            still be sent.
        """
        client = self._client.connection
        self._connection = client.flow = connection
        self._done = asyncio.get_running_loop().create_future()
        self._exchange.attempts += 1
        self._exchange.sent = time.monotonic()
        try:
            connection.send(parts, self)
            self._wait(self._patience.first_byte_s)
            del parts  # this frame lives as long as the stream
            if client.writing_paused:
                connection.pause()  # it has not read the answer before this one yet
            return await self._done
        finally:
            client.flow = None
            self._note_body()
            if not self._done.done() or self._done.cancelled():
                connection.abort()

    @property
    def head(self) -> Head | None:
        """Status and headers of the answer; None before they came."""
        return self._head

    @property
    def stream_error(self) -> errors.ErrorSeen | None:
        """What an error frame inside the stream said."""
        return None if self._scanner is None else self._scanner.error

    def stop(self, why: Stopped) -> None:
        """End the attempt from our side."""
        if self._connection is not None:
            self._connection.abort()
        self._exchange.answered = time.monotonic()
        if self._scanner is not None:
            self._take_counts(self._scanner)
        self._finish(why)

    def cut(self, ended_code: str, status: int, message: str) -> None:
        """End a stream that has begun with an error event in the client's dialect, and without its proper end."""
        last = b""
        if self._scanner is not None and self._scanner.error is None:
            last = errors.stream_error(self._exchange.endpoint, status, ended_code, message)
            if self._tail and not self._tail.endswith((b"\n\n", b"\r\n\r\n", b"\r\r")):
                last = b"\n\n" + last
        assert self._connection is not None
        self.delivery.cut(last, self._connection.interject)

    # What the connection calls.
    def cork(self) -> None:
        """Let what one read makes the client get go out in one write."""
        self.delivery.cork()

    def flush(self) -> None:
        """Write it."""
        self.delivery.flush()

    def on_head(self, head: Head) -> None:
        """Look whether there is a stream to read beside; let the answer begin."""
        self._head = head
        exchange = self._exchange
        exchange.head = time.monotonic()
        exchange.upstream_status = head.status
        stream = head.status == 200 and head.get(b"content-type").startswith(_EVENT_STREAM)
        if stream and self._on_stream is not None:
            self._on_stream()
            self._on_stream = None
        readable = stream and head.get(b"content-encoding") in {b"", b"identity"}
        if readable:
            self._scanner = StreamScanner(exchange.endpoint)
        told = exchange.told if head.status == 200 else None
        edit = None if told is None else partial(tell_usage, told=told)
        self.delivery.begin(head, stream=stream, sieve=self._sieve(told) if readable else None, edit=edit)
        if self.delivery.started:
            exchange.status = head.status

    def _sieve(self, told: ToldUsage | None) -> Sieve | None:
        if self._exchange.asked_usage:
            return UsageRemover()
        return None if told is None else UsageTeller(told)

    def on_body(self, wire: bytes, payload: bytes) -> None:
        """Look beside the stream, and pass it on."""
        now = time.monotonic()
        if not self._last_read:
            self._first_body(now)
        self._last_read = now
        scanner = self._scanner
        if scanner is None or not self._progress or b"\n" in payload or b"\r" in payload:
            self._progress = now
        if scanner is not None:
            self._tail = payload[-_LINE_ENDS:]
            if events := scanner.feed(payload):
                self._note_tokens(now, events)
        self._relayed += len(payload)
        delivery = self.delivery
        delivery.pass_on(wire, payload)
        steady = scanner is not None and scanner.steady and delivery.passes_chunks and not delivery.sifting
        self.on_chunk = self._pass_chunk if steady and not self._connection.held_back else None  # type: ignore[union-attr]

    def _pass_chunk(self, wire: bytes) -> bool:
        """Pass a chunk on that holds one more token and nothing else; `on_body` in short, for most of what comes."""
        size = self._scanner.feed_chunk(wire)  # type: ignore[union-attr]
        if not size:
            return False
        now = time.monotonic()
        pace = self._pace
        if pace is not None:
            pace.seconds += now - self._last_token
            pace.events += 1
        self._last_token = now
        self._relayed += size
        transport = self._client.connection.transport
        if transport is not None:
            transport.write(wire)
        return True

    def _note_tokens(self, now: float, events: int) -> None:
        """Take note of token events, of which the first of all gives the prefill budget back."""
        if self._first_token is not None:
            self._exchange.first_token = now
            self._first_token()
            self._first_token = None
        elif self._connection.held_back:  # type: ignore[union-attr]
            self._connection.held_back = False  # type: ignore[union-attr]
        elif (pace := self._pace) is not None:
            pace.seconds += now - self._last_token
            pace.events += events
        self._last_token = now

    def _note_body(self) -> None:
        """Let the exchange know what came; it is not told at every read."""
        exchange = self._exchange
        exchange.response_bytes += self._relayed
        self._relayed = 0
        if self._last_token:
            exchange.last_token = self._last_token

    def _first_body(self, now: float) -> None:
        """Shorten the timer from the patience for the first byte to the patience between two, if that is sooner."""
        patience = self._patience
        if now + patience.idle_s < (self._exchange.sent or now) + patience.first_byte_s:
            self._wait(patience.idle_s)

    def on_end(self) -> None:
        """Finish the answer, or find that it only looks finished."""
        exchange, head, scanner = self._exchange, self._head, self._scanner
        assert head is not None
        exchange.answered = time.monotonic()
        if scanner is not None:
            scanner.end()
            if not (scanner.done or scanner.error):
                self._give_up(Broken(UpstreamError.TRUNCATED_STREAM, "the stream ended without its end marker"))
                return
        body = self.delivery.end(head)
        exchange.status = head.status
        self._judge(head, body)
        self._finish(None)

    def on_broken(self, broken: Broken) -> None:
        """Give the answer up, unless all that was missing is the end of the framing."""
        self._exchange.answered = time.monotonic()
        scanner = self._scanner
        if scanner is not None:
            scanner.end()
            if scanner.complete and broken.kind is UpstreamError.TRUNCATED_STREAM:
                self.on_end()
                return
        self._give_up(broken)

    def _give_up(self, broken: Broken) -> None:
        exchange, scanner = self._exchange, self._scanner
        exchange.upstream_error = broken.kind
        exchange.ending = Ending.DROPPED
        exchange.detail = broken.detail
        if scanner is not None:
            self._take_counts(scanner)
            if scanner.error is not None:
                exchange.detail = scanner.error.message
        self._finish(broken)

    def _finish(self, result: Broken | Stopped | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(result)

    def _judge(self, head: Head, body: bytes) -> None:
        """Say how an answer that came whole ended."""
        exchange, scanner = self._exchange, self._scanner
        if head.status >= 400:
            self._judge_error(head.status, body)
        elif head.status >= 300:
            exchange.outcome, exchange.detail = Outcome.BACKEND_ERROR, f"the engine redirects ({head.status})"
        elif scanner is None:
            exchange.outcome, exchange.ending = Outcome.OK, Ending.MEASURED
            exchange.usage, exchange.finish_reason = read_answer(exchange.endpoint, body)
        else:
            self._take_counts(scanner)
            if scanner.error is not None:
                exchange.outcome, exchange.ending = Outcome.BACKEND_ERROR, Ending.DROPPED
                exchange.upstream_error, exchange.detail = UpstreamError.STREAM_ERROR, scanner.error.message
            else:
                exchange.outcome, exchange.ending = Outcome.OK, Ending.MEASURED
                if self._pace is not None and scanner.usage is not None:
                    self._pace.ended(scanner.tokens, scanner.usage.completion_tokens)

    def _judge_error(self, status: int, body: bytes) -> None:
        exchange = self._exchange
        seen = errors.parse_error(body)
        exchange.detail = seen.message if seen is not None else f"the engine answered {status}"
        if status >= 500 or status == 429:
            exchange.outcome, exchange.ending = Outcome.BACKEND_ERROR, Ending.DROPPED
            exchange.upstream_error = UpstreamError.HTTP_5XX if status >= 500 else UpstreamError.HTTP_4XX
        else:
            exchange.outcome, exchange.ending = Outcome.INVALID, Ending.IGNORED

    def _take_counts(self, scanner: StreamScanner) -> None:
        exchange = self._exchange
        exchange.usage = scanner.usage
        exchange.finish_reason = scanner.finish_reason
        exchange.token_events = scanner.tokens

    def _wait(self, seconds: float) -> None:
        """Look at the clock again in so many seconds."""
        assert self._connection is not None
        self._connection.remind(seconds, self._look_at_the_clock)

    def _look_at_the_clock(self) -> None:
        """End an attempt whose backend fell silent; set the timer anew when it did not."""
        assert self._done is not None
        assert self._connection is not None
        patience, now = self._patience, time.monotonic()
        heard = max(self._last_read, self._last_token)
        if heard:
            progress = max(self._progress, self._last_token)
            until, what = progress + patience.idle_s, f"silent, or within one event, for {patience.idle_s:g} s"
        else:
            sent = self._exchange.sent or now
            until, what = sent + patience.first_byte_s, f"no first byte within {patience.first_byte_s:g} s"
        if self._connection.paused:
            if self._stalled_at == heard:
                self.stop(Stopped.CLIENT_STALLED)
                return
            self._stalled_at, until = heard, now + patience.idle_s
        if until > now:
            self._wait(until - now)
            return
        self._connection.abort()
        self._exchange.answered = now
        self._give_up(Broken(UpstreamError.TIMEOUT, what))
