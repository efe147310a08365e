"""Opening a trace file: which format it is, and its rows one at a time in bounded memory."""

import gzip
import hashlib
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, count, islice
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from loadgen.failure import UsageError
from loadgen.tracefile import accesslog, azure, bailian, burstgpt, lanewise, mooncake, servegen, sharegpt
from loadgen.tracefile.detect import FORMATS, LOOKED_AT, Format, detect
from loadgen.tracefile.row import LineError, Row, checked

LONGEST_LINE = 8 * 1024 * 1024
KEPT_EXAMPLES = 5
_BROKEN = (OSError, EOFError, zlib.error)
"""What reading a file, or a compressed one that is damaged, can end with."""


@dataclass(slots=True)
class Skipped:
    """Bad lines that were passed over."""

    counts: Counter[int] = field(default_factory=Counter)
    """By source; a file that is read again is counted again, not added."""
    examples: list[str] = field(default_factory=list)
    """The first few, as `file:line: reason`."""

    @property
    def count(self) -> int:
        """How many there are."""
        return self.counts.total()

    def begin(self, source: int) -> None:
        """Forget the count of a source that is read from its start."""
        self.counts[source] = 0

    def add(self, message: str, source: int) -> None:
        """Count one bad line."""
        self.counts[source] += 1
        if len(self.examples) < KEPT_EXAMPLES and message not in self.examples:
            self.examples.append(message)


@dataclass(frozen=True, slots=True)
class Reading:
    """How a file is read."""

    assume_output_tokens: int = 256
    """Output length where none is recorded and no cap either."""
    seed: int = 1
    """Of what is drawn: ServeGen's requests."""
    bodies: str | None = None
    """Rows carry their request bodies, which must be of this endpoint; None: they carry none."""
    start_s: float = 0.0
    """Nothing before this is wanted, seconds after the first request: what is drawn need not be drawn before it."""
    end_s: float | None = None
    """Nothing from this on is wanted."""


class _Parse(Protocol):
    def __call__(self, line: str, number: int) -> Row | None: ...


@dataclass(slots=True)
class Trace:
    """An open question to one file: iterate `rows()` once or several times, each reads the file anew."""

    path: Path
    format: Format
    skipped: Skipped | None
    """Where bad lines are counted; None: the first one stops the reading."""
    reading: Reading
    source: int
    can_skip: bool = True
    """Whether whoever reads offers `--bad-lines skip`; said with a bad line."""
    assumed_outputs: int = 0
    """Requests whose output length had to be assumed, in the last reading."""
    other_lines: int = 0
    """Lines that are no request (headers, other log lines, other endpoints), in the last reading."""

    def rows(self) -> Iterator[Row]:
        """Read the rows in file order.

        Raises:
            UsageError: the file cannot be read, or (unless bad lines are skipped) a line of it.
        """
        if self.format.lines:
            return (row for _, row in self.lines())
        self._begin()
        drawn = self._conversations() if self.format.name == "sharegpt" else self._windows()
        return map(self._placed, drawn)

    def lines(self) -> Iterator[tuple[str, Row]]:
        """Read the rows of a format that has one per line, with their lines.

        Raises:
            UsageError: as `rows`, or the format has no such lines.
        """
        if not self.format.lines:
            raise UsageError(f"{self.path}: {self.format.name} has no line per request; use `trace convert` first")
        self._begin()
        parse = self._parser()
        for number, raw in enumerate(_lines(self.path), 1):
            try:
                line = _text(raw)
                row = parse(line, number) if line else None
                if row is not None:
                    yield line, self._placed(checked(row))
                else:
                    self.other_lines += 1
            except LineError as error:
                self._bad(f"{self.path}:{number}: {error}")

    def _begin(self) -> None:
        self.assumed_outputs = self.other_lines = 0
        if self.skipped is not None:
            self.skipped.begin(self.source)

    def header(self) -> str | None:
        """Return the line before the first request, for formats that have one."""
        return _first_lines(self.path, 1)[0] if self.format.name in {"azure", "burstgpt"} else None

    def _parser(self) -> _Parse:
        assume = self.reading.assume_output_tokens
        if self.format.name == "lanewise":
            return lanewise.Parser(assume, self.reading.bodies).parse
        if self.reading.bodies is not None:
            raise UsageError(f"{self.path}: {self.format.name} holds no request bodies; lanewise and sharegpt do")
        if self.format.name == "burstgpt":
            return burstgpt.Parser(assume).parse
        return _STATELESS[self.format.name]

    def _placed(self, row: Row) -> Row:
        self.assumed_outputs += row.assumed
        if self.source == 0:
            return row
        if not self.format.own_ids:
            return replace(row, source=self.source)
        mask = _mask(self.source)
        blocks = tuple(block ^ mask for block in row.blocks)
        chat, parent = (number ^ mask if number >= 0 else -1 for number in (row.chat, row.parent))
        return replace(row, source=self.source, blocks=blocks, chat=chat, parent=parent)

    def _conversations(self) -> Iterator[Row]:
        if self.reading.bodies not in {None, "chat"}:
            raise UsageError(f"{self.path}: conversations can be sent to the chat endpoint only (--endpoint chat)")
        # The texts of several files are numbered apart.
        chats = count(self.source << 40)
        with _opened(self.path) as file:
            documents, number = sharegpt.conversations(file), 0
            while True:
                number += 1
                try:
                    document = next(documents, None)
                except LineError as error:
                    raise UsageError(f"{self.path}: conversation {number} {error}") from None
                except _BROKEN as error:
                    raise UsageError(f"{self.path}: cannot be read: {error}") from None
                if document is None:
                    return
                try:
                    for row in sharegpt.rows(document, number, chats, bodies=self.reading.bodies is not None):
                        yield checked(row)
                except LineError as error:
                    self._bad(f"{self.path}: conversation {number} {error}")

    def _windows(self) -> Iterator[Row]:
        if self.reading.bodies is not None:
            raise UsageError(f"{self.path}: servegen holds no request bodies; lanewise and sharegpt do")
        lengths = servegen.read_lengths(self.path)
        seed, start_s, end_s = self.reading.seed, self.reading.start_s, self.reading.end_s
        first_s = None
        for number, raw in enumerate(_lines(self.path), 1):
            try:
                window = servegen.window_of(_text(raw), number)
            except LineError as error:
                self._bad(f"{self.path}:{number}: {error}")
                continue
            if first_s is not None and end_s is not None and window.start_s >= first_s + end_s:
                return
            if first_s is None or window.start_s + servegen.WINDOW_S > first_s + start_s:
                rows = servegen.draw(window, lengths, self.path.name, seed)
                if first_s is None and (row := next(rows, None)) is not None:
                    first_s = row.t_ns / 1e9
                    rows = chain((row,), rows)
                yield from rows

    def _bad(self, message: str) -> None:
        if self.skipped is None:
            skip = ", or pass over such lines with --bad-lines skip" if self.can_skip else ""
            raise UsageError(f"{message}. Mend the line{skip}")
        self.skipped.add(message, self.source)


_STATELESS: dict[str, _Parse] = {
    "azure": azure.parse,
    "mooncake": mooncake.parse,
    "bailian": bailian.parse,
    "log": accesslog.parse,
}


def _mask(source: int) -> int:
    """Return what keeps the ids of one file apart from those of the others."""
    digest = hashlib.blake2b(f"trace {source}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def open_trace(
    path: Path,
    format_name: str | None = None,
    *,
    skipped: Skipped | None = None,
    reading: Reading | None = None,
    source: int = 0,
    can_skip: bool = True,
) -> Trace:
    """Find out what kind of file it is.

    Args:
        path: the file; `.gz` is read through gzip.
        format_name: one of `FORMATS`; None: told by the content.
        skipped: counts bad lines; None: the first bad line is an error.
        reading: how it is read.
        source: position of this file among those read together.
        can_skip: whether whoever reads offers `--bad-lines skip`.

    Raises:
        UsageError: no such file or format, or the content is of no known format.
    """
    if format_name is not None and format_name not in FORMATS:
        raise UsageError(f"--format {format_name}: not known; one of {', '.join(FORMATS)}")
    name = format_name or detect(path, _first_lines(path, LOOKED_AT))
    return Trace(path, FORMATS[name], skipped, reading or Reading(), source, can_skip)


def _first_lines(path: Path, most: int) -> list[str]:
    """Return the first lines; what is no text ends them, and is an error when it is the first."""
    found: list[str] = []
    for raw in islice(_lines(path), most):
        try:
            # A whole array of conversations can be one line.
            found.append(_text(raw if len(raw) <= LONGEST_LINE or not raw.startswith(b"[") else raw[:80]))
        except LineError as error:
            if not found:
                raise UsageError(f"{path}:1: {error}") from None
            break
    return found


def _text(raw: bytes) -> str:
    if len(raw) > LONGEST_LINE:
        raise LineError(f"is longer than {LONGEST_LINE} bytes")
    try:
        return raw.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise LineError(f"is not UTF-8 text: {error.reason} at byte {error.start}") from None


def _opened(path: Path) -> BinaryIO:
    opener = cast("Callable[..., BinaryIO]", gzip.open if _is_gzip(path) else open)
    return opener(path, "rb")


def _is_gzip(path: Path) -> bool:
    """Say whether a file is compressed, whatever its name."""
    try:
        with path.open("rb") as file:
            return file.read(2) == b"\x1f\x8b"
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UsageError(f"{path}: is a directory; name the trace files in it, such as {path}/*.jsonl") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None


def _lines(path: Path) -> Iterator[bytes]:
    """Yield lines of at most LONGEST_LINE + 1 bytes; the rest of a longer one is read past."""
    try:
        with _opened(path) as file:
            while line := file.readline(LONGEST_LINE + 1):
                rest = line
                while len(rest) > LONGEST_LINE and not rest.endswith(b"\n"):
                    rest = file.readline(LONGEST_LINE + 1)
                yield line
    except _BROKEN as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
