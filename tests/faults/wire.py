"""The raw client: bytes out, bytes in, and how the connection ended. No HTTP library stands in between."""

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass, field
from typing import Any

HOST = "127.0.0.1"
QUIET_S = 1.0
"""Silence after which a connection counts as kept open."""
_TEXT = 200


@dataclass
class Answer:
    """One HTTP answer as far as it came."""

    status: int
    version: str
    fields: list[tuple[bytes, bytes]]
    body: bytes
    complete: bool
    """The body ended as its framing says."""
    at: float = 0.0

    def header(self, name: str) -> str | None:
        found = self.all(name)
        return found[0] if found else None

    def all(self, name: str) -> list[str]:
        return [value.decode("latin-1") for key, value in self.fields if key.lower() == name.lower().encode()]

    @property
    def document(self) -> Any:
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    @property
    def error(self) -> dict[str, Any]:
        """The error object of the body, {} when there is none."""
        document = self.document
        inner = document.get("error") if isinstance(document, dict) else None
        return inner if isinstance(inner, dict) else {}


@dataclass
class Talk:
    """All that came back on one connection."""

    received: bytes = b""
    closed: bool = False
    reset: bool = False
    seconds: float = 0.0
    first_byte_s: float | None = None
    seconds_to_end: float = 0.0
    """To the last byte or the close."""
    heads_only: bool = False
    stamps: list[tuple[float, int]] = field(default_factory=list)
    """(seconds since start, bytes so far) at each read."""

    @property
    def answers(self) -> list[Answer]:
        return parse(self.received, ended=self.closed, heads_only=self.heads_only)

    @property
    def statuses(self) -> list[int]:
        return [answer.status for answer in self.answers]

    @property
    def answer(self) -> Answer:
        """The first final answer; status 0 when there was none."""
        finals = [answer for answer in self.answers if answer.status >= 200]
        return finals[0] if finals else Answer(0, "", [], b"", complete=False)

    def as_row(self) -> dict[str, Any]:
        """What the result table keeps."""
        answer = self.answer
        return {
            "status": answer.status,
            "complete": answer.complete,
            "closed": self.closed,
            "reset": self.reset,
            "seconds": round(self.seconds_to_end, 4),
            "code": answer.error.get("code"),
            "body": answer.body[:_TEXT].decode("latin-1"),
        }


def parse(data: bytes, *, ended: bool, heads_only: bool = False) -> list[Answer]:
    """Split what a server sent into its answers; bytes that are none become an answer with status 0."""
    found: list[Answer] = []
    while data:
        head, mark, rest = data.partition(b"\r\n\r\n")
        if not mark or not head.startswith(b"HTTP/"):
            return [*found, Answer(0, "", [], data, complete=False)]
        line, *lines = head.split(b"\r\n")
        version, _, tail = line.partition(b" ")
        status = int(tail[:3]) if tail[:3].isdigit() else 0
        fields = [(name, value.strip()) for name, _, value in (item.partition(b":") for item in lines)]
        answer = Answer(status, version.decode("latin-1"), fields, b"", complete=True)
        found.append(answer)
        data = rest
        if status < 200 or status in {204, 304} or heads_only:
            continue
        answer.body, answer.complete, data = _body(answer, rest, ended=ended)
    return found


def _body(answer: Answer, rest: bytes, *, ended: bool) -> tuple[bytes, bool, bytes]:
    if "chunked" in (answer.header("transfer-encoding") or "").lower():
        return dechunk(rest)
    length = answer.header("content-length")
    if length is None:
        return rest, ended, b""
    size = int(length)
    return rest[:size], len(rest) >= size, rest[size:]


def dechunk(data: bytes) -> tuple[bytes, bool, bytes]:
    """Return the payload, whether the last chunk came, and what follows it."""
    parts: list[bytes] = []
    while True:
        line, mark, rest = data.partition(b"\r\n")
        try:
            size = int(line.split(b";")[0], 16) if mark else -1
        except ValueError:
            size = -1
        if size < 0:
            return b"".join(parts), False, b""
        if size == 0:
            _, mark, after = data.partition(b"\r\n\r\n")
            return b"".join(parts), bool(mark), after
        parts.append(rest[:size])
        if len(rest) < size + 2:
            return b"".join(parts), False, b""
        data = rest[size + 2 :]


class Client:
    """One connection to the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.talk = Talk()
        self.began = time.monotonic()

    @classmethod
    async def connect(cls, port: int, host: str = HOST) -> "Client":
        return cls(*await asyncio.open_connection(host, port))

    def send(self, data: bytes) -> None:
        self.began = time.monotonic()
        if not self.writer.is_closing():
            self.writer.write(data)

    async def read_some(self, within: float) -> bytes:
        """Read what is there; b"" when nothing came in that time or the connection ended (`talk.closed`)."""
        talk = self.talk
        try:
            async with asyncio.timeout(within):
                data = await self.reader.read(2**18)
        except TimeoutError:
            return b""
        except OSError:
            talk.closed = talk.reset = True
            data = b""
        now = time.monotonic() - self.began
        talk.seconds_to_end = now
        if data:
            talk.received += data
            talk.first_byte_s = now if talk.first_byte_s is None else talk.first_byte_s
            talk.stamps.append((now, len(talk.received)))
        else:
            talk.closed = True
        return data

    async def read_until(self, mark: bytes, within: float = 10.0) -> bool:
        """Read until those bytes came."""
        until = time.monotonic() + within
        while mark not in self.talk.received:
            left = until - time.monotonic()
            if left <= 0 or (not await self.read_some(left) and self.talk.closed):
                return mark in self.talk.received
        return True

    async def read_answer(self, within: float = 10.0) -> Talk:
        """Read until one final answer is whole, or the connection ends."""
        until = time.monotonic() + within
        while not self._whole() and not self.talk.closed and (left := until - time.monotonic()) > 0:
            await self.read_some(left)
        self.talk.seconds = time.monotonic() - self.began
        return self.talk

    def _whole(self) -> bool:
        received = self.talk.received
        if b"\r\n\r\n" not in received:
            return False
        if b"chunked" in received[:2000].lower() and not received.endswith(b"0\r\n\r\n"):
            return False
        final = self.talk.answer
        framed = final.header("content-length") is not None or final.header("transfer-encoding") is not None
        return final.status >= 200 and final.complete and framed

    async def read_quiet(self, quiet: float = QUIET_S, within: float = 30.0) -> Talk:
        """Read until the connection ends, or nothing came for a while; twice that while nothing came at all."""
        until = time.monotonic() + within
        while time.monotonic() < until:
            wait = quiet if self.talk.received else 2 * quiet
            if not await self.read_some(wait):
                break
        self.talk.seconds = time.monotonic() - self.began
        return self.talk

    def half_close(self) -> None:
        self.writer.write_eof()

    def reset(self) -> None:
        """Leave without a word."""
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


async def talk(
    port: int, data: bytes, *, half_close: bool = False, quiet: float = QUIET_S, heads_only: bool = False
) -> Talk:
    """Send bytes on a connection of their own, and read until it is closed or quiet. Reading runs beside writing."""
    client = await Client.connect(port)
    client.talk.heads_only = heads_only
    client.send(data)
    if half_close:
        client.half_close()
    try:
        return await client.read_quiet(quiet)
    finally:
        client.reset()


def request(
    document: Any = None,
    *,
    path: str = "/v1/chat/completions",
    method: str = "POST",
    body: bytes | None = None,
    headers: tuple[str, ...] = (),
) -> bytes:
    """Build one well-formed request."""
    if body is None:
        body = b"" if document is None else json.dumps(document).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: t", *headers]
    if method == "POST":
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def chat(**more: Any) -> dict[str, Any]:
    """Return a chat request."""
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, **more}


async def ask(port: int, data: bytes, within: float = 10.0) -> Talk:
    """Send one request on a connection of its own and read its answer."""
    client = await Client.connect(port)
    client.send(data)
    try:
        return await client.read_answer(within)
    finally:
        client.reset()
