"""A network between two processes that can be cut: bytes are then neither passed on nor refused, as on a dead link."""

import asyncio
from contextlib import suppress
from typing import Self


class Cutter:
    """Relays TCP from a port of its own to another one on this machine, until it is cut."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._whole = asyncio.Event()
        self._whole.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_exc: object) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Pass nothing on from now on."""
        self._whole.clear()

    def mend(self) -> None:
        """Pass everything on again, what was sent meanwhile included."""
        self._whole.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._whole.wait()
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.close()
            return
        for source, sink in ((reader, there_writer), (there_reader, writer)):
            task = asyncio.ensure_future(self._pass_on(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                await self._whole.wait()
                if sink.is_closing():
                    return
                sink.write(data)
                await sink.drain()
        sink.close()
