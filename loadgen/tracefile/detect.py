"""Which format a trace file has, told by its content."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from loadgen.failure import UsageError
from loadgen.tracefile import accesslog, azure, bailian, burstgpt, lanewise, mooncake, servegen, sharegpt

LOOKED_AT = 200
"""Lines in which a request is looked for, in a log."""


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of trace file."""

    name: str
    time_unit: str
    clock: str
    """Files of one clock can be merged by their times. `own`: each file has its own; `none`: no times at all."""
    lines: bool = True
    """Whether every request is one line, which can be kept or left out."""
    own_ids: bool = False
    """Block ids mean something within one file only."""

    @property
    def wall_clock(self) -> bool:
        """Whether two files of it can be merged by their times."""
        return self.clock not in {"own", "none"}


FORMATS = {
    kind.name: kind
    for kind in (
        Format("azure", azure.TIME_UNIT, "utc"),
        Format("mooncake", mooncake.TIME_UNIT, "own", own_ids=True),
        Format("lanewise", lanewise.TIME_UNIT, "utc"),
        Format("bailian", bailian.TIME_UNIT, "own", own_ids=True),
        Format("burstgpt", burstgpt.TIME_UNIT, "own"),
        Format("servegen", servegen.TIME_UNIT, "servegen", lines=False),
        Format("sharegpt", sharegpt.TIME_UNIT, "none", lines=False),
        Format("log", accesslog.TIME_UNIT, "utc"),
    )
}


def detect(path: Path, lines: Sequence[str]) -> str:
    """Return the format that a file's first lines are of.

    Args:
        path: named in the error.
        lines: the first `LOOKED_AT`.

    Raises:
        UsageError: no format starts like this.
    """
    first = lines[0] if lines else ""
    if name := _by_first_line(first):
        return name
    if any(accesslog.is_request(line) for line in lines):
        return "log"
    what = "the first line is" if first else "the file is empty, or its first line is, and that is"
    raise UsageError(
        f"{path}:1: {what} of no known trace format: azure starts with {azure.HEADER}, burstgpt with a header of "
        f"{', '.join(burstgpt.NEEDED)}, mooncake with a JSON object of {', '.join(sorted(mooncake.KEYS))}, bailian "
        "with one that has chat_id and parent_chat_id too, lanewise with a trace record, servegen with six numbers "
        "(window start, rate, CV, distribution, shape, scale), sharegpt with conversations, a log with lines that tell "
        "a time, prompt_tokens and completion_tokens; --format names it"
    )


def _by_first_line(line: str) -> str | None:
    if line == azure.HEADER:
        return "azure"
    if burstgpt.is_header(line):
        return "burstgpt"
    if servegen.is_first_line(line):
        return "servegen"
    if line.startswith("["):
        return "sharegpt" if line[1:].strip()[:1] in {"", "{"} and line[1:].strip() != "]" else None
    return _by_keys(_document(line))


def _by_keys(document: dict[str, Any]) -> str | None:
    if document.keys() >= bailian.KEYS:
        return "bailian"
    if document.keys() >= mooncake.KEYS:
        return "mooncake"
    if str(document.get("schema", "")).startswith("lanewise.trace/"):
        return "lanewise"
    return "sharegpt" if isinstance(document.get("conversations"), list) else None


def _document(line: str) -> dict[str, Any]:
    try:
        document = orjson.loads(line)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
