"""A real redis-server on a free port, that keeps nothing on disk."""

import asyncio
import shutil
import signal
import subprocess
from contextlib import suppress
from typing import Self

import pytest
from redis.asyncio import Redis

from loadgen.children import free_address

PATIENCE_S = 10.0


class RedisServer:
    """The process; it can be frozen, thawed, killed and started again on the same port."""

    def __init__(self) -> None:
        if shutil.which("redis-server") is None:
            pytest.skip("there is no redis-server here: tools/system-packages.sh installs it")
        self.port = int(free_address().rpartition(":")[2])
        self.process: subprocess.Popen | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc) -> None:
        self.kill()

    async def start(self) -> None:
        self._spawn()
        client = Redis(port=self.port)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with suppress(OSError, ConnectionError):
                    await client.ping()
                    break
                await asyncio.sleep(0)
        await client.aclose()

    def _spawn(self) -> None:
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
