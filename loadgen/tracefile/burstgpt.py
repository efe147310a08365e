"""BurstGPT's CSV: Timestamp (seconds), Request tokens, Response tokens; newer files have Session ID and Elapsed time.

Columns are found by the names of the header, so that all three sets of columns are read, in any order. A row with 0
response tokens is a request that failed there: it is asked again with an assumed output length, and counted.
"""

import csv
import math

from loadgen.tracefile.row import LineError, Row

TIME_UNIT = "seconds from the start"
NEEDED = ("Timestamp", "Request tokens", "Response tokens")


def is_header(line: str) -> bool:
    """Say whether a first line is this format's."""
    try:
        return set(NEEDED) <= set(_split(line))
    except LineError:
        return False


class Parser:
    """Reads the lines of one file, its header first."""

    def __init__(self, assume_output_tokens: int) -> None:
        self._assume = assume_output_tokens
        self._places: tuple[int, ...] | None = None
        self._width = 0

    def parse(self, line: str, number: int) -> Row | None:
        """Read one line; None for the header.

        Raises:
            LineError: the header lacks a column, or a field is of the wrong kind.
        """
        fields = _split(line)
        if self._places is None:
            self._take_header(fields)
            return None
        if len(fields) != self._width:
            raise LineError(f"has {len(fields)} fields; the header has {self._width}")
        time, prompt, output = (fields[place] for place in self._places)
        answered = _tokens(output, "Response tokens")
        return Row(
            number,
            _time_ns(time),
            _tokens(prompt, "Request tokens"),
            answered or self._assume,
            assumed=answered == 0,
        )

    def _take_header(self, names: list[str]) -> None:
        if not set(NEEDED) <= set(names):
            raise LineError(f"is no header with {', '.join(NEEDED)}")
        self._places, self._width = tuple(names.index(name) for name in NEEDED), len(names)


def _split(line: str) -> list[str]:
    if '"' not in line:
        return line.split(",")
    try:
        return next(csv.reader([line], strict=True), [])
    except csv.Error as error:
        raise LineError(f"is not CSV: {error}") from None


def _time_ns(text: str) -> int:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds >= 0):
        raise LineError(f"Timestamp {text!r} is no number of seconds from 0")
    return round(seconds * 1e9)


def _tokens(text: str, column: str) -> int:
    whole = text.removesuffix(".0")
    if not (whole.isascii() and whole.isdigit()):
        raise LineError(f"{column} {text!r} is not a whole number")
    return int(whole)
