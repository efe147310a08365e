"""Opening a trace file: which format it is, and its rows one at a time in bounded memory."""

import gzip
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import orjson

from loadgen.failure import UsageError
from loadgen.tracefile import azure, lanewise, mooncake
from loadgen.tracefile.row import LineError, Row, checked

LONGEST_LINE = 8 * 1024 * 1024
KEPT_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of trace file."""

    name: str
    time_unit: str
    wall_clock: bool
    """Whether two files of it can be merged by their times."""


FORMATS = {
    "azure": Format("azure", azure.TIME_UNIT, wall_clock=True),
    "mooncake": Format("mooncake", mooncake.TIME_UNIT, wall_clock=False),
    "lanewise": Format("lanewise", lanewise.TIME_UNIT, wall_clock=True),
}


@dataclass(slots=True)
class Skipped:
    """Bad lines that were passed over."""

    count: int = 0
    examples: list[str] = field(default_factory=list)
    """The first few, as `file:line: reason`."""

    def add(self, message: str) -> None:
        """Count one bad line."""
        self.count += 1
        if len(self.examples) < KEPT_EXAMPLES:
            self.examples.append(message)


class _Parse(Protocol):
    def __call__(self, line: str, number: int) -> Row | None: ...


@dataclass(slots=True)
class Trace:
    """An open question to one file: iterate `rows()` once or several times, each reads the file anew."""

    path: Path
    format: Format
    skipped: Skipped | None
    """Where bad lines are counted; None: the first one stops the reading."""
    assume_output_tokens: int
    source: int
    can_skip: bool = True
    """Whether whoever reads offers `--bad-lines skip`; said with a bad line."""
    assumed_outputs: int = 0
    """lanewise records whose output length had to be assumed, in the last reading."""

    def rows(self) -> Iterator[Row]:
        """Read the rows in file order.

        Raises:
            UsageError: the file cannot be read, or (unless bad lines are skipped) a line of it.
        """
        records = lanewise.Parser(self.assume_output_tokens)
        parses: dict[str, _Parse] = {"azure": azure.parse, "mooncake": mooncake.parse, "lanewise": records.parse}
        yield from self._parsed(parses[self.format.name])
        self.assumed_outputs = records.assumed

    def _parsed(self, parse: _Parse) -> Iterator[Row]:
        for number, raw in enumerate(_lines(self.path), 1):
            try:
                line = _text(raw)
                row = parse(line, number) if line else None
                if row is not None:
                    yield checked(row if self.source == 0 else replace(row, source=self.source))
            except LineError as error:
                self._bad(f"{self.path}:{number}: {error}")

    def _bad(self, message: str) -> None:
        if self.skipped is None:
            skip = ", or pass over such lines with --bad-lines skip" if self.can_skip else ""
            raise UsageError(f"{message}. Mend the line{skip}")
        self.skipped.add(message)


def open_trace(
    path: Path,
    format_name: str | None = None,
    *,
    skipped: Skipped | None = None,
    assume_output_tokens: int = 256,
    source: int = 0,
    can_skip: bool = True,
) -> Trace:
    """Find out what kind of file it is.

    Args:
        path: the file; `.gz` is read through gzip.
        format_name: azure, mooncake or lanewise; None: decided by the first line.
        skipped: counts bad lines; None: the first bad line is an error.
        assume_output_tokens: output length where a lanewise record has none.
        source: position of this file among those read together.
        can_skip: whether whoever reads offers `--bad-lines skip`.

    Raises:
        UsageError: no such file or format, or the first line is of no known format.
    """
    if format_name is not None and format_name not in FORMATS:
        raise UsageError(f"--format {format_name}: not known; one of {', '.join(FORMATS)}")
    name = format_name or detect(path, _first_line(path))
    return Trace(path, FORMATS[name], skipped, assume_output_tokens, source, can_skip)


def detect(path: Path, line: str) -> str:
    """Return the format whose first line this is.

    Raises:
        UsageError: no format starts like this.
    """
    if line == azure.HEADER:
        return "azure"
    document = _document(line)
    if document.keys() >= mooncake.KEYS:
        return "mooncake"
    if str(document.get("schema", "")).startswith("lanewise.trace/"):
        return "lanewise"
    what = "the first line is" if line else "the file is empty, or its first line is, and that is"
    raise UsageError(
        f"{path}:1: {what} of no known trace format: azure starts with {azure.HEADER}, mooncake with a JSON "
        f"object of {', '.join(sorted(mooncake.KEYS))}, lanewise with a trace record; --format names it"
    )


def _document(line: str) -> dict[str, Any]:
    try:
        document = orjson.loads(line)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _first_line(path: Path) -> str:
    try:
        return _text(next(_lines(path), b""))
    except LineError as error:
        raise UsageError(f"{path}:1: {error}") from None


def _text(raw: bytes) -> str:
    if len(raw) > LONGEST_LINE:
        raise LineError(f"is longer than {LONGEST_LINE} bytes")
    try:
        return raw.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise LineError(f"is not UTF-8 text: {error.reason} at byte {error.start}") from None


def _lines(path: Path) -> Iterator[bytes]:
    """Yield lines of at most LONGEST_LINE + 1 bytes; the rest of a longer one is read past."""
    opener = cast("Callable[..., BinaryIO]", gzip.open if path.suffix == ".gz" else open)
    try:
        with opener(path, "rb") as file:
            while line := file.readline(LONGEST_LINE + 1):
                rest = line
                while len(rest) > LONGEST_LINE and not rest.endswith(b"\n"):
                    rest = file.readline(LONGEST_LINE + 1)
                yield line
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except (OSError, EOFError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
