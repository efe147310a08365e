"""`lanewise-load walkthrough`: the recipe as one guided command."""

import dataclasses
import json as json_module
import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from loadgen.cli import SloOptions
from loadgen.failure import Exit, StopError, UsageError
from loadgen.flags import Switch
from loadgen.options import ReplayOptions, SourceOptions

app = App(name="walkthrough", help="Shortest request, one real request, the knee, the first single change to try.")
_DEFAULT_SLO, _ANY_SOURCE = SloOptions(), SourceOptions()
MOST = 1024


@app.default
def walkthrough(
    *traces: Path,
    options: ReplayOptions,
    source: SourceOptions = _ANY_SOURCE,
    slo: SloOptions = _DEFAULT_SLO,
    most: int = 64,
    engine_cards: int | None = None,
    yes: Annotated[bool, Parameter(name="--yes", negative="")] = False,
    json: Switch = False,
) -> int:
    """Walk through the recipe, and stop at the first step that fails, with the reason.

    1. The shortest request is answered. 2. One real request is recorded, alone. 3. The concurrency is raised until
    answers come too late: the knee. 4. The situation is named, and the first single change to try. Run again with the
    same --out, it goes on where it stopped.

    Parameters
    ----------
    traces
        Trace files with requests as they really are; without them the workload `chat`, or --workload.
    most
        Highest concurrency to try.
    engine_cards
        Cards of the engine, where its start flags are not known.
    yes
        Do not ask before the load is raised. Needed where there is no terminal to ask at.
    json
        Print one JSON document.
    """
    from loadgen.report import console  # noqa: PLC0415 - aiohttp and numpy need not load for --help
    from loadgen.walkthrough.guide import STEPS, Guide, StepError, Walk  # noqa: PLC0415
    from loadgen.walkthrough.state import State  # noqa: PLC0415

    if not 1 <= most <= MOST:
        raise UsageError(f"--most {most}: must be from 1 to {MOST}")
    if not yes and not sys.stdin.isatty():
        raise UsageError("walkthrough asks before it raises the load, and there is no terminal to ask at: say --yes")
    chosen = _source(source, traces)
    walk = Walk(options=options, source=chosen, slo=slo.slo(), most=most, cards=engine_cards)
    state = State.opened(options.out, _conditions(walk))
    out = console(stderr=json)
    guide = Guide(walk, state, lambda line: out.print(line, markup=False), lambda: yes or _asked(most))
    failed: StopError | None = None
    try:
        guide.go()
    except StopError as error:
        failed = error
    if json:
        document: dict[str, Any] = {
            "schema": "lanewise.walkthrough/1",
            "folder": str(options.out),
            "complete": all(step in state.steps for step in STEPS),
            "steps": state.steps,
            "failed": failed.step if isinstance(failed, StepError) else None,
            "reason": None if failed is None else str(failed),
        }
        sys.stdout.write(json_module.dumps(document, ensure_ascii=False, allow_nan=False) + "\n")
    if failed is not None:
        raise failed
    return Exit.DONE


def _source(source: SourceOptions, traces: tuple[Path, ...]) -> SourceOptions:
    """The operator's requests; the largest step says how many are read."""
    if traces:
        return dataclasses.replace(source, traces=traces)
    workload = source.workload or "chat"
    limited = source.rows is not None or source.duration_s is not None
    return dataclasses.replace(source, workload=workload, rows=source.rows if limited else 1000)


def _conditions(walk: Any) -> dict[str, Any]:
    """What must be the same for a walkthrough to go on."""
    options, source, slo = walk.options, walk.source, walk.slo
    return {
        "target": options.target,
        "endpoint": str(options.endpoint),
        "model": options.model,
        "speed": options.speed,
        "traces": [str(path.resolve()) for path in source.traces],
        "workload": source.workload,
        "seed": source.seed,
        "slo": [slo.ttft_short_s, slo.ttft_long_s, slo.tpot_s],
        "most": walk.most,
    }


def _asked(most: int) -> bool:
    """Ask at the terminal whether the load may be raised."""
    sys.stderr.write(f"Next, the load is raised step by step, up to {most} requests at once. Go on? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
