"""The recording upstream: a lenient server on raw streams that writes down exactly what reached it.

It is lenient on purpose: whatever a proxy lets through must be seen, not refused. It sends `100 Continue` when asked,
answers HEAD without a body, lists model `m`, and otherwise does what its script says. Every request is kept with its
bytes and whether its body came whole.
"""

import asyncio
import contextlib
import itertools
import json
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Self

Fields = list[tuple[bytes, bytes]]
_LIMIT = 64 * 2**20
_PROBED = {"GET /health", "GET /metrics", "GET /version", "GET /v1/models"}
_COUNTED = "POST /tokenize"
"""The proxy asks this for itself, on a client's behalf; no case sends it."""


@dataclass
class Seen:
    """One request as it came."""

    line: str
    fields: Fields
    connection: "Connection"
    nth: int
    """Which request of its connection, counting from 0."""
    at: float = field(default_factory=time.monotonic)
    body: bytes = b""
    complete: bool = False
    trailers: bytes = b""

    @property
    def method(self) -> str:
        return self.line.split(" ")[0]

    @property
    def path(self) -> str:
        return self.line.split(" ")[1] if " " in self.line else ""

    def all(self, name: str) -> list[str]:
        """Every value of a header, in order."""
        return [value.decode("latin-1") for key, value in self.fields if key.lower() == name.lower().encode()]

    @property
    def document(self) -> Any:
        """The body as JSON; None when it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    @property
    def streams(self) -> bool:
        return isinstance(self.document, dict) and bool(self.document.get("stream"))

    def as_row(self) -> dict[str, Any]:
        """What the result table keeps of it."""
        return {
            "line": self.line[:120],
            "headers": sorted({key.decode("latin-1").lower() for key, _ in self.fields})[:40],
            "body_bytes": len(self.body),
            "complete": self.complete,
        }


class Connection:
    """One connection of the proxy, for scripts to write on."""

    def __init__(self, upstream: "Upstream", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number = next(upstream.numbers)
        self.upstream = upstream
        self.reader, self.writer = reader, writer
        self.gone = asyncio.Event()
        """The other side closed, or we did."""
        self.gone_at = 0.0

    async def send(self, data: bytes) -> None:
        """Write bytes as they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def chunk(self, payload: bytes) -> None:
        await self.send(b"%x\r\n%b\r\n" % (len(payload), payload))

    async def head(self, content_type: str = "text/event-stream; charset=utf-8", extra: bytes = b"") -> None:
        """Begin a chunked answer."""
        await self.send(
            b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n%b\r\n"
            % (content_type.encode(), extra)
        )

    async def answer(
        self, body: bytes, status: str = "200 OK", content_type: str = "application/json", extra: bytes = b""
    ) -> None:
        """Send a whole answer with a length."""
        await self.send(
            b"HTTP/1.1 %b\r\nserver: uvicorn\r\ncontent-type: %b\r\ncontent-length: %d\r\n%b\r\n%b"
            % (status.encode(), content_type.encode(), len(body), extra, body)
        )

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        self.writer.transport.abort()

    async def left(self, within: float) -> float | None:
        """Seconds until the other side closed; None when it did not within that time."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(within):
                await self.gone.wait()
        except TimeoutError:
            return None
        return self.gone_at - began


Script = Callable[[Seen, Connection], Awaitable[None]]


class Upstream:
    """A listening socket on loopback that runs a script for each request, and keeps them all."""

    def __init__(self, script: "Script | None" = None, *, port: int = 0, host: str = "127.0.0.1") -> None:
        self.script: Script = script or healthy
        self.host = host
        self.port = port
        self.seen: list[Seen] = []
        self.connections: list[Connection] = []
        self.numbers = itertools.count()
        self.probes: Script | None = None
        """Answers the proxy's own polls; None: a healthy engine."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, self.host, self.port, limit=_LIMIT, backlog=2048)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and drop every connection: the engine is dead."""
        if self._server is not None:
            self._server.close()
        for connection in self.connections:
            connection.reset()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def requests(self) -> list[Seen]:
        """What came for a client: everything but the proxy's own polls."""
        return [seen for seen in self.seen if not is_probe(seen)]

    async def arrival(self, number: int = 0, within: float = 10.0) -> Seen:
        """The request with that number, once it came."""
        async with asyncio.timeout(within):
            while len(self.requests) <= number:
                await asyncio.sleep(0.002)
        return self.requests[number]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(self, reader, writer)
        self.connections.append(connection)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(OSError, asyncio.CancelledError, asyncio.IncompleteReadError):
            await self._serve(connection)
        connection.gone_at = connection.gone_at or time.monotonic()
        connection.gone.set()
        writer.close()

    async def _serve(self, connection: Connection) -> None:
        """Read and answer one request after the other; while a script runs, watch for the end of the connection."""
        for nth in itertools.count():
            seen = await _read_request(connection, nth, self.seen)
            if seen is None:
                return
            script = (self.probes or healthy) if is_probe(seen) else self.script
            running = asyncio.ensure_future(script(seen, connection))
            try:
                await self._watch(connection, running)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
            if connection.writer.is_closing() or connection.gone.is_set():
                return

    @staticmethod
    async def _watch(connection: Connection, running: "asyncio.Future[None]") -> None:
        more = asyncio.ensure_future(_end_of(connection))
        await asyncio.wait({running, more}, return_when=asyncio.FIRST_COMPLETED)
        if more.done():
            connection.gone_at = time.monotonic()
            connection.gone.set()
        more.cancel()
        if running.done():
            with contextlib.suppress(OSError):
                running.result()


async def _end_of(connection: Connection) -> None:
    """Return when the other side has closed; what it sends meanwhile stays unread."""
    reader = connection.reader
    while not reader._eof and reader.exception() is None:
        await asyncio.sleep(0.004)


def is_probe(seen: Seen) -> bool:
    """Tell the proxy's own polls from what a client sent: a poll has no client behind it to be forwarded for."""
    asked = f"{seen.method} {seen.path}"
    return asked == _COUNTED or (asked in _PROBED and not seen.all("x-forwarded-for"))


async def _read_request(connection: Connection, nth: int, into: list[Seen]) -> Seen | None:
    head = b""
    while not head.endswith((b"\n\r\n", b"\n\n")) or not head.strip():
        part = await connection.reader.readline()
        head += part
        if not part.endswith(b"\n"):
            if head.strip():
                into.append(Seen("INCOMPLETE HEAD " + repr(head[:200]), [], connection, nth))
            return None
    line, _, rest = head.lstrip().partition(b"\n")
    seen = Seen(line.rstrip(b"\r").decode("latin-1"), _fields(rest), connection, nth)
    into.append(seen)
    if "100-continue" in ",".join(seen.all("expect")).lower():
        await connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
    try:
        await _read_body(connection.reader, seen)
    except asyncio.IncompleteReadError as error:
        seen.body += error.partial
        return None
    except ValueError:
        return None
    seen.complete = True
    return seen


def _fields(block: bytes) -> Fields:
    lines = [line.rstrip(b"\r") for line in block.split(b"\n")]
    pairs = (line.partition(b":") for line in lines if line)
    return [(name, value.strip()) for name, _, value in pairs]


async def _read_body(reader: asyncio.StreamReader, seen: Seen) -> None:
    if "chunked" in ",".join(seen.all("transfer-encoding")).lower():
        while True:
            size = int((await reader.readuntil(b"\n")).split(b";")[0].strip() or b"0", 16)
            if size == 0:
                break
            seen.body += (await reader.readexactly(size + 2))[:-2]
        while (line := await reader.readuntil(b"\n")).strip():
            seen.trailers += line
        return
    length = re.sub(r"\D", "", (seen.all("content-length") or ["0"])[0])
    seen.body = await reader.readexactly(int(length or 0))


# What a healthy engine answers.
MODELS = json.dumps({"object": "list", "data": [{"id": "m", "object": "model", "max_model_len": 2_000_000}]}).encode()
DONE = b"data: [DONE]\n\n"


def event(document: Any) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def piece(text: str | None, finish: str | None = None, *, role: bool = False) -> bytes:
    """One event of a chat stream."""
    delta = {"role": "assistant", "content": ""} if role else {} if text is None else {"content": text}
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return event({"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]})


def usage_event(prompt: int, output: int) -> bytes:
    usage = {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}
    return event(
        {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [], "usage": usage}
    )


def chat_events(words: int = 3, *, usage: bool = False) -> list[bytes]:
    """The events of one whole chat stream."""
    body = [piece(f" w{number}") for number in range(words)]
    return [piece(None, role=True), *body, piece(None, "stop"), *([usage_event(7, words)] if usage else []), DONE]


def chat_answer(text: str = "Hello") -> bytes:
    """A whole answer; without usage, from which the estimate of prompt lengths would learn."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    document = {"id": "c-1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return json.dumps(document).encode()


def wants_usage(seen: Seen) -> bool:
    document = seen.document
    return isinstance(document, dict) and bool((document.get("stream_options") or {}).get("include_usage"))


async def healthy(seen: Seen, connection: Connection) -> None:
    """Answer like vLLM."""
    if seen.method == "HEAD":
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n")
    elif seen.path.startswith("/v1/models"):
        await connection.answer(MODELS)
    elif seen.path == "/tokenize":
        await connection.answer(b'{"detail":"Not Found"}', "404 Not Found")
    elif seen.streams:
        await connection.head()
        for item in chat_events(usage=wants_usage(seen)):
            await connection.chunk(item)
        await connection.send(b"0\r\n\r\n")
    else:
        await connection.answer(chat_answer())


async def silent(seen: Seen, connection: Connection) -> None:
    """Take the request and never answer."""
    await connection.gone.wait()


def raw(data: bytes, *, close: bool = True) -> Script:
    """Answer with these bytes, whatever was asked."""

    async def script(seen: Seen, connection: Connection) -> None:
        await connection.send(data)
        if close:
            connection.close()

    return script


def slow_stream(events: int, gap_s: float, first_s: float = 0.0) -> Script:
    """Stream that many words with that much time between them."""

    async def script(seen: Seen, connection: Connection) -> None:
        await asyncio.sleep(first_s)
        await connection.head()
        await connection.chunk(piece(None, role=True))
        for number in range(events):
            await connection.chunk(piece(f" w{number}"))
            await asyncio.sleep(gap_s)
        await connection.chunk(piece(None, "stop"))
        await connection.chunk(DONE)
        await connection.send(b"0\r\n\r\n")

    return script


def service(seconds: float) -> Script:
    """Answer whole after a fixed time."""

    async def script(seen: Seen, connection: Connection) -> None:
        await asyncio.sleep(seconds)
        await healthy(seen, connection)

    return script
