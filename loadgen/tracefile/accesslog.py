"""Log lines of an engine, a gateway or a web server that tell a time and both lengths.

What is looked for: the lengths as `name=number`, `name: number` or `"name": number`, where the name is prompt_tokens,
input_tokens or prompt_len and completion_tokens, output_tokens or output_len; the time as ISO 8601, as vLLM's logger
writes it (`11-30 18:45:02`, without a year), as a web server does (`[30/Nov/2026:18:45:02 +0000]`), or as Unix seconds
after `ts=` or `time=`. A line with neither length is no request.
"""

import re
from datetime import UTC, datetime

from loadgen.tracefile.row import LineError, Row

TIME_UNIT = "the clock of the log, UTC where it names no zone"

_PROMPT = re.compile(r'\b(?:prompt_tokens|input_tokens|prompt_len|num_prompt_tokens)"?\s*[=:]\s*(\d+)\b')
_OUTPUT = re.compile(
    r'\b(?:completion_tokens|output_tokens|generated_tokens|output_len|num_generation_tokens)"?\s*[=:]\s*(\d+)\b'
)
_ISO = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?\s?(Z|[+-]\d\d:?\d\d)?")
_VLLM = re.compile(r"\b(\d\d-\d\d) (\d\d:\d\d:\d\d)\b")
_WEB = re.compile(r"\[(\d{1,2}/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d) ([+-]\d{4})\]")
_UNIX = re.compile(r'\b(?:ts|time|timestamp)"?\s*[=:]\s*"?(\d{9,10})(?:\.(\d{1,9}))?\b')
_A_LEAP_YEAR = "2024"


def parse(line: str, number: int) -> Row | None:
    """Read one line; None for a line that names no length.

    Raises:
        LineError: only one length is there, or no time.
    """
    prompt, output = _PROMPT.search(line), _OUTPUT.search(line)
    if prompt is None and output is None:
        return None
    if prompt is None or output is None:
        missing = "prompt" if prompt is None else "output"
        raise LineError(f"tells one length only: its {missing} length is missing")
    return Row(number, time_ns(line), int(prompt[1]), int(output[1]))


def is_request(line: str) -> bool:
    """Say whether a line tells a time and both lengths."""
    try:
        return parse(line, 1) is not None
    except LineError:
        return False


def time_ns(line: str) -> int:
    """Return the first time that a line tells, in nanoseconds since 1970 (since 2024 where no year is told).

    Raises:
        LineError: there is none, or it is no time that exists.
    """
    try:
        found = _found(line)
    except ValueError as error:
        raise LineError(f"its time does not exist: {error}") from None
    if found is None:
        raise LineError("tells no time: ISO 8601, MM-DD HH:MM:SS, [DD/Mon/YYYY:HH:MM:SS +ZZZZ] or ts=UNIX_SECONDS")
    return found


def _found(line: str) -> int | None:
    if match := _ISO.search(line):
        zone = (match[4] or "Z").replace("Z", "+00:00")
        return _ns(datetime.fromisoformat(f"{match[1]}T{match[2]}{zone}"), match[3])
    if match := _WEB.search(line):
        return _ns(datetime.strptime(f"{match[1]} {match[2]}", "%d/%b/%Y:%H:%M:%S %z"))
    if match := _UNIX.search(line):
        return int(match[1]) * 1_000_000_000 + _fraction(match[2])
    if match := _VLLM.search(line):
        return _ns(datetime.fromisoformat(f"{_A_LEAP_YEAR}-{match[1]}T{match[2]}+00:00"))
    return None


def _ns(moment: datetime, fraction: str | None = None) -> int:
    return int(moment.astimezone(UTC).timestamp()) * 1_000_000_000 + _fraction(fraction)


def _fraction(digits: str | None) -> int:
    return int((digits or "0").ljust(9, "0"))
