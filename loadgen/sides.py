"""What is compared: one run, or a baseline of several repeats of it. Reading only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from loadgen.columns import Columns, columns_of
from loadgen.failure import UsageError
from loadgen.journal import RunFolder
from loadgen.summarise import summarise_columns
from loadgen.summary import Slo, Summary
from loadgen.telemetry.digest import telemetry_of

BASELINE = "baseline.json"
BASELINE_SCHEMA = "lanewise.baseline/1"


@dataclass(frozen=True, slots=True)
class Repeat:
    """One run of a side."""

    manifest: dict[str, Any]
    columns: Columns
    summary: Summary
    peaks: Mapping[str, float]
    """Of engine and cards: kv_usage (share), hbm_mb. What was not read is absent."""


@dataclass(frozen=True, slots=True)
class Side:
    """Before, or after."""

    label: str
    repeats: tuple[Repeat, ...]
    refused: str | None = None
    """Why a baseline is none; None: it is one, or a single run."""
    spread: Mapping[str, float] = field(default_factory=dict)
    """Of a baseline: distance between its extreme repeats, by metric."""


def read_side(folder: RunFolder, slo: Slo) -> Side:
    """Read a run folder, or a baseline folder with all its repeats.

    Raises:
        UsageError: it is neither.
    """
    document = read_baseline(folder)
    if document is None:
        one = read_repeat(folder, slo)
        return Side(one.summary.label, (one,))
    repeats = tuple(read_repeat(RunFolder(folder.path / name), slo) for name in document["repeats"])
    spread = {name: float(entry["range"]) for name, entry in document["spread"].items() if entry["range"] is not None}
    return Side(str(document["label"]), repeats, None if document["accepted"] else str(document["why"]), spread)


def read_baseline(folder: RunFolder) -> dict[str, Any] | None:
    """Return what `lanewise-load baseline` wrote into a folder; None when it is no baseline folder.

    Raises:
        UsageError: the file cannot be read.
    """
    file = folder.path / BASELINE
    if not file.is_file():
        return None
    try:
        document = orjson.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: cannot be read: {error}") from None
    if not isinstance(document, dict) or document.get("schema") != BASELINE_SCHEMA:
        raise UsageError(f"{file}: schema is not {BASELINE_SCHEMA}, the one that this version reads")
    return document


def read_repeat(run: RunFolder, slo: Slo) -> Repeat:
    """Read one run folder.

    Raises:
        UsageError: it is none.
    """
    manifest = run.manifest()
    columns = columns_of(run.results())
    return Repeat(manifest, columns, summarise_columns(columns, manifest, slo), _peaks(run, manifest))


def _peaks(run: RunFolder, manifest: Mapping[str, Any]) -> dict[str, float]:
    """Peaks as the run itself knows them (virtual time), else of what was read once a second."""
    own = manifest.get("peaks")
    if isinstance(own, dict):
        return {name: float(value) for name, value in own.items() if isinstance(value, (int, float))}
    read = telemetry_of(run)
    if read is None:
        return {}
    found = {"kv_usage": read.kv_peak, "hbm_mb": read.hbm_peak_mb, "preemptions": read.preemptions}
    return {name: value for name, value in found.items() if value is not None}
