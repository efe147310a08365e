"""How long a prompt is, in tokens: estimated from its text by script class, corrected per model by what engines say.

A prompt's census counts characters by class. Each class has a start value of tokens per character (typical of byte-pair
vocabularies; they are start values, not measurements) and each model a gain per class, 1 at first. The estimate is

    tokens = sum over classes of  count * start value * gain

and every `usage.prompt_tokens` moves the gains by normalised least mean squares: the error is shared out in proportion
to what each class contributed. An error counts at most half the estimate, so that one strange report cannot throw it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from proxy.wire.facts import Facts, TextCensus

START_TOKENS = {
    "latin": 0.25,  # English prose: about four characters per token
    "digits": 0.7,  # one token per digit in some vocabularies, per up to three in others
    "symbols": 0.6,  # punctuation of code and JSON, partly merged with its neighbours
    "cjk": 0.7,  # recent multilingual vocabularies 0.6, older ones above 1
    "other": 0.8,  # Cyrillic, Arabic about 0.5; emoji 1 to 3
    "base64": 0.75,  # random letters hardly merge
    "media_parts": 800.0,  # an image of medium size
    "messages": 5.0,  # role and separators of a chat template
}
"""Tokens per character (per part, per message) before anything was learned, by census class."""

LEARNING_RATE = 0.15
"""Share of an error that one observation takes away."""
ERROR_AT_MOST = 0.5
"""An observation counts as at most this far off, as a share of the estimate."""
GAIN_RANGE = (0.1, 10.0)
OUTPUT_START_TOKENS = 256
"""Expected output of a model nothing is known of."""
OUTPUT_LEARNING_RATE = 0.05
ERROR_LEARNING_RATE = 0.05
MODELS_AT_MOST = 64
"""Models that calibrations are kept for; the one that learned longest ago goes first."""

_LARGEST = 1e9
"""Largest count of tokens or answers that is believed, of an engine or of a file."""

_Parts = tuple[float, float, float, float, float, float, float, float]
"""What each class of a text contributes before the gains."""
_CLASSES = tuple(START_TOKENS)
_START = tuple(START_TOKENS.values())


class Estimate(NamedTuple):
    """How long one request is. A named tuple: one is made for every request."""

    tokens: int
    """Prompt tokens of all its prompts together."""
    exact: bool = False
    """The prompt came as token ids: nothing was estimated."""
    output_tokens: int = OUTPUT_START_TOKENS
    """What one sequence of this model makes on average."""


class _Calibration:
    """What was learned about one model."""

    __slots__ = ("error", "gains", "observations", "output")

    def __init__(self) -> None:
        self.gains = [1.0] * len(_CLASSES)
        self.output = float(OUTPUT_START_TOKENS)
        self.error = 0.0
        self.observations = 0

    def tokens(self, parts: _Parts) -> float:
        one, two, three, four, five, six, seven, eight = self.gains  # written out: it runs twice for every request
        latin, digits, symbols, cjk, other, base64, media, messages = parts
        return (
            latin * one + digits * two + symbols * three + cjk * four
            + other * five + base64 * six + media * seven + messages * eight
        )  # fmt: skip

    def learn(self, parts: _Parts, actual: int) -> None:
        now = self.tokens(parts)
        power = sum([part * part for part in parts if part])
        if now <= 0 or power <= 0:
            return
        error = max(-ERROR_AT_MOST * now, min(ERROR_AT_MOST * now, actual - now))
        low, high = GAIN_RANGE
        gains = self.gains
        for index, part in enumerate(parts):
            if part:
                moved = gains[index] + LEARNING_RATE * error * part / power
                gains[index] = low if moved < low else min(moved, high)
        self.observations += 1


class LengthEstimator:
    """Calibrations of all models; one per proxy."""

    def __init__(self) -> None:
        self._models: dict[str, _Calibration] = {}
        self._unknown = _Calibration()
        self._latest: str | None = None
        """The model that learned last."""

    def estimate(self, model: str | None, facts: Facts) -> Estimate:
        """Return the length of a request.

        Args:
            model: whose calibration to use; None or an unknown one: the start values.
            facts: what its body says. At least one token per prompt is assumed.
        """
        calibration = self._models.get(model or "", self._unknown)
        output = max(1, round(calibration.output))
        if facts.prompt_tokens is not None:
            return Estimate(max(1, facts.prompt_tokens), exact=True, output_tokens=output)
        tokens = max(facts.prompts, 1, round(calibration.tokens(_parts(facts.census))))
        kept = facts.truncate_prompt_tokens
        if kept is not None and kept > 0:
            tokens = min(tokens, kept * max(1, facts.prompts))
        return Estimate(tokens, output_tokens=output)

    def shares(self, model: str | None, census: TextCensus) -> dict[str, int]:
        """Return how many tokens each class of a text counts for now, without those that count for none."""
        gains = self._models.get(model or "", self._unknown).gains
        counted = zip(_CLASSES, _parts(census), gains, strict=True)
        return {name: tokens for name, part, gain in counted if (tokens := round(part * gain))}

    def learn(self, model: str | None, census: TextCensus, estimated: int, actual: int) -> None:
        """Learn from what an engine counted.

        Leave out prompts that are not all text of this census (`Facts.partial_census`, truncated ones, token ids).

        Args:
            model: the model that counted.
            census: of the prompt.
            estimated: what `estimate` said when the request came; only the published error is made of it.
            actual: `usage.prompt_tokens`; values that cannot be are ignored.
        """
        parts = _parts(census)
        if not 1 <= actual <= _LARGEST or not any(parts):
            return
        calibration = self._calibration(model)
        calibration.learn(parts, actual)
        calibration.error += ERROR_LEARNING_RATE * (abs(estimated / actual - 1.0) - calibration.error)

    def learn_output(self, model: str | None, output_tokens: int) -> None:
        """Learn how long one sequence of a model became; values that cannot be are ignored."""
        if 0 <= output_tokens <= _LARGEST:
            calibration = self._calibration(model)
            calibration.output += OUTPUT_LEARNING_RATE * (output_tokens - calibration.output)

    def error(self, model: str | None) -> float:
        """Return the recent mean of |estimate / actual - 1| of a model; 0 while nothing was learned."""
        return self._models.get(model or "", self._unknown).error

    def observations(self, model: str | None) -> int:
        """Return how many answers the estimate of a model has learned from."""
        return self._models.get(model or "", self._unknown).observations

    def state(self) -> dict[str, Any]:
        """Return everything learned, as plain values for JSON."""
        return {
            name: {
                "gains": dict(zip(_CLASSES, known.gains, strict=True)),
                "output": known.output,
                "error": known.error,
                "observations": known.observations,
            }
            for name, known in self._models.items()
        }

    def restore(self, state: Mapping[str, Any]) -> int:
        """Take what `state` returned, of this or an earlier version; return how many models could be read.

        Values that are missing, unknown or unusable are passed over: a start value is always good enough.
        """
        read = 0
        for name, kept in state.items():
            if isinstance(kept, Mapping) and isinstance(kept.get("gains"), Mapping):
                self._restore(self._calibration(name), kept)
                read += 1
        return read

    def _restore(self, calibration: _Calibration, kept: Mapping[str, Any]) -> None:
        low, high = GAIN_RANGE
        for index, name in enumerate(_CLASSES):
            calibration.gains[index] = min(high, max(low, _number(kept["gains"].get(name), 1.0)))
        calibration.output = _number(kept.get("output"), float(OUTPUT_START_TOKENS))
        calibration.error = _number(kept.get("error"), 0.0)
        calibration.observations = int(_number(kept.get("observations"), 0.0))

    def _calibration(self, model: str | None) -> _Calibration:
        name = model or ""
        if name == self._latest:
            return self._models[name]
        self._latest = name
        calibration = self._models.pop(name, None) or _Calibration()
        self._models[name] = calibration  # the last in order is the one that learned last
        if len(self._models) > MODELS_AT_MOST:
            del self._models[next(iter(self._models))]
        return calibration

    def __repr__(self) -> str:
        return f"<LengthEstimator {len(self._models)} models>"


def _parts(census: TextCensus) -> _Parts:
    latin, digits, symbols, cjk, other, base64, media, messages = census
    one, two, three, four, five, six, seven, eight = _START
    return (
        latin * one, digits * two, symbols * three, cjk * four,
        other * five, base64 * six, media * seven, messages * eight,
    )  # fmt: skip


def _number(value: Any, default: float) -> float:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and 0.0 <= value <= _LARGEST
    return float(value) if usable else default
