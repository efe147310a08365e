"""What stands behind the proxy in a soak: simulated engines that are killed and come back, and one that lies."""

import asyncio
import random
import sys
from pathlib import Path

from tests.faults import upstream
from tests.faults.station import ROOT, Options, Process, free_port, spawn
from tests.faults.upstream import DONE, Connection, Script, Seen, event, piece
from tests.soak.traffic import LONG_OUTPUT

SPEED = 50.0
"""How many times faster than its profile a simulated engine runs."""
_WAYS = {
    "serve": 60,
    "serve slowly": 6,
    "cut": 8,
    "error inside": 5,
    "no HTTP": 4,
    "a short body": 4,
    "500": 5,
    "503": 4,
    "reset": 4,
}


class Simulated:
    """A simulated engine as a process, always on the same port.

    Args:
        folder: where its logs go.
        seed: of its texts.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.port = free_port()
        self._folder, self._seed = folder, seed
        self._process: Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, or start it again."""
        listen = ("--listen", f"127.0.0.1:{self.port}", "--model", "8b")
        command = [sys.executable, "-m", "loadgen", "sim", "serve", *listen]
        command += ["--speed", str(SPEED), "--seed", str(self._seed)]
        self._process = spawn(command, self._folder, Options({"PYTHONPATH": str(ROOT)}))

    async def kill(self) -> None:
        """End it with all that it serves."""
        if self._process is not None:
            self._process.popen.kill()
            await self._process.exit(5.0)


def liar(seed: int) -> Script:
    """Return an engine that serves most requests, and breaks the others in one of many ways.

    Args:
        seed: decides which.
    """
    rng = random.Random(seed)

    async def script(seen: Seen, connection: Connection) -> None:
        way = rng.choices(list(_WAYS), list(_WAYS.values()))[0]
        document = seen.document if isinstance(seen.document, dict) else {}
        if not seen.streams and way in {"cut", "error inside", "serve slowly"}:
            way = "serve"
        if way == "serve":
            await _serve(seen, connection, megabytes=document.get("max_tokens") == LONG_OUTPUT)
        elif way == "serve slowly":
            await upstream.slow_stream(8, 0.1, first_s=0.3)(seen, connection)
        elif way == "cut":
            await connection.head()
            for item in upstream.chat_events(8)[: rng.randint(0, 8)]:
                await connection.chunk(item)
            connection.close()
        elif way == "error inside":
            await connection.head()
            error = event({"error": {"message": "broken", "type": "InternalServerError", "code": 500}})
            for item in (piece(None, role=True), piece("a"), error, DONE):
                await connection.chunk(item)
            await connection.send(b"0\r\n\r\n")
        else:
            await _break(way, connection, rng)

    return script


async def _serve(seen: Seen, connection: Connection, *, megabytes: bool) -> None:
    if not (megabytes and seen.streams):
        await upstream.healthy(seen, connection)
        return
    await connection.head()
    large = piece("x" * 20_000)
    for item in (piece(None, role=True), *[large] * 200, piece(None, "stop"), DONE):
        await connection.chunk(item)
    await connection.send(b"0\r\n\r\n")


async def _break(way: str, connection: Connection, rng: random.Random) -> None:
    if way == "no HTTP":
        await connection.send(rng.randbytes(rng.randint(1, 400)))
        connection.close()
    elif way == "a short body":
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{}")
        await asyncio.sleep(0.05)
        connection.close()
    elif way == "500":
        await connection.answer(b'{"error":{"message":"broken"}}', "500 Internal Server Error")
    elif way == "503":
        await connection.answer(b'{"error":{"message":"busy"}}', "503 Service Unavailable", extra=b"retry-after: 1\r\n")
    else:
        await asyncio.sleep(rng.random() / 10)
        connection.reset()
