"""The built-in endpoint of the self-certificate: answers every request by a fixed schedule and stamps what it did.

It is an ordinary server (aiohttp on uvloop) in a process of its own, and stamps as servers do: when its handler is
entered, and when the write of the first token returns. What it took to read the request's head before that is stamped
too, so that it can be told from what the generator did. `perf_counter_ns` is one clock for all processes on Linux.

It is no engine: there is no queue in it and no prefill. Its tokens are due at arrival + TTFT + i * gap, counted from
the arrival alone, so that a late one delays none after it.
"""

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter_ns, process_time
from typing import Any

import orjson
import uvloop
from aiohttp import web

TTFT_NS = 50_000_000
"""From the arrival of a request's head to its first token."""
GAP_NS = 20_000_000
"""Between tokens of an answer that is short enough."""
LONGEST_STREAM_S = 0.5
"""A longer answer has smaller gaps, so that its tokens a second weigh what they weigh in the run, in less time."""
_LONGEST_BODY = 1 << 30
_TOKENS = re.compile(rb'"max_(?:completion_)?tokens": *(\d+)')
_NUMBER = re.compile(r"(\d+)$")
_HEADERS = {"Content-Type": "text/event-stream"}

Stamp = tuple[int, int, int, int]
"""Number of the request; when bytes of its head were read, its handler was entered, the first token's write returned;
nanoseconds."""


@dataclass(slots=True)
class Stamps:
    """What the endpoint did."""

    taken: list[Stamp] = field(default_factory=list)
    began_ns: int = 0
    """First request."""
    used_s: float = 0.0
    """CPU time until then, seconds."""

    def began(self, now_ns: int) -> None:
        """Note the first request."""
        if not self.began_ns:
            self.began_ns, self.used_s = now_ns, process_time()

    def document(self) -> dict[str, Any]:
        """Return what the generator is told at the end."""
        passed_s = (perf_counter_ns() - self.began_ns) / 1e9
        return {"stamps": self.taken, "busy": (process_time() - self.used_s) / passed_s if self.began_ns else 0.0}


def _chunk(text: str, finish: str) -> bytes:
    choice = f'{{"index":0,{text},"finish_reason":{finish}}}'
    return f'data: {{"id":"c","object":"text_completion","model":"m","choices":[{choice}]}}\n\n'.encode()


_TEXTS = {True: '"delta":{"content":" a"}', False: '"text":" a"'}
_TOKEN = {chat: _chunk(text, "null") for chat, text in _TEXTS.items()}
_LAST = {chat: _chunk(text, '"length"') for chat, text in _TEXTS.items()}


def _end(tokens: int) -> bytes:
    usage = f'{{"prompt_tokens":1,"completion_tokens":{tokens}}}'
    return f'data: {{"choices":[],"usage":{usage}}}\n\ndata: [DONE]\n\n'.encode()


class Reading(web.RequestHandler):
    """A connection of the server that stamps what it reads before it reads it."""

    __slots__ = ("read_ns",)

    def data_received(self, data: bytes) -> None:
        """Stamp, and read; called by the event loop."""
        self.read_ns = perf_counter_ns()
        super().data_received(data)


def handler_of(stamps: Stamps, longest_s: float) -> Callable[[web.Request], Any]:
    """Return the handler of both paths.

    Args:
        stamps: take what it does.
        longest_s: of an answer after its first token, seconds.
    """
    longest_ns = round(longest_s * 1e9)

    async def answer(request: web.Request) -> web.StreamResponse:
        entered_ns = perf_counter_ns()
        stamps.began(entered_ns)
        assert isinstance(request.protocol, Reading)
        read_ns = min(request.protocol.read_ns, entered_ns)
        body = await request.read()
        number = _NUMBER.search(request.headers.get("X-Request-Id", ""))
        if number is None:
            return web.Response(status=400)
        asked, chat = _TOKENS.search(body), "/chat/" in request.path
        tokens = max(1, int(asked[1]) if asked else 1)
        response = web.StreamResponse(headers=_HEADERS)
        await response.prepare(request)
        await _until(entered_ns + TTFT_NS)
        await response.write((_LAST if tokens == 1 else _TOKEN)[chat])
        stamps.taken.append((int(number[1]), read_ns, entered_ns, perf_counter_ns()))
        await _rest(response, entered_ns + TTFT_NS, tokens, max(1, min(GAP_NS, longest_ns // tokens)), chat=chat)
        await response.write(_end(tokens))
        return response

    return answer


async def _until(due_ns: int) -> None:
    if (left := due_ns - perf_counter_ns()) > 0:
        await asyncio.sleep(left / 1e9)


async def _rest(response: web.StreamResponse, first_ns: int, tokens: int, gap_ns: int, *, chat: bool) -> None:
    """Write every token after the first when it is due, and with it whatever is due by then."""
    sent = 1
    while sent < tokens:
        await _until(first_ns + sent * gap_ns)
        due = min(tokens, max(sent + 1, (perf_counter_ns() - first_ns) // gap_ns + 1))
        plain = due - sent - (due == tokens)
        await response.write(_TOKEN[chat] * plain + (_LAST[chat] if due == tokens else b""))
        sent = due


def _leave_the_generators_core() -> None:
    """Run on other cores than those the generator was pinned to, where there are any: the engine is elsewhere too."""
    with contextlib.suppress(OSError):
        others = set(range(os.cpu_count() or 1)) - os.sched_getaffinity(0)
        if others:
            os.sched_setaffinity(0, others)


async def _serve(longest_s: float) -> None:
    """Say the port on stdout, serve until stdin ends, then write what was done as JSON."""
    stamps = Stamps()
    loop = asyncio.get_running_loop()
    application = web.Application(client_max_size=_LONGEST_BODY)
    answer = handler_of(stamps, longest_s)
    application.router.add_post("/v1/completions", answer)
    application.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(application, access_log=None, handle_signals=False)
    await runner.setup()
    manager = runner.server
    assert manager is not None
    server = await loop.create_server(lambda: Reading(manager, loop=loop), "127.0.0.1", 0, backlog=4096)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await loop.run_in_executor(None, sys.stdin.read)
    said = orjson.dumps(stamps.document())
    server.close()
    sys.stdout.buffer.write(said)
    sys.stdout.flush()


if __name__ == "__main__":
    _leave_the_generators_core()
    uvloop.run(_serve(float(sys.argv[1])))
