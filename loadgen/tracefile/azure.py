"""Azure's CSV of LLM inference: TIMESTAMP (wall clock, UTC, up to 100 ns digits), ContextTokens, GeneratedTokens."""

from datetime import UTC, datetime

from loadgen.tracefile.row import LineError, Row

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
TIME_UNIT = "wall clock (UTC)"


def parse(line: str, number: int) -> Row | None:
    """Read one line; None for the header.

    Raises:
        LineError: the line is not three fields of the right kind.
    """
    if number == 1 and line == HEADER:
        return None
    fields = line.split(",")
    if len(fields) != 3:
        raise LineError(f"has {len(fields)} fields; {HEADER} are 3")
    return Row(number, time_ns(fields[0]), _tokens(fields[1], "ContextTokens"), _tokens(fields[2], "GeneratedTokens"))


def time_ns(text: str) -> int:
    """Return nanoseconds since 1970 of `YYYY-MM-DD HH:MM:SS[.fraction][+00:00]`, every digit kept.

    Raises:
        LineError: the text is not such a time.
    """
    seconds, digits = text[:19], text[19:].removesuffix("Z").removesuffix("+00:00")
    try:
        moment = datetime.fromisoformat(seconds)
    except ValueError:
        raise LineError(f"TIMESTAMP {text!r} is not a time like 2023-11-16 18:15:46.6805900") from None
    return int(moment.replace(tzinfo=UTC).timestamp()) * 1_000_000_000 + _fraction_ns(digits, text)


def _fraction_ns(digits: str, text: str) -> int:
    if not digits:
        return 0
    fraction = digits[1:]
    if digits[0] != "." or not (fraction.isascii() and fraction.isdigit()) or len(fraction) > 9:
        raise LineError(f"TIMESTAMP {text!r}: the fraction of a second is not 1 to 9 digits")
    return int(fraction.ljust(9, "0"))


def _tokens(text: str, column: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise LineError(f"{column} {text!r} is not a whole number")
    return int(text)
