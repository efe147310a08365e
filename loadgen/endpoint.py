"""The built-in endpoint of the self-certificate: answers every request by a fixed schedule and stamps what it did.

It runs in a process of its own and takes its stamps with `perf_counter_ns`, which on Linux is one clock for all
processes. It is no engine: there is no queue in it and no prefill. Its tokens are due at arrival + TTFT + i * gap,
counted from the arrival alone, so that a late one delays none after it.
"""

import asyncio
import re
import sys
from time import perf_counter_ns
from typing import cast

import orjson
import uvloop

TTFT_NS = 50_000_000
"""From the arrival of a request's head to its first token."""
GAP_NS = 20_000_000
"""Between tokens of an answer that is short enough."""
LONGEST_STREAM_NS = 500_000_000
"""A longer answer has smaller gaps, so that its tokens a second weigh what they weigh in the run, in less time."""
_REFUSED = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_ID = re.compile(rb"\r\nx-request-id: *\S*?(\d+)\r\n", re.IGNORECASE)
_TOKENS = re.compile(rb'"max_(?:completion_)?tokens": *(\d+)')

Stamp = tuple[int, int, int]
"""Number of the request, arrival of its head, return of the first token's write; nanoseconds."""


def _framed(event: str) -> bytes:
    data = f"data: {event}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


def _chunk(text: str, finish: str) -> str:
    return (
        f'{{"id":"c","object":"text_completion","model":"m","choices":[{{"index":0,{text},"finish_reason":{finish}}}]}}'
    )


_TEXTS = {True: '"delta":{"content":" a"}', False: '"text":" a"'}
_TOKEN = {chat: _framed(_chunk(text, "null")) for chat, text in _TEXTS.items()}
_LAST = {chat: _framed(_chunk(text, '"length"')) for chat, text in _TEXTS.items()}


class Answering(asyncio.Protocol):
    """One connection; requests on it come one after another."""

    def __init__(self, stamps: list[Stamp]) -> None:
        self._stamps = stamps
        self._transport: asyncio.WriteTransport | None = None
        self._head = b""
        self._body: list[bytes] = []
        self._missing = 0
        self._arrived_ns = 0
        self._number = self._sent = self._tokens = self._gap_ns = 0
        self._chat = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport; called by the event loop."""
        self._transport = cast("asyncio.WriteTransport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Stop answering; called by the event loop."""
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request; called by the event loop."""
        now = perf_counter_ns()
        if self._missing:
            self._take(data)
            return
        self._head += data
        head, end, rest = self._head.partition(b"\r\n\r\n")
        if not end:
            return
        self._head, self._arrived_ns = b"", now
        length, number = _LENGTH.search(head), _ID.search(head + b"\r\n")
        if length is None or number is None:
            assert self._transport is not None
            self._transport.write(_REFUSED)
            self._transport.close()
            return
        self._chat = b"/chat/" in head.partition(b"\r\n")[0]
        self._missing, self._number = int(length[1]), int(number[1])
        self._take(rest)

    def _take(self, data: bytes) -> None:
        self._body.append(data)
        self._missing -= len(data)
        if self._missing <= 0:
            body, self._missing = b"".join(self._body), 0
            self._body.clear()
            self._begin(body)

    def _begin(self, body: bytes) -> None:
        asked = _TOKENS.search(body)
        self._sent, self._tokens = 0, max(1, int(asked[1]) if asked else 1)
        self._gap_ns = min(GAP_NS, LONGEST_STREAM_NS // self._tokens)
        self._wait()

    def _wait(self) -> None:
        due = self._arrived_ns + TTFT_NS + self._sent * self._gap_ns
        left = max(0.0, (due - perf_counter_ns()) / 1e9)
        self._timer = asyncio.get_running_loop().call_later(left, self._write)

    def _write(self) -> None:
        """Write what is due by now; a first token is written alone, so that its stamp is its own."""
        assert self._transport is not None
        if not self._sent:
            last = self._tokens == 1
            self._transport.write(_HEAD + (_LAST if last else _TOKEN)[self._chat])
            self._stamps.append((self._number, self._arrived_ns, perf_counter_ns()))
            self._sent = 1
        else:
            past = perf_counter_ns() - self._arrived_ns - TTFT_NS
            due = min(self._tokens, max(self._sent + 1, past // max(1, self._gap_ns) + 1))
            plain = due - self._sent - (due == self._tokens)
            self._transport.write(_TOKEN[self._chat] * plain + (_LAST[self._chat] if due == self._tokens else b""))
            self._sent = due
        if self._sent < self._tokens:
            self._wait()
        else:
            self._transport.write(self._end())

    def _end(self) -> bytes:
        usage = f'{{"choices":[],"usage":{{"prompt_tokens":1,"completion_tokens":{self._tokens}}}}}'
        return _framed(usage) + _framed("[DONE]") + b"0\r\n\r\n"


async def _serve() -> None:
    """Say the port on stdout, serve until stdin ends, then write every stamp as JSON."""
    stamps: list[Stamp] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Answering(stamps), "127.0.0.1", 0, backlog=4096)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()
    sys.stdout.buffer.write(orjson.dumps(stamps))
    sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(_serve())
