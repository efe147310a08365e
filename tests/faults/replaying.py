"""Running the load generator as a process against a scripted upstream, and reading what it left behind."""

import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.station import INJECT, ROOT, Options, Process, spawn
from tests.faults.upstream import Script, Upstream, healthy


@dataclass
class Replay:
    """One run of `lanewise-load`."""

    process: Process
    folder: Path
    code: int | None = None
    words: str = ""

    @property
    def manifest(self) -> dict[str, Any]:
        path = self.folder / "run/manifest.json"
        return json.loads(path.read_text("utf-8")) if path.exists() else {}

    @property
    def shots(self) -> list[dict[str, Any]]:
        """The journal; a cut last line is left out."""
        path = self.folder / "run/shots.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]

    @property
    def broken_lines(self) -> int:
        path = self.folder / "run/shots.jsonl"
        broken = 0
        for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else ():
            try:
                json.loads(line)
            except ValueError:
                broken += 1
        return broken

    def outcomes(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for shot in self.shots:
            found[shot["outcome"]] = found.get(shot["outcome"], 0) + 1
        return found


@dataclass
class Asked:
    """What a run is asked."""

    arguments: tuple[str, ...] = ()
    trace: str | None = None
    """Text of a trace file; None: rows of the shipped workload `chat`."""
    file: Path | None = None
    """A trace file that is there already."""
    rows: int = 40
    rate: float = 20.0
    env: dict[str, str] = field(default_factory=dict)
    before: Callable[[], None] | None = None
    prefix: tuple[str, ...] = ()
    target: str = ""


def azure(path: Path, rows: int) -> None:
    """Write a long trace in Azure's format, one request a second."""
    with path.open("w", encoding="ascii") as file:
        file.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
        for hour in range(rows // 3600 + 1):
            start = f"2024-05-{1 + hour // 24:02} {hour % 24:02}"
            seconds = range(min(3600, rows - 3600 * hour))
            file.writelines(f"{start}:{second // 60:02}:{second % 60:02}.000000,10,3\n" for second in seconds)


def mooncake(rows: int, gap_ms: int = 25, prompt: int = 10, output: int = 3) -> str:
    """A trace in Mooncake's format."""
    lines = (
        {"timestamp": number * gap_ms, "input_length": prompt, "output_length": output, "hash_ids": [number]}
        for number in range(rows)
    )
    return "".join(json.dumps(line) + "\n" for line in lines)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "loadgen", *arguments]


@contextlib.asynccontextmanager
async def running(asked: Asked, script: Script = healthy, upstream: Upstream | None = None) -> AsyncIterator[Replay]:
    """Start a replay; the case may do something to it before it waits for its end."""
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="faults-")))
        engine = upstream or await stack.enter_async_context(Upstream(script))
        if asked.file is not None:
            source = [str(asked.file)]
        elif asked.trace is None:
            source = ["--workload", "chat", "--rows", str(asked.rows), "--rate", str(asked.rate), "--max-prompt", "50"]
        else:
            (folder / "trace.jsonl").write_bytes(asked.trace.encode())
            source = [str(folder / "trace.jsonl")]
        target = asked.target or engine.url
        env = {"PYTHONPATH": os.pathsep.join([str(INJECT), str(ROOT)])} | asked.env
        arguments = ("replay", *source, "--target", target, "--out", str(folder / "run"), *asked.arguments)
        process = spawn(command(*arguments), folder, Options(env, asked.before, asked.prefix))
        try:
            yield Replay(process, folder)
        finally:
            await process.stop()


async def ended(replay: Replay, within: float = 40.0) -> Replay:
    """Wait for the end of a replay."""
    replay.code = await replay.process.exit(within)
    replay.words = replay.process.log
    return replay


async def run_to_end(asked: Asked, script: Script = healthy, upstream: Upstream | None = None) -> dict[str, Any]:
    """Run a replay; return what it left, as an observation."""
    async with running(asked, script, upstream) as replay:
        await ended(replay)
        return seen(replay)


def seen(replay: Replay) -> dict[str, Any]:
    """What a replay left behind."""
    return {
        "exit": replay.code,
        "complete": replay.manifest.get("complete"),
        "outcomes": replay.outcomes(),
        "shots": len(replay.shots),
        "words": replay.words[-300:],
    }


async def summary(replay: Replay) -> dict[str, Any]:
    """What `lanewise-load summarise --json` says of it."""
    process = await asyncio.create_subprocess_exec(
        *command("summarise", str(replay.folder / "run"), "--json"),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    document = json.loads(out) if out.strip().startswith(b"{") else {}
    return document | {"exit": process.returncode, "stderr": err.decode()[-300:]}
