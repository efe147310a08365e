"""Whether the answers of a run look like answers: empties, repetition, shifted finish reasons. Pure.

No text is kept of a run: of a text only whether it goes round in circles is, and that only where it was asked for.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from loadgen.result import LoadOutcome, Result

FEW = 20
EMPTY_SHARE = 0.01
REPEATING_SHARE = 0.02
"""More repeating answers than this are abnormal. Prompts without meaning (token ids of a trace of lengths) make a model
repeat itself anyhow: there, only the share against a baseline counts."""
SHIFT = 0.05
"""A share of a finish reason that moved by this much, and by more than chance explains, has shifted."""
REPEATED_WORDS = 4
REPEATED_TIMES = 5
REPEATED_SHARE = 0.5
"""A text repeats itself when one run of four words comes five times or more and makes up half of it."""
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
    looked_at: int = 0
    """Answers whose text was looked at (`replay --check-answers`)."""
    repeating: int = 0
    """Those of them that go round in circles."""

    def share(self, reason: str) -> float:
        """Return the share of a finish reason; NaN for no answer."""
        return self.finishes.get(reason, 0) / self.ok if self.ok else math.nan


def answers_of(results: Iterable[Result]) -> Answers:
    """Count the complete answers of a run."""
    ok = [one for one in results if one.outcome == LoadOutcome.OK]
    texts = [one.repeats for one in ok if one.repeats is not None]
    finishes = dict(Counter(str(one.finish) for one in ok))
    return Answers(len(ok), sum(_empty(one) for one in ok), finishes, len(texts), sum(texts))


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
    if answers.repeating > REPEATING_SHARE * answers.looked_at:
        yield f"{answers.repeating} of {answers.looked_at} answers go round in circles"


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
    one, two = (side.repeating / side.looked_at if side.looked_at >= FEW else math.nan for side in (before, after))
    if two - one >= SHIFT:
        yield f"answers that go round in circles: {one:.1%} before, {two:.1%} now"


def requantised(before: object, after: object) -> str | None:
    """Say that a changed quantisation asks for an accuracy regression; None: it did not change, or is not known."""
    if before is None or after is None or before == after:
        return None
    return (
        f"quantisation changed from {before} to {after}: latency alone is no verdict; run an accuracy regression on "
        "your own evaluation set before this is kept"
    )


def repeats_itself(text: str) -> bool:
    """Return whether a text goes round in circles. Texts without spaces are looked at character by character."""
    words: Sequence[str] = text.split()
    if len(words) < len(text) / 20:
        words = list(text)
    grams = Counter(tuple(words[at : at + REPEATED_WORDS]) for at in range(len(words) - REPEATED_WORDS + 1))
    if not grams:
        return False
    times = grams.most_common(1)[0][1]
    return times >= REPEATED_TIMES and times * REPEATED_WORDS >= REPEATED_SHARE * len(words)


def streamed_text(body: bytes) -> str:
    """Return the text of the first choice of a stream, reasoning included; what cannot be read is left out."""
    parts = []
    for line in body.split(b"\n"):
        if not line.startswith(b"data:"):
            continue
        try:
            document = orjson.loads(line[5:])
        except ValueError:
            continue
        parts.append(_piece(document))
    return "".join(parts)


def _piece(document: Any) -> str:
    choices = document.get("choices") if isinstance(document, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict) or choice.get("index", 0) != 0:
        return ""
    delta = choice.get("delta")
    said = delta if isinstance(delta, dict) else choice
    found = (said.get(name) for name in ("reasoning", "reasoning_content", "content", "text"))
    return "".join(text for text in found if isinstance(text, str))
