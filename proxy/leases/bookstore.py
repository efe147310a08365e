"""The lease store of the workers of one host: a `Book` at their supervisor, asked over a Unix socket.

One JSON document in a line each way, answered in order; beside the answers a line `{"wake": 1}` for whoever stands in
line when something was given back.
"""

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from proxy.leases.store import StoreError
from proxy.policy.leases.book import Book, Document

SCHEME = "workers"
_LONGEST_LINE = 4 * 2**20
_WAKE = b'{"wake":1}\n'


class BookServer:
    """Serves one book.

    Args:
        path: of the socket; only this user may connect.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.book = Book()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_unix_server(self._serve, self.path, limit=_LONGEST_LINE)
        self.path.chmod(0o600)

    async def close(self) -> None:
        """Stop."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with suppress(OSError, ValueError, KeyError, TypeError):
                while line := await reader.readline():
                    answer = self.book.sync(int(time.monotonic() * 1000), json.loads(line))
                    writer.write(json.dumps(answer, separators=(",", ":")).encode() + b"\n")
                    if answer.get("w"):
                        for other in self._writers - {writer}:
                            other.write(_WAKE)
        finally:
            self._writers.discard(writer)
            writer.close()


class BookStore:
    """The side of a worker; see `proxy.leases.store.Store`.

    Args:
        path: of the supervisor's socket.
        timeout_s: longest wait for an answer.
    """

    def __init__(self, path: Path, timeout_s: float) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._answer: asyncio.Future[Document] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._woken: Callable[[], None] = lambda: None

    async def sync(self, request: Document) -> Document:
        """Make one step.

        Raises:
            StoreError: no answer within the time-out.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                if self._writer is None:
                    await self._connect()
                assert self._writer is not None
                self._answer = asyncio.get_running_loop().create_future()
                self._writer.write(json.dumps(request, separators=(",", ":")).encode() + b"\n")
                return await self._answer
        except (OSError, ValueError, TimeoutError) as error:
            self._drop()
            why = "no answer in time" if isinstance(error, TimeoutError) else str(error)
            raise StoreError(f"the supervisor of the workers: {why}") from None

    async def listen(self, woken: Callable[[], None]) -> None:
        """Hear what is given back, until cancelled; it comes on the connection of the answers."""
        self._woken = woken
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Let the connection go."""
        self._drop()

    async def _connect(self) -> None:
        self._reader, self._writer = await asyncio.open_unix_connection(self._path, limit=_LONGEST_LINE)
        self._listening = asyncio.ensure_future(self._read(self._reader))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Hand answers on until the connection ends."""
        error: Exception = ConnectionError("the connection was closed")
        try:
            while line := await reader.readline():
                document = json.loads(line)
                if "wake" in document:
                    self._woken()
                elif self._answer is not None and not self._answer.done():
                    self._answer.set_result(document)
        except (OSError, ValueError) as broken:
            error = broken
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        if reader is self._reader:
            self._drop()

    def _drop(self) -> None:
        """Close the connection, so that no late answer is taken for that of a later request."""
        if self._writer is not None:
            self._writer.close()
        if self._listening is not None and self._listening is not asyncio.current_task():
            self._listening.cancel()
        self._reader = self._writer = self._listening = self._answer = None
