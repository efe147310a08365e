"""One reading of one source, and the file of the run folder that keeps them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import orjson

from loadgen.failure import UsageError
from loadgen.telemetry.pages import Numbers


class Kind(StrEnum):
    """What a source is."""

    ENGINE = "engine"
    CARDS = "cards"


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading. A reading that failed has neither numbers nor cards, and says why."""

    t: float
    """Seconds of the plan after its start; below 0 for the reading before it."""
    numbers: Numbers = field(default_factory=dict)
    """Of an engine."""
    cards: dict[str, Numbers] = field(default_factory=dict)
    """Chip → its numbers."""
    error: str | None = None

    def line(self) -> dict[str, Any]:
        """Return the line of the file: what is empty is left out."""
        parts = {"numbers": self.numbers, "cards": self.cards, "error": self.error}
        return {"t": round(self.t, 3), **{name: value for name, value in parts.items() if value}}


def read_samples_file(path: Path) -> Iterator[Sample]:
    """Read the readings of one source; a cut last line (kill -9, full disk) is left out.

    Raises:
        UsageError: a line other than the last cannot be read.
    """
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            return
        try:
            document = orjson.loads(line)
            yield Sample(
                t=float(document["t"]),
                numbers=dict(document.get("numbers", {})),
                cards=dict(document.get("cards", {})),
                error=document.get("error"),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UsageError(f"{path}:{number}: not a reading: {error}") from None
