"""A scripted engine on a real socket: each path answers what the test says, byte for byte."""

import asyncio
import contextlib
import json
from types import SimpleNamespace

import pytest

from loadgen.options import ReplayOptions, SourceOptions


def chunk(text=" a", finish=None):
    return b"data: " + json.dumps({"choices": [{"index": 0, "text": text, "finish_reason": finish}]}).encode() + b"\n\n"


def usage(prompt, completion):
    document = {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}
    return b"data: " + json.dumps(document).encode() + b"\n\n"


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def framed(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


def plain(status, body, *headers):
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Engine:
    """Serves `answer(request, writer)` for completions; keeps what it was asked."""

    def __init__(self):
        self.asked = []
        self.arrived = asyncio.Condition()
        self.connections = 0
        self.metrics = b""
        self.tokenizes = False
        self.version = b'{"version": "0.32.0"}'
        self.answer = self.whole_stream
        self._tasks = set()
        self._writers = set()

    async def start(self, tls=None):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self):
        self._server.close()
        for writer in self._writers:
            writer.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def asked_for(self, count):
        async with self.arrived:
            await self.arrived.wait_for(lambda: len(self.asked) >= count)

    async def _serve(self, reader, writer):
        self._tasks.add(asyncio.current_task())
        self._writers.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while await self._one(reader, writer):
                await writer.drain()
        writer.close()

    async def _one(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, path, _ = head.split(" ", 2)
        headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if method == "GET":
            pages = {"/v1/models": b'{"data": [{"id": "tiny"}]}', "/version": self.version, "/metrics": self.metrics}
            writer.write(plain(200, pages[path], "Content-Type: application/json"))
            return True
        if path == "/tokenize":
            return self._tokenize(json.loads(body), writer)
        request = SimpleNamespace(path=path, headers=headers, body=json.loads(body), number=len(self.asked))
        async with self.arrived:
            self.asked.append(request)
            self.arrived.notify_all()
        return await self.answer(request, writer)

    def _tokenize(self, body, writer):
        """Three tokens to two words, and a template of 17; 404 unless the test turns it on."""
        if not self.tokenizes:
            writer.write(plain(404, b"{}", "Content-Type: application/json"))
            return True
        words = len(body["messages"][0]["content"].split())
        count = json.dumps({"count": 17 + words * 3 // 2}).encode()
        writer.write(plain(200, count, "Content-Type: application/json"))
        return True

    async def whole_stream(self, request, writer):
        tokens = request.body["max_tokens"]
        events = [chunk() for _ in range(tokens - 1)] + [chunk(finish="length")]
        events += [usage(len(request.body.get("prompt", ())), tokens), b"data: [DONE]\n\n"]
        writer.write(STREAM_HEAD + b"".join(map(framed, events)) + b"0\r\n\r\n")
        return True


@pytest.fixture
def engine_type():
    """The class, for a second one."""
    return Engine


@pytest.fixture
async def engine():
    made = Engine()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
def wire():
    """Pieces to script answers with."""
    return SimpleNamespace(chunk=chunk, usage=usage, framed=framed, plain=plain, head=STREAM_HEAD)


@pytest.fixture
def asking(tmp_path):
    """Options for an Azure trace of `rows` requests, `gap` seconds apart."""

    def options(target, *, rows=3, gap=0.01, prompt=10, output=4, source=None, name="run", **more):
        path = tmp_path / "trace.csv"
        lines = [f"2023-11-16 18:15:{at * gap:010.7f},{prompt},{output}" for at in range(rows)]
        path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]) + "\n")
        chosen = SourceOptions(traces=(path,), **(source or {}))
        return ReplayOptions(target=target, out=tmp_path / name, source=chosen, **{"no_certify": True} | more)

    return options
