"""A scripted upstream on a real socket: it does exactly what a test says, and writes down every byte it got.

A script is an async function that gets the request (`Received`) and the connection it came on (`Peer`). What a real
engine would never do on purpose (fall silent, close inside a chunk, send garbage) is one line in a script.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Self

PATIENCE_S = 5.0
"""How long a test waits for something that must happen; never waited for when it does."""


@dataclass
class Received:
    """One request as it came."""

    raw: bytes
    head: bytes
    body: bytes
    connection: int = 0
    """Which connection it came on, counting from 0."""
    nth: int = 0
    """Which request of that connection it is, counting from 0."""

    @property
    def line(self) -> str:
        return self.head.split(b"\r\n", 1)[0].decode("latin-1")

    @property
    def method(self) -> str:
        return self.line.split(" ")[0]

    @property
    def path(self) -> str:
        return self.line.split(" ")[1]

    @property
    def headers(self) -> list[tuple[str, str]]:
        lines = self.head.rstrip(b"\r\n").split(b"\r\n")[1:]
        pairs = (line.decode("latin-1").split(":", 1) for line in lines)
        return [(name.lower(), value.strip()) for name, value in pairs]

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name.lower()), None)

    @property
    def json(self):
        return json.loads(self.body)


class Peer(asyncio.Protocol):
    """One connection of the proxy to the engine."""

    def __init__(self, engine: "Engine") -> None:
        self.engine = engine
        self.number = -1
        self.gone = asyncio.Event()
        """The proxy closed the connection, or we did."""
        self.buffer = b""
        self.count = 0
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.tasks: list[asyncio.Task[None]] = []
        self.transport: asyncio.Transport

    def connection_made(self, transport) -> None:
        self.transport = transport
        self.engine.connections.add(self)

    def connection_lost(self, exc) -> None:
        self.engine.connections.discard(self)
        self.gone.set()
        self.flowing.set()

    def pause_writing(self) -> None:
        self.flowing.clear()

    def resume_writing(self) -> None:
        self.flowing.set()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (request := self._one_request()) is not None:
            if request.header("x-forwarded-for") is None:  # a probe of the proxy's own, no client behind it
                self.engine.probed(self, request)
                continue
            if self.number < 0:
                self.number = len(self.engine.peers)
                self.engine.peers.append(self)
            request.connection, request.nth = self.number, self.count
            self.count += 1
            self.engine.requests.append(request)
            self.engine.arrived.set()
            self.tasks.append(asyncio.ensure_future(self._serve(request)))

    def _one_request(self) -> Received | None:
        head, mark, rest = self.buffer.partition(b"\r\n\r\n")
        if not mark:
            return None
        request = Received(head + mark, head + mark, b"")
        length = int(request.header("content-length") or 0)
        if len(rest) < length:
            return None
        request.body = rest[:length]
        request.raw = request.head + request.body
        self.buffer = rest[length:]
        return request

    async def _serve(self, request: Received) -> None:
        try:
            await self.engine.script(request, self)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self.engine.errors.append(error)
            raise

    def send(self, data: bytes) -> None:
        """Write bytes as they are, when the connection is still there."""
        if not self.transport.is_closing():
            self.transport.write(data)

    def close(self) -> None:
        """Send what is buffered, then FIN."""
        self.transport.close()

    def reset(self) -> None:
        """Close without sending what is buffered."""
        self.transport.abort()

    def chunk(self, payload: bytes) -> None:
        self.send(b"%x\r\n%b\r\n" % (len(payload), payload))

    def stream_head(self, content_type: bytes = b"text/event-stream; charset=utf-8", extra: bytes = b"") -> None:
        self.send(
            b"HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 12:00:00 GMT\r\nserver: uvicorn\r\ncontent-type: "
            + content_type
            + b"\r\ntransfer-encoding: chunked\r\n"
            + extra
            + b"\r\n"
        )

    def answer(
        self,
        body: bytes,
        status: bytes = b"200 OK",
        content_type: bytes = b"application/json",
        extra: bytes = b"",
    ) -> None:
        self.send(
            b"HTTP/1.1 %b\r\ndate: Mon, 30 Nov 2026 12:00:00 GMT\r\nserver: uvicorn\r\ncontent-length: %d\r\n"
            b"content-type: %b\r\n%b\r\n%b" % (status, len(body), content_type, extra, body)
        )


Script = Callable[[Received, Peer], Awaitable[None]]


@dataclass
class Engine:
    """A listening socket on loopback that runs `script` for every request that a client sent through the proxy.

    The proxy's own probes are answered like a healthy vLLM and leave no trace.
    """

    script: Script
    models: tuple[str, ...] = ("tiny",)
    requests: list[Received] = field(default_factory=list)
    peers: list[Peer] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    connections: set[Peer] = field(default_factory=set)
    port: int = 0

    async def __aenter__(self) -> Self:
        self.arrived = asyncio.Event()
        self.server = await asyncio.get_running_loop().create_server(lambda: Peer(self), "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc) -> None:
        await self.stop()
        assert self.errors == []

    async def stop(self) -> None:
        """Stop listening and drop every connection: the engine is dead."""
        self.server.close()
        tasks = [task for peer in self.peers for task in peer.tasks]
        left = list(self.connections)
        for peer in left:
            peer.transport.abort()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for peer in left:
            await peer.gone.wait()

    def probed(self, peer: Peer, request: Received) -> None:
        """Answer a probe."""
        listed = [{"id": name, "object": "model", "max_model_len": 16384} for name in self.models]
        bodies = {"/v1/models": {"object": "list", "data": listed}, "/version": {"version": "0.23.0"}}
        peer.answer(json.dumps(bodies[request.path]).encode() if request.path in bodies else b"")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def request(self, number: int = 0) -> Received:
        """The request with this number, once it has arrived."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.requests) <= number:
                self.arrived.clear()
                await self.arrived.wait()
        return self.requests[number]

    @property
    def open_peers(self) -> list[Peer]:
        return [peer for peer in self.peers if not peer.gone.is_set()]


# What a healthy engine answers.
def event(document) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def chat_chunk(text: str | None, finish: str | None = None, *, role: bool = False) -> bytes:
    delta = {"role": "assistant", "content": ""} if role else {} if text is None else {"content": text}
    return event(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "tiny",
            "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}],
        }
    )


def usage_chunk(prompt: int, output: int, cached: int | None = None) -> bytes:
    usage = {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    return event(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "tiny",
            "choices": [],
            "usage": usage,
        }
    )


DONE = b"data: [DONE]\n\n"


def chat_events(words=("Hello", " big", " world"), *, usage: bool = False, prompt: int = 7) -> list[bytes]:
    """The events of one chat stream."""
    events = [chat_chunk(None, role=True), *(chat_chunk(word) for word in words), chat_chunk(None, "stop")]
    return [*events, *([usage_chunk(prompt, len(words))] if usage else []), DONE]


def chat_answer(text: str = "Hello", prompt: int = 7, output: int = 3) -> bytes:
    """The body of one chat answer that is not streamed."""
    return json.dumps(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "tiny",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text},
                    "logprobs": None,
                    "finish_reason": "stop",
                }
            ],
            "usage": {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output},
        }
    ).encode()


MODELS = json.dumps({"object": "list", "data": [{"id": "tiny", "object": "model", "max_model_len": 16384}]}).encode()


def wants_usage(request: Received) -> bool:
    return bool((request.json.get("stream_options") or {}).get("include_usage"))


async def healthy(request: Received, peer: Peer) -> None:
    """Answer like vLLM."""
    if request.method == "GET":
        peer.answer(MODELS if request.path.startswith("/v1/models") else b"")
    elif request.json.get("stream"):
        peer.stream_head()
        for item in chat_events(usage=wants_usage(request)):
            peer.chunk(item)
        peer.send(b"0\r\n\r\n")
    else:
        peer.answer(chat_answer())


async def silent(request: Received, peer: Peer) -> None:
    """Take the request and never answer."""


def raw(data: bytes, *, close: bool = False) -> Script:
    """Answer with these bytes, whatever was asked."""

    async def script(request: Received, peer: Peer) -> None:
        peer.send(data)
        if close:
            peer.close()

    return script


def gated(gate: asyncio.Event, inner: Script = healthy) -> Script:
    """Answer once the gate is open."""

    async def script(request: Received, peer: Peer) -> None:
        await gate.wait()
        await inner(request, peer)

    return script
