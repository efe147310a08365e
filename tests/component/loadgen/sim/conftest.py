"""A simulated engine on a free port, and a client that shows what was on the wire."""

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

import orjson
import pytest

from loadgen.sim.nouns import EngineProfile
from loadgen.sim.server import EngineServer, ServerOptions
from loadgen.sim.serving import bind, runner_for

TINY = EngineProfile(
    name="tiny",
    a=0.004,
    b=0.0003,
    c=0.00015,
    d=0.0,
    e=9.4e-8,
    kv_blocks=1024,
    max_num_seqs=32,
    max_model_len=16384,
)


@dataclass
class Answer:
    """One answer off the wire."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self):
        return orjson.loads(self.body)

    @property
    def events(self):
        """The data of every event but the end mark."""
        frames = [frame for frame in self.body.split(b"\n\n") if frame]
        assert frames.pop() == b"data: [DONE]"
        return [orjson.loads(frame.removeprefix(b"data: ")) for frame in frames]


class Client:
    """Talks to one engine over raw sockets."""

    def __init__(self, url):
        self.url = url
        host, port = url.removeprefix("http://").split(":")
        self.where = host, int(port)
        self._streams = []

    async def open(self):
        """Open a connection; it is closed with the engine at the latest."""
        reader, writer = await asyncio.open_connection(*self.where)
        self._streams.append((reader, writer))
        return reader, writer

    async def close(self):
        for _, writer in self._streams:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def raw(self, request):
        """Send bytes on a new connection and read one answer."""
        reader, writer = await self.open()
        writer.write(request)
        answer = await read_answer(reader, request.startswith(b"HEAD"))
        writer.close()
        return answer

    async def get(self, path):
        return await self.raw(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())

    async def post(self, path, document, **headers):
        return await self.raw(self.request(path, document, **headers))

    def request(self, path, document, **headers):
        body = orjson.dumps(document)
        extra = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{extra}Content-Length: {len(body)}"
        )
        return head.encode() + b"\r\n\r\n" + body

    async def read_answer(self, reader):
        return await read_answer(reader)

    async def metrics(self):
        """Return every series of /metrics as {name with labels: value}."""
        lines = (await self.get("/metrics")).body.decode().splitlines()
        return {name: float(value) for name, _, value in (x.rpartition(" ") for x in lines if not x.startswith("#"))}

    async def until(self, series, value):
        """Poll /metrics until a series has a value."""
        async with asyncio.timeout(10):
            while (await self.metrics())[series] != value:
                continue


async def read_answer(reader, headless=False):
    head = await reader.readuntil(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").splitlines()
    headers = dict(line.lower().split(": ", 1) for line in lines if line)
    body = b"" if headless else await _read_body(reader, headers)
    return Answer(int(status.split()[1]), headers, body)


async def _read_body(reader, headers):
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"]))
    if headers.get("transfer-encoding") != "chunked":
        return await reader.read()
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        assert await reader.readline() == b"\r\n"
    assert await reader.readline() == b"\r\n"
    return body


@asynccontextmanager
async def _serving(speed=50.0, details=True, model="tiny", ledger=None, **flags):
    options = ServerOptions(model=model, speed=speed, prompt_tokens_details=details, ledger=ledger)
    runner = runner_for(EngineServer(replace(TINY, **flags), options))
    await runner.setup()
    try:
        client = Client(await bind(runner, "127.0.0.1", 0))
        yield client
        await client.close()
    finally:
        await runner.cleanup()


@pytest.fixture
def serving():
    """Starts an engine: `async with serving(max_num_seqs=2) as client`."""
    return _serving


@pytest.fixture(name="read_answer")
def _read_answer():
    """Reads one answer from a stream reader."""
    return read_answer
