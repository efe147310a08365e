"""A request of our own to an engine, beside those of clients: its answer is small and is kept whole."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from proxy.exchange import UpstreamError
from proxy.upstream.connection import Broken, Connection
from proxy.upstream.head import Head
from proxy.wire.retryafter import retry_after_s

LARGEST_ANSWER = 32 * 1024 * 1024
"""Bytes. The ids of a million tokens are about eight."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer of an engine."""

    status: int
    body: bytes
    retry_after_s: float | None = None
    """How long the engine asks to be left alone; None: it does not say."""


class Call:
    """Sends one request and receives its answer. If the caller is cancelled, the engine sees the connection close."""

    __slots__ = ("_body", "_connection", "_done", "_head", "_size")

    on_chunk = None

    def __init__(self) -> None:
        self._connection: Connection | None = None
        self._done: asyncio.Future[Answer | Broken | None] | None = None
        self._head: Head | None = None
        self._body: list[bytes] = []
        self._size = 0

    async def run(self, connection: Connection, parts: Iterable[bytes], patience_s: float) -> Answer | Broken | None:
        """Send the request and wait for the whole answer.

        Args:
            connection: warm or new.
            parts: head and body of the request.
            patience_s: for the whole answer.

        Returns:
            The answer, what broke it, or None when `stop` ended it.
        """
        loop = asyncio.get_running_loop()
        self._connection = connection
        done: asyncio.Future[Answer | Broken | None] = loop.create_future()
        self._done = done
        late = Broken(UpstreamError.TIMEOUT, f"no answer within {patience_s:g} s")
        timer = loop.call_later(patience_s, self._finish, late)
        try:
            connection.send(parts, self)
            result = await done
        finally:
            timer.cancel()
            if self._connection is not None:
                connection.abort()  # its answer is not whole
                self._connection = None
        return result

    def stop(self) -> None:
        """End the call from our side."""
        self._finish(None)

    # What the connection calls.
    def cork(self) -> None:
        """Nothing is written on."""

    def flush(self) -> None:
        """Nothing is written on."""

    def on_head(self, head: Head) -> None:
        """Keep the head."""
        self._head = head

    def on_body(self, wire: bytes, payload: bytes) -> None:  # noqa: ARG002 - the receivers have one signature
        """Keep a piece of the body."""
        self._size += len(payload)
        self._body.append(payload)
        if self._size > LARGEST_ANSWER:
            self._finish(Broken(UpstreamError.PROTOCOL, f"the answer is longer than {LARGEST_ANSWER} bytes"))

    def on_end(self) -> None:
        """Take the answer for whole. The connection already belongs to somebody else."""
        assert self._head is not None
        self._connection = None
        asked = retry_after_s(self._head.get(b"retry-after"), self._head.get(b"retry-after-ms"))
        self._finish(Answer(self._head.status, b"".join(self._body), asked))

    def on_broken(self, broken: Broken) -> None:
        """Give the answer up."""
        self._connection = None
        self._finish(broken)

    def _finish(self, result: Answer | Broken | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(result)
