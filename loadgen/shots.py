"""`lanewise-load shots`: the requests of a run as a table, CSV or Parquet: one row a request, latencies computed."""

import csv
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

import orjson

from loadgen.failure import Exit, StopError, UsageError
from loadgen.journal import RunFolder
from loadgen.result import Result

LISTS = ("events", "counts")
"""Fields that hold many values: JSON text in CSV, lists in Parquet."""
_BATCH = 10_000


def _span(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else round(end - start, 6)


def _tpot(one: Result) -> float | None:
    if one.tokens is None or one.tokens < 2 or one.first is None or one.last is None:
        return None
    return round((one.last - one.first) / (one.tokens - 1), 9)


_COMPUTED: dict[str, Callable[[Result], float | None]] = {
    "ttft": lambda one: _span(one.due, one.first),
    "ttft_send": lambda one: _span(one.sent, one.first),
    "ttfot": lambda one: _span(one.due, one.first_content),
    "tpot": _tpot,
    "e2e": lambda one: _span(one.due, one.last),
    "lag": lambda one: _span(one.due, one.started),
}
"""Seconds of the plan, as docs/latencies.md defines them; of every outcome that has the stamps."""
FIELDS = tuple(field.name for field in fields(Result))
HEADER = (*(name for name in FIELDS if name not in LISTS), *_COMPUTED, *LISTS)


class Format(StrEnum):
    """How the table is written."""

    CSV = "csv"
    PARQUET = "parquet"
    """Needs pyarrow: the extra `parquet` of the distribution."""


def shots(
    folder: Path,
    /,
    *,
    format: Format = Format.CSV,  # noqa: A002 - the name of the option
    out: Path | None = None,
) -> int:
    """Write the requests of a run as a table: one row each, in the order they finished, with their latencies.

    Parameters
    ----------
    folder
        Run folder, complete or not.
    format
        csv, or parquet (needs the extra `lanewise[parquet]`).
    out
        File to write; of CSV, stdout when absent.
    """
    results = RunFolder(folder).results()
    if format is Format.PARQUET:
        if out is None:
            raise UsageError("--format parquet: a Parquet file is no text for a terminal; name it with --out FILE")
        _told(out, lambda: write_parquet(results, out))
    elif out is None:
        write_csv(results, sys.stdout)
    else:
        _told(out, lambda: _csv_file(results, out))
    return Exit.DONE


def write_csv(results: Iterable[Result], file: IO[str]) -> None:
    """Write a header and one line a request; what did not happen is empty."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(HEADER)
    for one in results:
        row = row_of(one)
        writer.writerow([orjson.dumps(row[name]).decode() if name in LISTS else row[name] for name in HEADER])


def row_of(one: Result) -> dict[str, Any]:
    """Return one request as column → value; None: did not happen."""
    row = {name: getattr(one, name) for name in FIELDS}
    return row | {name: value(one) for name, value in _COMPUTED.items()}


def write_parquet(results: Iterable[Result], out: Path) -> None:
    """Write a Parquet file, `_BATCH` rows at a time.

    Raises:
        UsageError: pyarrow is not installed.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415  (optional)
        import pyarrow.parquet as pq  # noqa: PLC0415
    except ImportError:
        raise UsageError(
            "--format parquet needs pyarrow, which is not installed: install lanewise[parquet], or write --format csv"
        ) from None
    schema = pa.schema([(name, _arrow(pa, name)) for name in HEADER])
    with pq.ParquetWriter(out, schema) as writer:
        batch: list[dict[str, Any]] = []
        for one in results:
            batch.append(row_of(one))
            if len(batch) == _BATCH:
                writer.write_table(pa.Table.from_pylist(batch, schema))
                batch = []
        writer.write_table(pa.Table.from_pylist(batch, schema))


def _arrow(pa: Any, name: str) -> Any:
    if name in LISTS:
        return pa.list_(pa.int64())
    if name in _COMPUTED:
        return pa.float64()
    annotation = str(next(field.type for field in fields(Result) if field.name == name))
    kinds = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "str": pa.string()}
    return next(arrow for kind, arrow in kinds.items() if kind in annotation)


def _csv_file(results: Iterable[Result], out: Path) -> None:
    with out.open("w", encoding="utf-8", newline="") as file:
        write_csv(results, file)


def _told(out: Path, write: Callable[[], None]) -> None:
    try:
        write()
    except OSError as error:
        raise StopError(f"--out {out}: cannot be written: {error.strerror or error}") from None
