"""`lanewise-load demo`: engine, proxy and replay as real processes on this machine, before and after in one table."""

import contextlib
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from loadgen.children import Child, answers, fetch, free_address
from loadgen.failure import Exit, StopError, UsageError
from loadgen.flags import Switch
from loadgen.options import Progress, ReplayOptions, SourceOptions

if TYPE_CHECKING:
    from rich.console import Console

    from loadgen.demo_result import Conditions
    from loadgen.journal import RunFolder

app = App(name="demo", help="The whole loop on this machine, with a before/after table.")

DIRECT, FED = "direct", "installments"
_PASSES = ((DIRECT, "1/3 directly"), ("lanewise", "2/3 through lanewise"), (FED, "3/3 with installments"))
_READY_S = 30.0
_PLAIN_EVERY_S = 5.0
_PATIENCE_SHORT_S, _PATIENCE_LONG_S = 30.0, 60.0
"""A client without a first token leaves after this, as in the study (docs/algorithm.md)."""


@dataclass(frozen=True, slots=True)
class Size:
    """How long the demo is."""

    rows: int
    speed: float


FULL = Size(rows=900, speed=5.0)
"""Six minutes of traffic in 72 seconds, three times: about 650 short requests, so that seven lie beyond their p99."""
QUICK = Size(rows=200, speed=6.0)
"""80 seconds of traffic in 13, three times: the p99 of its 140 short requests is nearly their maximum."""


@app.default
def demo(
    *,
    out: Path = Path("runs/demo"),
    quick: Switch = False,
    preset: Literal["strict", "gentle"] = "strict",
    rate: Annotated[float, Parameter(name="--rate")] = 2.5,
    seed: int = 1,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Replay one plan at the simulated engine, through lanewise, and with installments, and show what changed.

    Exit code 3: short requests' TTFT p99 did not fall to half, fewer than 0.9 of the long requests that completed
    directly completed through lanewise, or installments lowered goodput. 130: interrupted; what was measured until
    then is written.

    Args:
        out: folder for all runs, the logs, the comparison and the page; a used one gets a number.
        quick: a short run that shows the effect and measures it roughly.
        preset: what lanewise does with late requests: strict (refuse at once) or gentle (step back first).
        rate: requests/s; the engine's saturated throughput on this workload is 2.64.
        seed: decides the workload.
        as_json: print one JSON document on stdout.
    """
    from loadgen.demo_result import Conditions  # noqa: PLC0415  (numpy and aiohttp need not load for --help)
    from loadgen.sim.profile import load_profile  # noqa: PLC0415

    if not 0.1 <= rate <= 100:
        raise UsageError(f"--rate {rate:g}: must be from 0.1 to 100 requests/s")
    size = QUICK if quick else FULL
    conditions = Conditions(load_profile("8b"), preset, size.rows, rate, size.speed, seed)
    folder = unused(out)
    return _Demo(conditions, folder, as_json=as_json).run()


def unused(out: Path) -> Path:
    """Return `out`, or the first of out-2, out-3, … when it holds something: runs are never mixed.

    Raises:
        StopError: it cannot be made.
    """
    candidates = (out, *(out.with_name(f"{out.name}-{number}") for number in range(2, 10_000)))
    try:
        chosen = next(path for path in candidates if not path.exists() or (path.is_dir() and not any(path.iterdir())))
        chosen.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StopError(f"--out {out}: cannot be used: {error.strerror}", Exit.USAGE) from None
    return chosen


class _Demo:
    """One demo under way."""

    def __init__(self, conditions: "Conditions", folder: Path, *, as_json: bool) -> None:
        from loadgen.report import console  # noqa: PLC0415

        self._conditions = conditions
        self._folder = folder
        self._as_json = as_json
        self._notes = console(stderr=True)
        self._lateness: dict[str, float] = {}

    def run(self) -> int:
        """Run all passes, write and print what they show, and return the exit code."""
        self._say(f"Demo in {self._folder}: {self._conditions.sentence}")
        runs: list[RunFolder] = []
        with _terminable():
            try:
                for name, title in _PASSES:
                    runs.append(self._pass(name, title))
                    if not runs[-1].manifest().get("complete"):
                        break
            except KeyboardInterrupt:
                if not runs:
                    self._say(f"interrupted before the first request; logs are in {self._folder}")
                    return Exit.INTERRUPTED
            return self._conclude(runs)

    def _pass(self, name: str, title: str) -> "RunFolder":
        from loadgen.demo_result import lateness_p99  # noqa: PLC0415
        from loadgen.replay import replay  # noqa: PLC0415

        with ExitStack() as children:
            engine = children.enter_context(_engine(self._conditions, self._folder / f"{name}-engine.log"))
            engine_url = self._announced(engine)
            target = engine_url if name == DIRECT else self._proxy(children, engine_url, name)
            with self._progress(title) as show:
                folder = replay(self._options(name, target, engine_url), on_progress=show)
            self._lateness[name] = lateness_p99(fetch(f"{engine_url}/metrics"))
            return folder

    def _announced(self, engine: Child) -> str:
        """Wait for the engine's document with its address."""
        self._say("starting the simulated engine")
        engine.wait_until(lambda: _url_in(engine.log) is not None, _READY_S, "start to listen")
        return _url_in(engine.log) or ""

    def _proxy(self, children: ExitStack, engine_url: str, name: str) -> str:
        from loadgen.demo_result import proxy_config  # noqa: PLC0415

        listen, admin = free_address(), free_address()
        file = self._folder / f"{name}.yaml"
        trace = self._folder / f"{name}-trace"
        text = proxy_config(self._conditions, engine_url, listen, admin, trace, installments=name == FED)
        file.write_text(text, encoding="utf-8")
        self._say("starting lanewise")
        proxy = Child("lanewise", "proxy", ["serve", "--config", str(file)], self._folder / f"{name}.log")
        children.enter_context(proxy)
        proxy.wait_until(lambda: answers(f"http://{admin}/readyz"), _READY_S, "get ready")
        return f"http://{listen}"

    def _options(self, name: str, target: str, engine_url: str) -> ReplayOptions:
        conditions = self._conditions
        return ReplayOptions(
            target=target,
            out=self._folder / name,
            source=SourceOptions(workload="mixed", rows=conditions.rows, rate=conditions.rate, seed=conditions.seed),
            model=conditions.profile.name,
            speed=conditions.speed,
            patience_short_s=_PATIENCE_SHORT_S,
            patience_long_s=_PATIENCE_LONG_S,
            metrics_url=f"{engine_url}/metrics",
            no_certify=True,
            label=name,
            parameters=(("proxy", self._parameter(name)),),
        )

    def _parameter(self, name: str) -> str:
        told = f"lanewise {self._conditions.preset}"
        return {DIRECT: "none", FED: f"{told}, installments"}.get(name, told)

    @contextlib.contextmanager
    def _progress(self, title: str) -> Iterator[Callable[[Progress], None]]:
        """Show progress: one live line on a terminal, else a line every five seconds."""
        from loadgen.report import progress_line  # noqa: PLC0415

        if self._notes.is_terminal:
            with self._notes.status(title) as status:
                yield lambda progress: status.update(f"{title}: {progress_line(progress)}")
            return
        next_at = time.monotonic()

        def plain(progress: Progress) -> None:
            nonlocal next_at
            if time.monotonic() >= next_at:
                next_at = time.monotonic() + _PLAIN_EVERY_S
                self._say(f"{title}: {progress_line(progress)}")

        yield plain

    def _conclude(self, runs: "list[RunFolder]") -> int:
        from loadgen.demo_result import result, write  # noqa: PLC0415

        whole = len(runs) == len(_PASSES) and all(run.manifest().get("complete") for run in runs)
        told = result(self._conditions, self._folder, runs, self._lateness, stopped=not whole)
        write(told)
        if self._as_json:
            _print_document(told.document())
        told.print(self._notes if self._as_json else _out())
        return told.code

    def _say(self, line: str) -> None:
        self._notes.print(line, markup=False)


def _engine(conditions: "Conditions", log: Path) -> Child:
    arguments = ["sim", "serve", "--profile", "8b", "--listen", "127.0.0.1:0", "--json"]
    arguments += ["--speed", f"{conditions.speed:g}", "--seed", str(conditions.seed)]
    return Child("the simulated engine", "loadgen", arguments, log)


def _url_in(log: Path) -> str | None:
    """Return the address in the engine's document, the line of its log that is one."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.endswith("}")]
    return str(json.loads(lines[0])["url"]) if lines else None


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end the demo as Ctrl-C does, children first."""

    def interrupt(number: int, frame: Any) -> None:
        del number, frame
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _out() -> "Console":
    from loadgen.report import console  # noqa: PLC0415

    return console()


def _print_document(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()
