"""Between the driver and a socket: what one request's sequences say goes out as a stream, or is kept for a document."""

import asyncio
from typing import Protocol

from loadgen.sim.http_answers import Count, EventWriter, Finish, Label, Said, whole
from loadgen.sim.http_requests import Job
from loadgen.sim.ledger import Meter
from loadgen.sim.speech import Speech
from loadgen.sim.text import Spoken

_HIGH_WATER = 64 * 1024
"""Bytes in the socket's buffer above which tokens are kept back, to go out later as one event."""


class Reply(Protocol):
    """Takes the tokens of all sequences of one request."""

    count: Count

    def token(self, index: int, word: Spoken, finish: Finish | None) -> None:
        """Take one token of the sequence `index`; `finish` comes with its last."""


class Voiced:
    """One sequence of a request, as the driver sees it: turns "one more token" into a word for the reply."""

    __slots__ = ("_block_tokens", "_index", "_prompt_tokens", "_reply", "_speech")

    def __init__(self, reply: Reply, index: int, speech: Speech, prompt_tokens: int, block_tokens: int) -> None:
        self._reply = reply
        self._index = index
        self._speech = speech
        self._prompt_tokens = prompt_tokens
        self._block_tokens = block_tokens

    def admitted(self, cached_tokens: int) -> None:
        """Count what the prefix cache held and what it holds now."""
        count = self._reply.count
        count.cached += cached_tokens
        count.created += max(0, self._prompt_tokens // self._block_tokens * self._block_tokens - cached_tokens)

    def token(self, *, last: bool) -> None:
        """Say the next word."""
        finish = Finish(self._speech.finish_reason, self._speech.stop_reason) if last else None
        self._reply.count.completion += 1
        self._reply.token(self._index, self._speech.next(), finish)

    @property
    def finish_reason(self) -> str:
        """Why the sequence ends, for the metrics."""
        return self._speech.finish_reason


class WholeReply:
    """Keeps what is said until the request is done.

    Attributes:
        done: resolved when the last sequence has finished.
    """

    def __init__(self, job: Job, label: Label, count: Count) -> None:
        self.count = count
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._job = job
        self._label = label
        self._said = [Said() for _ in range(len(job.prompts) * job.n)]
        self._open = len(self._said)

    def token(self, index: int, word: Spoken, finish: Finish | None) -> None:
        """Keep one token."""
        said = self._said[index]
        said.words.append(word.text)
        said.ids.append(word.id)
        if finish is not None:
            said.finish = finish
            self._open -= 1
            if not self._open and not self.done.done():
                self.done.set_result(None)

    def document(self) -> bytes:
        """Return the whole answer."""
        return whole(self._job, self._label, self.count, self._said)


class _Held:
    """Tokens of one sequence that are not on the wire yet."""

    __slots__ = ("finish", "ids", "words")

    def __init__(self) -> None:
        self.words: list[str] = []
        self.ids: list[int] = []
        self.finish: Finish | None = None


class StreamReply:
    """Writes each token to the socket in the step that made it, past the response's writer.

    The bytes go straight to the transport: no coroutine wakes for a token, and all events of one step leave in one
    system call. Tokens made before the head is out, or while the reader is slow, are kept and go out as one event.

    Args:
        job: the request.
        label: what every event repeats.
        count: its tokens.
        meter: told all body bytes that are written; None: nobody asks.

    Attributes:
        done: resolved when the last sequence has finished.
    """

    def __init__(self, job: Job, label: Label, count: Count, meter: Meter | None = None) -> None:
        self.count = count
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._meter = meter
        self._writer = EventWriter(job, label, count)
        self._held = [_Held() for _ in range(len(job.prompts) * job.n)]
        self._open = len(self._held)
        self._transport: asyncio.WriteTransport | None = None
        self._framed = True

    def attach(self, transport: asyncio.WriteTransport, *, framed: bool) -> None:
        """Begin to write: the head is out.

        Args:
            transport: of the client's connection.
            framed: chunked transfer coding; without it the end of the connection ends the stream.
        """
        self._transport = transport
        self._framed = framed
        self._flush_all()

    def token(self, index: int, word: Spoken, finish: Finish | None) -> None:
        """Write one token, or keep it back."""
        held, transport = self._held[index], self._transport
        if finish is None and transport is not None and not held.ids and self._takes(transport):
            event = self._writer.plain(index, word.text)
            if event is not None:
                if self._meter is not None:
                    self._meter.add(event)
                transport.write(_frame(event) if self._framed else event)
                return
        held.words.append(word.text)
        held.ids.append(word.id)
        if finish is not None:
            held.finish = finish
            self._open -= 1
        if not self._open:
            self._flush_all()
        elif transport is not None and self._takes(transport):
            self._write(self._events(index))

    @staticmethod
    def _takes(transport: asyncio.WriteTransport) -> bool:
        return transport.get_write_buffer_size() <= _HIGH_WATER and not transport.is_closing()

    def _flush_all(self) -> None:
        """Write everything kept back, and the end when it has come."""
        if self._transport is None:
            return
        events = [event for index in range(len(self._held)) for event in self._events(index)]
        if not self._open:
            events += self._writer.end()
            if not self.done.done():
                self.done.set_result(None)
        self._write(events)

    def _events(self, index: int) -> list[bytes]:
        held = self._held[index]
        if not held.ids:
            return []
        self._held[index] = _Held()
        return self._writer.token(index, "".join(held.words), held.ids, held.finish)

    def _write(self, events: list[bytes]) -> None:
        if events and self._transport is not None and not self._transport.is_closing():
            if self._meter is not None:
                self._meter.add(b"".join(events))
            self._transport.write(b"".join(map(_frame, events) if self._framed else events))


def _frame(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)
