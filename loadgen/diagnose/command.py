"""`lanewise-load diagnose`: names the layer that limits a run, or what an engine's log says."""

import json as json_module
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import App

from loadgen.cli import SloOptions
from loadgen.failure import Exit, UsageError
from loadgen.flags import Switch

if TYPE_CHECKING:
    from rich.console import Console

    from loadgen.diagnose.nouns import Diagnosis, Finding, Number

app = App(name="diagnose", help="Name the layer that limits a run, and the next single step.")
_DEFAULT_SLO = SloOptions()


@app.default
def diagnose(
    run: Path | None = None,
    /,
    *,
    baseline: Path | None = None,
    engine_log: Path | None = None,
    slo: SloOptions = _DEFAULT_SLO,
    json: Switch = False,
) -> int:
    """Name the layer that limits a run, with the numbers that say so and the next single step.

    Layers: link, client, queue, prefill, decode, memory, parallel, adaptation, hardware ceiling. Exit code 0: the run
    was looked at, with findings or without. 4: the run is invalid, so nothing is said of the server.

    Parameters
    ----------
    run
        Run folder. May be left out when an engine's log is given: an engine that does not start has no run.
    baseline
        Run folder of the same traffic before one thing was changed: another number of cards, another setting.
    engine_log
        What the engine printed; tells failures of the loading stage from those of inference.
    json
        Print one JSON document.
    """
    from loadgen.diagnose.nouns import Diagnosis  # noqa: PLC0415 - numpy need not load for --help
    from loadgen.report import console  # noqa: PLC0415

    if run is None and engine_log is None:
        raise UsageError("diagnose: give a run folder, or --engine-log FILE, or both")
    found = Diagnosis("engine log", ()) if run is None else _judged(run, baseline, slo)
    if engine_log is not None:
        found = _with_log(found, engine_log)
    if json:
        from loadgen.summary import plain  # noqa: PLC0415

        sys.stdout.write(json_module.dumps(plain(found.to_json()), ensure_ascii=False, allow_nan=False) + "\n")
    else:
        show(found, console())
    return Exit.DONE if found.invalid is None else Exit.INVALID


def _judged(run: Path, baseline: Path | None, slo: SloOptions) -> "Diagnosis":
    from loadgen.diagnose.facts import facts_of  # noqa: PLC0415
    from loadgen.diagnose.rules import diagnose as judge  # noqa: PLC0415
    from loadgen.journal import RunFolder  # noqa: PLC0415

    before = None if baseline is None else facts_of(RunFolder(baseline), slo.slo())
    return judge(facts_of(RunFolder(run), slo.slo()), before)


def _with_log(found: "Diagnosis", file: Path) -> "Diagnosis":
    """What the engine itself says went wrong comes first."""
    from dataclasses import replace  # noqa: PLC0415

    from loadgen.diagnose.enginelog import read_log  # noqa: PLC0415

    try:
        with file.open(encoding="utf-8", errors="replace") as lines:
            said = read_log(lines)
    except OSError as error:
        raise UsageError(f"--engine-log {file}: cannot be read: {error.strerror}") from None
    unknown = found.unknown if said else (*found.unknown, f"{file}: no line in it says that something failed")
    return replace(found, findings=(*said, *found.findings), unknown=unknown)


def show(found: "Diagnosis", out: "Console") -> None:
    """Print a diagnosis for people."""
    if found.invalid is not None:
        out.print(f"{found.label}: invalid: {found.invalid}", style="bold red", markup=False)
    elif not found.findings:
        out.print(f"{found.label}: nothing limits this run", style="bold", markup=False)
    for number, finding in enumerate(found.findings, 1):
        _show_finding(number, finding, out)
    for sentence in found.answers:
        out.print(f"answers: {sentence}", style="red", markup=False)
    for sentence in found.unknown:
        out.print(f"not known: {sentence}", style="yellow", markup=False)


def _show_finding(number: int, finding: "Finding", out: "Console") -> None:
    part = f" ({finding.part})" if finding.part else ""
    head = f"{number}. {finding.layer}{part}: {finding.sentence}. Confidence: {finding.confidence}."
    out.print(head, style="bold", markup=False)
    for one in finding.evidence:
        out.print(f"   {_told(one)}", markup=False)
    if finding.where:
        out.print(f"   {finding.where}", markup=False)
    if not finding.tuning_helps:
        out.print("   No setting moves this: tuning cannot help here.", markup=False)
    out.print(f"   Next: {finding.next_step}.", markup=False)


def _told(one: "Number") -> str:
    limit = "" if one.limit is None else f"  (held against {_value(one.limit, one.unit)})"
    return f"{one.name}: {_value(one.value, one.unit)}{limit}"


def _value(value: float, unit: str) -> str:
    from loadgen.report import seconds  # noqa: PLC0415

    if unit == "s":
        return seconds(value)
    if value != value:  # noqa: PLR0124 - NaN
        return "unknown"
    return f"{value:.1%}" if unit == "share" else f"{value:.4g}"
