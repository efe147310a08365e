"""Which share of a plan one load generator sends, and what was seen of its clock. Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from loadgen.failure import UsageError


@dataclass(frozen=True, slots=True)
class Shard:
    """One of several equal shares of a plan."""

    index: int = 0
    """From 0, as the completion index of a Kubernetes Indexed Job counts."""
    of: int = 1

    def part(self, worker: int, workers: int) -> tuple[int, int]:
        """Return which part of the whole plan one of the workers of this share sends, and how many parts there are."""
        return self.index + self.of * worker, self.of * workers

    def __str__(self) -> str:
        return f"{self.index}/{self.of}"


WHOLE = Shard()


def read_shard(text: str) -> Shard:
    """Read `INDEX/COUNT`.

    Raises:
        UsageError: it is not that, or the index is not below the count.
    """
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if found is None or not int(found[1]) < int(found[2]):
        raise UsageError(f"--shard {text}: write INDEX/COUNT with an index from 0, such as 0/4 for the first of four")
    return Shard(int(found[1]), int(found[2]))


@dataclass(frozen=True, slots=True)
class ClockReading:
    """One question for the time of the common clock. Seconds."""

    asked: float
    """Own monotonic clock, before."""
    answered: float
    """Own monotonic clock, after."""
    own_wall: float
    """Own wall clock, halfway between both."""
    common: float
    """What the common clock said."""

    @property
    def round_trip(self) -> float:
        """Return how long the question took."""
        return self.answered - self.asked

    def monotonic_at(self, common: float) -> float:
        """Return what the own monotonic clock says when the common clock says `common`."""
        return (self.asked + self.answered) / 2 + common - self.common

    def facts(self) -> dict[str, Any]:
        """Return what the manifest says: the own wall clock minus the common one, and by how much that may be wrong.

        The common clock was read somewhere between question and answer, so half the round trip bounds the error.
        """
        return {"offset_s": round(self.own_wall - self.common, 6), "within_s": round(self.round_trip / 2, 6)}


def best(readings: Iterable[ClockReading]) -> ClockReading:
    """Return the reading that took the shortest time: it is the one that can be least wrong."""
    return min(readings, key=lambda reading: reading.round_trip)
