"""A client that writes and reads bytes, and says what was on the wire."""

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import Self

PATIENCE_S = 5.0


@dataclass
class Got:
    """One answer as it came."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes = b""
    """Without chunk framing."""
    wire: bytes = b""
    """Body as it was on the wire."""
    whole: bool = False
    """The body's own framing says that this is all."""
    pieces: list[bytes] = field(default_factory=list)

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name.lower()), None)

    @property
    def json(self):
        return json.loads(self.body)


class Client:
    """One connection to the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> Self:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=2**24))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def leave(self) -> None:
        """Close the connection as a client does that gives up."""
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    async def post(self, document, path: str = "/v1/chat/completions", **headers: str) -> Got:
        self.send(request(document, path, **headers))
        return await self.answer()

    async def get(self, path: str) -> Got:
        self.send(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        return await self.answer()

    async def head(self) -> Got:
        async with asyncio.timeout(PATIENCE_S):
            block = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = block.decode("latin-1").split("\r\n")
        pairs = (line.split(":", 1) for line in lines if line)
        return Got(int(first.split(" ")[1]), [(name.lower(), value.strip()) for name, value in pairs])

    async def answer(self) -> Got:
        """Read one answer to its end, or to the end of the connection."""
        got = await self.head()
        async with asyncio.timeout(PATIENCE_S):
            try:
                await self._body(got)
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                got.wire += getattr(error, "partial", b"")
                got.body += getattr(error, "partial", b"")
        return got

    async def _body(self, got: Got) -> None:
        length = got.header("content-length")
        if got.header("transfer-encoding") == "chunked":
            while await self.chunk(got):
                pass
            got.whole = True
        elif length is not None:
            got.body = got.wire = await self.reader.readexactly(int(length))
            got.whole = True
        else:
            got.body = got.wire = await self.reader.read()

    async def chunk(self, got: Got) -> bool:
        """Read one chunk; False at the last."""
        line = await self.reader.readuntil(b"\r\n")
        got.wire += line
        size = int(line.split(b";")[0], 16)
        data = await self.reader.readexactly(size + 2)
        got.wire += data
        got.body += data[:-2]
        got.pieces.append(data[:-2])
        return size > 0

    async def closed(self) -> bytes:
        """Whatever still comes, until the proxy closes."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""


def request(document, path: str = "/v1/chat/completions", *, version: str = "1.1", **headers: str) -> bytes:
    """The bytes of one POST."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    fields = {"Host": "proxy", "Content-Type": "application/json", "Content-Length": str(len(body)), **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    return f"POST {path} HTTP/{version}\r\n{lines}\r\n".encode() + body


def chat(text: str = "hi", **fields):
    """A chat body."""
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], **fields}
