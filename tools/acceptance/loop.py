"""Engine and proxy as real processes on free ports, and the replay as a third one: the loop that acceptance runs.

Everything a loop leaves is in its folder: `engine.log`, `ledger.jsonl` (what the engine answered), `lanewise.yaml`,
`lanewise.log`, `trace/` (the proxy's record), `run/` (the replay's run folder) and the last `/metrics` of both.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from loadgen.children import Child, answers, fetch, free_address
from loadgen.demo_result import Conditions, proxy_config
from loadgen.failure import Exit, StopError
from loadgen.sim.profile import load_profile

_READY_S = 60.0
_DRAIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Setting:
    """How a loop is set up."""

    profile: str = "8b"
    preset: str = "strict"
    speed: float = 1.0
    """Of the engine, and of every time in the proxy's configuration."""
    changes: tuple[tuple[str, Any], ...] = ()
    """Configuration keys (dotted) that differ from what the demo writes."""
    engine_flags: tuple[str, ...] = ()
    """More of `lanewise-load sim serve`."""
    proxy: bool = True
    """False: the replay goes to the engine directly."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A running loop."""

    folder: Path
    engine: str
    """Base URL."""
    target: str
    """Base URL that the replay loads."""
    admin: str | None
    """Base URL of the proxy's admin listener."""
    speed: float

    def replay(self, *arguments: str, timeout_s: float, realtime: bool = False) -> int:
        """Run `lanewise-load replay` into `run/` and return its exit code; the summary goes to `summary.json`.

        Args:
            arguments: beside target, speed, metrics and output.
            timeout_s: it is killed after this.
            realtime: run it before every other process of the machine (Linux SCHED_FIFO, needs root), so that its
                lateness is its own and not that of a busy machine.
        """
        command = [sys.executable, "-m", "loadgen", "replay", *arguments]
        command += ["--target", self.target, "--speed", f"{self.speed:g}", "--metrics", f"{self.engine}/metrics"]
        command += ["--out", str(self.folder / "run"), "--json"]
        with (self.folder / "summary.json").open("wb") as out, (self.folder / "replay.log").open("wb") as log:
            first = _before_all_others if realtime else None
            done = subprocess.run(
                command,
                stdout=out,
                stderr=log,
                timeout=timeout_s,
                check=False,
                preexec_fn=first,
            )
        self._keep_metrics()
        return done.returncode

    def _keep_metrics(self) -> None:
        """Keep what engine and proxy say of themselves at the end, their own lateness among it."""
        (self.folder / "engine-metrics.txt").write_text(fetch(f"{self.engine}/metrics"))
        if self.admin is not None:
            (self.folder / "lanewise-metrics.txt").write_text(fetch(f"{self.admin}/metrics"))


def _before_all_others() -> None:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


@contextmanager
def running(folder: Path, setting: Setting) -> Iterator[Loop]:
    """Start engine and proxy, wait until both are ready, and stop them in any case: the proxy first.

    Raises:
        StopError: one of them did not start; the message has the end of its log.
    """
    folder.mkdir(parents=True)
    with _engine(folder, setting) as engine:
        url = _announced(engine)
        if not setting.proxy:
            yield Loop(folder, url, url, None, setting.speed)
            return
        with _proxy(folder, setting, url) as (target, admin):
            yield Loop(folder, url, target, admin, setting.speed)


def _engine(folder: Path, setting: Setting) -> Child:
    arguments = ["sim", "serve", "--profile", setting.profile, "--listen", "127.0.0.1:0", "--json"]
    arguments += ["--speed", f"{setting.speed:g}", "--ledger", str(folder / "ledger.jsonl"), *setting.engine_flags]
    return Child("the simulated engine", "loadgen", arguments, folder / "engine.log")


def _announced(engine: Child) -> str:
    """Wait for the engine's document with its address."""

    def url() -> str | None:
        lines = [line for line in engine.log.read_text().splitlines() if line.endswith("}")]
        return str(json.loads(lines[0])["url"]) if lines else None

    engine.wait_until(lambda: url() is not None, _READY_S, "start to listen")
    return url() or ""


@contextmanager
def _proxy(folder: Path, setting: Setting, engine: str) -> Iterator[tuple[str, str]]:
    listen, admin = free_address(), free_address()
    file = folder / "lanewise.yaml"
    file.write_text(configuration(folder, setting, engine, listen, admin))
    with Child("lanewise", "proxy", ["serve", "--config", str(file)], folder / "lanewise.log", _DRAIN_S) as proxy:
        proxy.wait_until(lambda: answers(f"http://{admin}/readyz"), _READY_S, "get ready")
        yield f"http://{listen}", f"http://{admin}"


def configuration(folder: Path, setting: Setting, engine: str, listen: str, admin: str) -> str:
    """Return the proxy's YAML: what the demo writes, with the setting's changes."""
    conditions = Conditions(load_profile(setting.profile), setting.preset, 0, 0.0, setting.speed, 0)
    document = yaml.safe_load(proxy_config(conditions, engine, listen, admin, folder / "trace"))
    for key, value in setting.changes:
        *sections, last = key.split(".")
        place = document
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return yaml.safe_dump(document, sort_keys=False)


def command(main: Callable[[], int]) -> int:
    """Run a check and return its exit code; Ctrl-C and SIGTERM stop the processes of its loop first."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        return main()
    except StopError as error:
        sys.stderr.write(f"{error}\n")
        return error.code
    except KeyboardInterrupt:
        return Exit.INTERRUPTED


def lines(files: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of files with one on each line."""
    for file in files:
        with file.open("rb") as opened:
            for line in opened:
                yield json.loads(line)


def stamp() -> str:
    """Return a folder name that sorts by time."""
    return time.strftime("%Y%m%d-%H%M%S")
