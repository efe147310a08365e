"""Two plain clients that the generator is held against: what they cost and misread is the machine's share.

- `wire`: uvloop alone; writes a fixed request, stamps the read that brings the first token, counts the rest unparsed.
  No client in Python does less.
- `bare`: aiohttp on uvloop with one `json.loads` for each data line: what a careful script would do.

`python -m tools.acceptance.generator_clients KIND URL --requests N --tokens N (--streams N | --rate R)` prints one JSON
document: the stamps of every request, the CPU time and the chunks. It stands alone, so that it shares no fault with
what it is held against.
"""

import argparse
import asyncio
import gc
import json
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

import aiohttp
import uvloop

_PROMPT = list(range(1000, 1064))
_LEAD_S = 0.1
_SPIN_S = 0.0015
_PATH = "/v1/completions"
_END = b"0\r\n\r\n"
_TOKEN = b'"text":"'


@dataclass(slots=True)
class Seen:
    """What a client saw: `perf_counter_ns` of each send and each first token, in the order of the first tokens."""

    sent_ns: list[int] = field(default_factory=list)
    first_ns: list[int] = field(default_factory=list)
    chunks: int = 0
    """Data lines, `[DONE]` not among them; bytes for `wire`, which counts nothing else."""
    began_ns: int = 0
    ended_ns: int = 0
    cpu_s: float = 0.0


def body_of(tokens: int) -> bytes:
    """Return the request body: 64 prompt tokens, and this many asked for."""
    asked = {"model": "mock", "prompt": _PROMPT, "stream": True, "max_tokens": tokens}
    return json.dumps(asked, separators=(",", ":")).encode()


class _Wire(asyncio.Protocol):
    """One connection of `wire`."""

    def __init__(self, seen: Seen, request: bytes, landed: Callable[["_Wire"], None]) -> None:
        self._seen = seen
        self._request = request
        self._landed = landed
        self._sent_ns = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def send(self) -> None:
        assert self._transport is not None
        self._sent_ns = time.perf_counter_ns()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter_ns()
        self._seen.chunks += len(data)
        if self._sent_ns and _TOKEN in data:
            self._seen.sent_ns.append(self._sent_ns)
            self._seen.first_ns.append(now)
            self._sent_ns = 0
        if data.endswith(_END):
            self._landed(self)


class _WireClient:
    """Sends requests on connections that are opened as they are needed."""

    def __init__(self, url: str, tokens: int, requests: int) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        head = f"POST {_PATH} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        body = body_of(tokens)
        self._request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        self._left = self._missing = requests
        self._idle: list[_Wire] = []
        self.seen = Seen()
        self._closed_loop = False
        self._over = asyncio.get_running_loop().create_future()

    async def _connected(self) -> _Wire:
        loop = asyncio.get_running_loop()
        made = await loop.create_connection(
            lambda: _Wire(self.seen, self._request, self._landed), self._host, self._port
        )
        return made[1]

    async def one(self) -> None:
        """Send one request."""
        connection = self._idle.pop() if self._idle else await self._connected()
        connection.send()

    async def closed(self, streams: int) -> None:
        """Keep this many in flight until all have been sent."""
        self._closed_loop = True
        first = [await self._connected() for _ in range(min(streams, self._left))]
        self._left -= len(first)
        for connection in first:
            connection.send()

    def _landed(self, connection: _Wire) -> None:
        self._missing -= 1
        if not self._missing:
            self._over.set_result(None)
        elif self._closed_loop and self._left:
            self._left -= 1
            connection.send()
        elif not self._closed_loop:
            self._idle.append(connection)

    async def over(self) -> None:
        """Wait for the last answer."""
        await self._over


async def _wire(asked: argparse.Namespace) -> Seen:
    client = _WireClient(asked.url, asked.tokens, asked.requests)
    if asked.streams:
        await client.closed(asked.streams)
    else:
        await _at_rate(asked, client.one)
    await client.over()
    return client.seen


async def _at_rate(asked: argparse.Namespace, send: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Start one request every 1/rate seconds; none waits for another."""
    loop = asyncio.get_running_loop()
    start = loop.time() + _LEAD_S
    tasks = []
    for number in range(asked.requests):
        due = start + number / asked.rate
        await asyncio.sleep(due - loop.time() - _SPIN_S)
        while loop.time() < due:  # noqa: ASYNC110  (uvloop's timers count whole milliseconds)
            await asyncio.sleep(0)
        tasks.append(loop.create_task(send()))
    await asyncio.gather(*tasks)


async def _bare(asked: argparse.Namespace) -> Seen:
    seen = Seen()
    url, body = asked.url + _PATH, body_of(asked.tokens)
    headers = {"Content-Type": "application/json"}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:

        async def one() -> None:
            sent, first = time.perf_counter_ns(), 0
            async with session.post(url, data=body, headers=headers) as answer:
                async for line in answer.content:
                    if not line.startswith(b"data: {"):
                        continue
                    document = json.loads(line[6:])
                    if document["choices"] and document["choices"][0]["text"]:
                        first = first or time.perf_counter_ns()
                    seen.chunks += 1
            seen.sent_ns.append(sent)
            seen.first_ns.append(first)

        left = asked.requests

        async def place() -> None:
            nonlocal left
            while left:
                left -= 1
                await one()

        if asked.streams:
            await asyncio.gather(*(place() for _ in range(asked.streams)))
        else:
            await _at_rate(asked, one)
    return seen


async def measured(asked: argparse.Namespace) -> Seen:
    """Send everything and return what was seen."""
    gc.collect()
    gc.freeze()
    began, used = time.perf_counter_ns(), time.process_time()
    seen = await (_wire if asked.kind == "wire" else _bare)(asked)
    seen.began_ns, seen.ended_ns = began, time.perf_counter_ns()
    seen.cpu_s = time.process_time() - used
    return seen


def main(arguments: list[str] | None = None) -> int:
    """Run one client."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("wire", "bare"))
    parser.add_argument("url", help="base URL")
    parser.add_argument("--requests", type=int, required=True, help="how many")
    parser.add_argument("--tokens", type=int, required=True, help="asked for by each")
    load = parser.add_mutually_exclusive_group(required=True)
    load.add_argument("--streams", type=int, help="closed loop: in flight at a time")
    load.add_argument("--rate", type=float, help="open loop: requests a second, evenly spaced")
    print(json.dumps(asdict(uvloop.run(measured(parser.parse_args(arguments))))))
    return 0


if __name__ == "__main__":
    main()
