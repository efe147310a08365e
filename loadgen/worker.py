"""One worker process of a replay: sends its part of the plan at the common start, and tells every result as it ends.

`loadgen.workers` alone starts it. stdin: what is to be done, pickled by the parent, then one word a line: `go` with the
start, `stop`. stdout: `ready`, then one JSON document a line. When stdin ends, the parent is gone: what is in flight is
ended.
"""

import asyncio
import base64
import pickle
import sys
from dataclasses import dataclass
from typing import Any

import orjson
import uvloop

from loadgen.flight import Timeline
from loadgen.options import ReplayOptions
from loadgen.result import Result
from loadgen.sending import Asked, Sending, Ticker, quiet_collector
from loadgen.source import read_source

TELL_S = 0.2


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one worker does."""

    options: ReplayOptions
    asked: Asked
    worker: int
    """Which part of the plan, from 0."""
    workers: int
    """How many parts there are: the workers of all shards."""

    def packed(self) -> bytes:
        """Return it as one line."""
        return base64.b64encode(pickle.dumps(self)) + b"\n"


class _Worker:
    """The worker's end of the pipes."""

    def __init__(self, assignment: Assignment) -> None:
        self._lines: list[bytes] = []
        self._sending = Sending(assignment.options, assignment.asked, self._ended)
        self._told = 0

    async def run(self, assignment: Assignment, words: asyncio.StreamReader) -> None:
        plan = read_source(assignment.options.source, endpoint=assignment.options.endpoint).plan
        await self._sending.prepare()
        _say(b"ready\n")
        word, _, start = (await words.readline()).partition(b" ")
        if word != b"go":
            return
        listening = asyncio.get_running_loop().create_task(self._listen(words), name="parent")
        ticker = Ticker(TELL_S, self._tell)
        try:
            with quiet_collector():
                line = Timeline(int(start), assignment.options.speed)
                await self._sending.run(plan.part(assignment.worker, assignment.workers), line)
        finally:
            ticker.cancel()
            listening.cancel()
        self._lines.append(orjson.dumps({"state": self._state() | {"loop_late_s": list(self._sending.loop_late_s)}}))
        self._tell()

    async def _listen(self, words: asyncio.StreamReader) -> None:
        while await words.readline():
            self._sending.stop()
        self._sending.give_up()

    def _ended(self, result: Result) -> None:
        self._lines.append(orjson.dumps({"result": result.line()}))

    def _state(self) -> dict[str, Any]:
        sending = self._sending
        late, self._told = sending.late_ns[self._told :], len(sending.late_ns)
        return {
            "sent": sending.sent,
            "in_flight": sending.in_flight,
            "most_in_flight": sending.most_in_flight,
            "connections": sending.connections,
            "interrupted": sending.interrupted,
            "cpu_s": sending.cpu_s,
            "late_ns": list(late),
        }

    def _tell(self) -> None:
        self._lines.append(orjson.dumps({"state": self._state()}))
        lines, self._lines = self._lines, []
        _say(b"\n".join([*lines, b""]))


def _say(text: bytes) -> None:
    try:
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        sys.exit(1)


async def _main() -> None:
    words = asyncio.StreamReader(limit=1 << 26)
    protocol = asyncio.StreamReaderProtocol(words)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    assignment = pickle.loads(base64.b64decode(await words.readline()))  # noqa: S301  (written by our own parent)
    assert isinstance(assignment, Assignment)
    await _Worker(assignment).run(assignment, words)


def main() -> None:
    """Do what the parent says. Called by name, since a module that is run is another one than the parent pickles."""
    uvloop.run(_main())
