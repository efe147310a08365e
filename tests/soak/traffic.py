"""The clients of a soak: each request is one of a few kinds, drawn by seed, and is counted for what it must leave."""

import asyncio
import contextlib
import json
import random
import socket
from collections import Counter
from dataclasses import dataclass, field

from tests.faults import wire
from tests.faults.raw_recipes import RECIPES

KINDS = {
    "stream": 50,
    "whole": 12,
    "leaves": 14,
    "slow reader": 4,
    "half a body": 3,
    "no JSON": 4,
    "another path": 3,
    "models": 4,
    "bad bytes": 6,
}
"""How often each kind comes, of a hundred."""
PATIENCE_S = 90.0
LONG_OUTPUT = 600
"""Tokens that a slow reader asks for; some engines answer that with megabytes."""
PROMPTS = 100
"""Beginnings of prompts. They repeat, so that memories which are bounded by a number (prefix blocks, refused requests)
are full after the warm-up: what grows from then on is a leak."""
_LARGE = ("052", "083", "131", "133", "171", "198")
_BAD = sorted(number for number in RECIPES if number not in _LARGE)
"""Raw inputs that are sent; those of many bytes are left out, which would be most of the traffic."""
_WORD = "lorem ipsum dolor sit amet consetetur "


@dataclass
class Count:
    """What the clients did and saw."""

    sent: Counter[str] = field(default_factory=Counter)
    """Requests by kind."""
    ids: dict[str, bool] = field(default_factory=dict)
    """Ids of well-formed requests, and whether the proxy must have seen the request: one that left at once may not
    have been read."""
    statuses: Counter[str] = field(default_factory=Counter)
    """Answers by status; `cut` for one that was not whole, `none` for none at all."""
    looked_whole: int = 0
    """Streams that ended cleanly without finish reason: a truncated one must never do so."""
    late: int = 0
    """Requests that got no end within the patience of their client."""


class Traffic:
    """Sends requests to one proxy.

    Args:
        port: of its data listener.
        seed: decides kinds, lengths and pauses.
        name: the ids of its requests begin with it.
    """

    def __init__(self, port: int, seed: int, name: str = "soak") -> None:
        self._port = port
        self._name = name
        self._rng = random.Random(seed)
        self.count = Count()

    async def one(self) -> None:
        """Send one request of a kind that is drawn, and see it to its end."""
        kind = self._rng.choices(list(KINDS), list(KINDS.values()))[0]
        self.count.sent[kind] += 1
        client = await wire.Client.connect(self._port)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await _KINDS[kind](self, client)
        except TimeoutError:
            self.count.late += 1
        except OSError:
            self.count.statuses["none"] += 1
        finally:
            client.reset()

    async def _stream(self, client: wire.Client) -> None:
        client.send(self._request(stream=True))
        self._note(await client.read_answer(PATIENCE_S), stream=True)

    async def _whole(self, client: wire.Client) -> None:
        client.send(self._request(stream=False))
        self._note(await client.read_answer(PATIENCE_S))

    async def _leaves(self, client: wire.Client) -> None:
        pause = self._rng.expovariate(4.0)
        client.send(self._request(stream=self._rng.random() < 0.8, sure=pause > 0.1))
        await client.read_some(pause)

    async def _slow_reader(self, client: wire.Client) -> None:
        await asyncio.sleep(0)
        client.reset()
        with socket.socket() as narrow:
            narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            narrow.setblocking(False)
            await asyncio.get_running_loop().sock_connect(narrow, (wire.HOST, self._port))
            reader, writer = await asyncio.open_connection(sock=narrow.dup(), limit=1024)
            writer.write(self._request(stream=True, output=LONG_OUTPUT))
            for _ in range(self._rng.randint(5, 60)):
                if not await reader.read(2048):
                    break
                await asyncio.sleep(0.1)
            writer.transport.abort()

    async def _half(self, client: wire.Client) -> None:
        whole = self._request(stream=True)
        client.send(whole[: -self._rng.randint(1, 200)])
        await asyncio.sleep(self._rng.random())

    async def _no_json(self, client: wire.Client) -> None:
        body = self._rng.choice([b"{", b"[]", b"null", b'{"model":"m"', b"\xff\xfe", b'{"a":NaN}'])
        client.send(wire.request(body=body, headers=(self._id(),)))
        self._note(await client.read_answer(PATIENCE_S))

    async def _another_path(self, client: wire.Client) -> None:
        path = self._rng.choice(["/metrics", "/v1/../metrics", "/sleep", "/", "/v1/nothing"])
        client.send(wire.request(path=path, method="GET", headers=(self._id(),)))
        self._note(await client.read_answer(PATIENCE_S))

    async def _models(self, client: wire.Client) -> None:
        client.send(wire.request(path="/v1/models", method="GET", headers=(self._id(),)))
        self._note(await client.read_answer(PATIENCE_S))

    async def _bad_bytes(self, client: wire.Client) -> None:
        data = RECIPES[self._rng.choice(_BAD)]()
        if self._rng.random() < 0.5:
            at = self._rng.randrange(len(data))
            data = data[:at] + self._rng.randbytes(self._rng.randint(1, 8)) + data[at + self._rng.randint(0, 4) :]
        client.send(data)
        await client.read_some(0.5)

    def _id(self, *, sure: bool = True) -> str:
        name = f"{self._name}-{len(self.count.ids)}"
        self.count.ids[name] = sure
        return f"X-Request-Id: {name}"

    def _request(self, *, stream: bool, output: int | None = None, sure: bool = True) -> bytes:
        words = self._rng.choices([20, 200, 2_000, 12_000], [60, 25, 12, 3])[0]
        content = f"{self._rng.randrange(PROMPTS)} " + _WORD * (words // 6)
        document = {
            "model": "8b",
            "messages": [{"role": "user", "content": content}],
            "max_tokens": output or self._rng.choice([1, 8, 32, 128]),
            "stream": stream,
        }
        return wire.request(document, headers=(self._id(sure=sure),))

    def _note(self, talk: wire.Talk, *, stream: bool = False) -> None:
        answer = talk.answer
        if answer.status == 0:
            self.count.statuses["none"] += 1
        elif not answer.complete:
            self.count.statuses["cut"] += 1
        else:
            self.count.statuses[str(answer.status)] += 1
            if stream and answer.status == 200 and not _finished(answer.body):
                self.count.looked_whole += 1


def _finished(body: bytes) -> bool:
    """Whether a stream says why it ended."""
    for line in reversed(body.split(b"\n")):
        if line.startswith(b"data: {"):
            with contextlib.suppress(ValueError):
                document = json.loads(line[6:])
                if any(choice.get("finish_reason") for choice in document.get("choices", ())):
                    return True
    return False


_KINDS = {
    "stream": Traffic._stream,
    "whole": Traffic._whole,
    "leaves": Traffic._leaves,
    "slow reader": Traffic._slow_reader,
    "half a body": Traffic._half,
    "no JSON": Traffic._no_json,
    "another path": Traffic._another_path,
    "models": Traffic._models,
    "bad bytes": Traffic._bad_bytes,
}
