"""`lanewise-load export`: a run in the formats of others."""

import sys
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import orjson

from loadgen.cli import SloOptions
from loadgen.columns import columns_of
from loadgen.failure import Exit, StopError, UsageError
from loadgen.flags import seconds
from loadgen.journal import RunFolder
from loadgen.llmd import llmd_report
from loadgen.openmetrics import openmetrics
from loadgen.summarise import summarise
from loadgen.summary import Slo

_SLO = SloOptions()


class Form(StrEnum):
    """What is written."""

    OPENMETRICS = "openmetrics"
    """Samples with timestamps, for `promtool tsdb create-blocks-from openmetrics`."""
    LLM_D = "llm-d"
    """Benchmark report of llm-d, schema v0.2, JSON."""


def export(
    folder: Path,
    /,
    *,
    format: Form,  # noqa: A002 - the name of the option
    out: Path | None = None,
    step: Annotated[float, seconds("step")] = 5.0,
    slo: SloOptions = _SLO,
) -> int:
    """Write a run in another tool's format.

    Parameters
    ----------
    folder
        Run folder.
    format
        openmetrics: for `promtool tsdb create-blocks-from openmetrics`. llm-d: its benchmark report v0.2 as JSON.
    out
        File to write; stdout when absent.
    step
        Of openmetrics: time between samples, wall clock.
    """
    if not 0 < step < float("inf"):
        raise UsageError(f"--step {step:g}: must be above 0")
    run = RunFolder(folder)
    text = _openmetrics(run, step) if format is Form.OPENMETRICS else _llmd(run, slo.slo())
    if out is None:
        sys.stdout.write(text)
        return Exit.DONE
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StopError(f"--out {out}: cannot be written: {error.strerror}") from None
    return Exit.DONE


def _openmetrics(run: RunFolder, step_s: float) -> str:
    manifest = run.manifest()
    try:
        started = datetime.fromisoformat(str(manifest.get("started_at")))
    except ValueError:
        raise UsageError(f"{run.path}: has no wall-clock time (a run in virtual time), so no samples at one") from None
    label, speed = str(manifest.get("label", "")), float(manifest.get("speed", 1.0))
    return openmetrics(run.results(), started_at=started, label=label, speed=speed, step_s=step_s)


def _llmd(run: RunFolder, slo: Slo) -> str:
    report = llmd_report(columns_of(run.results()), summarise(run, slo), run.manifest())
    return orjson.dumps(report, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()
