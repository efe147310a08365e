"""Whether the answers of a run look like answers: empties, repetition, shifted finish reasons. Pure.

No text is kept of a run, so this looks at lengths and finish reasons; what texts say is for the canaries.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from loadgen.result import LoadOutcome, Result

FEW = 20
EMPTY_SHARE = 0.01
SHIFT = 0.05
"""A share of a finish reason that moved by this much, and by more than chance explains, has shifted."""
_Z = 2.58
"""Normal quantile of a 1 % test, both sides."""
REPETITION = "repetition"
"""Finish reason of an engine that stopped an answer because it went round in circles (vLLM 0.32 and newer)."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The complete answers of a run, counted."""

    ok: int
    empty: int
    """Without one token, or with one where more were asked for and the model ended by itself."""
    finishes: dict[str, int]

    def share(self, reason: str) -> float:
        """Return the share of a finish reason; NaN for no answer."""
        return self.finishes.get(reason, 0) / self.ok if self.ok else math.nan


def answers_of(results: Iterable[Result]) -> Answers:
    """Count the complete answers of a run."""
    ok = [one for one in results if one.outcome == LoadOutcome.OK]
    return Answers(len(ok), sum(_empty(one) for one in ok), dict(Counter(str(one.finish) for one in ok)))


def _empty(one: Result) -> bool:
    tokens = one.tokens or 0
    return tokens == 0 or (tokens == 1 and one.output_tokens > 1 and one.finish == "stop")


def abnormal(answers: Answers) -> Iterator[str]:
    """Say what is abnormal about the answers of one run, one sentence each."""
    if answers.empty > max(0, EMPTY_SHARE * answers.ok):
        yield f"{answers.empty} of {answers.ok} answers are empty"
    repeated = answers.finishes.get(REPETITION, 0)
    if repeated:
        yield f"{repeated} of {answers.ok} answers were stopped because they repeated themselves"


def shifted(before: Answers, after: Answers) -> Iterator[str]:
    """Say which finish reasons shifted between two runs of the same traffic, one sentence each."""
    if min(before.ok, after.ok) < FEW:
        return
    for reason in sorted(before.finishes.keys() | after.finishes.keys()):
        one, two = before.share(reason), after.share(reason)
        pooled = (before.finishes.get(reason, 0) + after.finishes.get(reason, 0)) / (before.ok + after.ok)
        error = math.sqrt(pooled * (1 - pooled) * (1 / before.ok + 1 / after.ok))
        if abs(two - one) >= SHIFT and abs(two - one) > _Z * error:
            yield f"finish reason {reason}: {one:.1%} of the answers before, {two:.1%} now"
    if after.empty / after.ok > before.empty / before.ok + EMPTY_SHARE:
        yield f"empty answers: {before.empty} of {before.ok} before, {after.empty} of {after.ok} now"


def requantised(before: object, after: object) -> str | None:
    """Say that a changed quantisation asks for an accuracy regression; None: it did not change, or is not known."""
    if before is None or after is None or before == after:
        return None
    return (
        f"quantisation changed from {before} to {after}: latency alone is no verdict; run an accuracy regression on "
        "your own evaluation set before this is kept"
    )
