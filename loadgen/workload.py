"""Synthetic workloads: rows drawn by seed from a profile that was fitted to published statistics."""

import math
import random
from bisect import bisect_right
from collections.abc import Iterator
from itertools import count, islice, pairwise, takewhile
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from loadgen.failure import UsageError
from loadgen.tracefile.row import MOST_TOKENS, Row

NS = 1_000_000_000


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Lengths(_Part):
    """A distribution of token counts, given by quantiles and interpolated on a logarithmic scale between them."""

    quantiles: dict[float, float]
    """Percent (0 … 100, both ends included) → tokens."""
    cut: int | None = None
    """Longer ones are cut to this."""

    @model_validator(mode="after")
    def _sensible(self) -> "Lengths":
        percents, values = zip(*sorted(self.quantiles.items()), strict=True) if self.quantiles else ((), ())
        if len(percents) < 2 or percents[0] != 0 or percents[-1] != 100:
            raise ValueError("quantiles need 0 and 100, and may have more between")
        if values[0] < 1 or any(low > high for low, high in pairwise(values)):
            raise ValueError("quantiles are token counts from 1 that never fall")
        return self

    def at(self, share: float) -> int:
        """Return the length that this share (0 … 1) of requests does not exceed."""
        percents, values = zip(*sorted(self.quantiles.items()), strict=True)
        upper = min(bisect_right(percents, share * 100), len(percents) - 1)
        low, high = percents[upper - 1], percents[upper]
        inside = (share * 100 - low) / (high - low)
        length = values[upper - 1] * (values[upper] / values[upper - 1]) ** inside
        return min(round(float(length)), self.cut or MOST_TOKENS)


class Kind(_Part):
    """One kind of request."""

    share: Annotated[float, Field(gt=0, le=1)]
    prompt: Lengths
    output: Lengths


class Gamma(_Part):
    """Independent gaps of a gamma distribution; cv 1 is a Poisson process, more is burstier."""

    process: Literal["gamma"]
    rate: Annotated[float, Field(gt=0)]
    """Mean requests/s."""
    cv: Annotated[float, Field(gt=0)]
    """Standard deviation of the gaps over their mean."""

    def gaps(self, draw: random.Random) -> Iterator[float]:
        """Yield gaps in seconds, without end."""
        shape = 1 / self.cv**2
        return (draw.gammavariate(shape, 1 / (self.rate * shape)) for _ in count())


class Bursts(_Part):
    """Bursts of geometric size with short gaps inside, at exponential distances."""

    process: Literal["bursts"]
    rate: Annotated[float, Field(gt=0)]
    size: Annotated[float, Field(ge=1)]
    """Mean requests in a burst. The CV of all gaps is about sqrt(2 * size - 1)."""
    gap_s: Annotated[float, Field(ge=0)]
    """Mean gap inside a burst, seconds."""

    @model_validator(mode="after")
    def _possible(self) -> "Bursts":
        if self._between() <= 0:
            raise ValueError("gap_s is so long that bursts of this size cannot keep the rate")
        return self

    def _between(self) -> float:
        return self.size / self.rate - (self.size - 1) * self.gap_s

    def gaps(self, draw: random.Random) -> Iterator[float]:
        """Yield gaps in seconds, without end."""
        for _ in count():
            ends = draw.random() * self.size < 1
            yield draw.expovariate(1 / self._between()) if ends else draw.random() * 2 * self.gap_s


class Surges(_Part):
    """A share of the time that runs faster; the mean rate stays."""

    every_s: Annotated[float, Field(gt=0)]
    length_s: Annotated[float, Field(gt=0)]
    factor: Annotated[float, Field(gt=1)]

    @model_validator(mode="after")
    def _fits(self) -> "Surges":
        if self.length_s >= self.every_s:
            raise ValueError("length_s must be below every_s")
        return self

    def warped(self, t: float) -> float:
        """Return when an arrival happens that a steady process has at `t`, both in seconds."""
        calm_s = self.every_s - self.length_s
        calm_rate = self.every_s / (calm_s + self.factor * self.length_s)
        period, inside = divmod(t, self.every_s)
        calm_share = calm_rate * calm_s
        if inside <= calm_share:
            return period * self.every_s + inside / calm_rate
        return period * self.every_s + calm_s + (inside - calm_share) / (calm_rate * self.factor)


class Workload(_Part):
    """A profile from `config/workloads`."""

    name: str
    description: str
    source: str
    """Where the statistics are published and what was chosen beside them."""
    arrivals: Annotated[Gamma | Bursts, Field(discriminator="process")]
    surges: Surges | None = None
    kinds: Annotated[list[Kind], Field(min_length=1)]

    @model_validator(mode="after")
    def _whole(self) -> "Workload":
        total = sum(kind.share for kind in self.kinds)
        if not math.isclose(total, 1, abs_tol=1e-6):
            raise ValueError(f"the shares of kinds add up to {total:g}, not to 1")
        return self

    def rows(self, seed: int, *, rows: int | None = None, duration_s: float | None = None) -> Iterator[Row]:
        """Draw rows; equal seeds give equal rows, and a longer draw starts with the shorter one.

        Args:
            seed: decides everything.
            rows: how many at most.
            duration_s: nothing arrives at or after this, in seconds.

        Raises:
            UsageError: neither limit is given.
        """
        if rows is None and duration_s is None:
            raise UsageError(f"--workload {self.name}: say how much of it with --rows or --duration")
        drawn = self._endless(seed)
        if duration_s is not None:
            end = round(duration_s * NS)
            drawn = takewhile(lambda row: row.t_ns < end, drawn)
        return islice(drawn, rows)

    def _endless(self, seed: int) -> Iterator[Row]:
        gaps = self.arrivals.gaps(random.Random(f"{seed}/gaps"))
        draw = random.Random(f"{seed}/lengths")
        steady = 0.0
        for number in count(1):
            t = self.surges.warped(steady) if self.surges else steady
            kind = self._kind(draw.random())
            yield Row(number, round(t * NS), kind.prompt.at(draw.random()), kind.output.at(draw.random()))
            steady += next(gaps)

    def _kind(self, share: float) -> Kind:
        for kind in self.kinds:
            share -= kind.share
            if share < 0:
                return kind
        return self.kinds[-1]


def read_workload(path: Path) -> Workload:
    """Read a profile.

    Raises:
        UsageError: the file cannot be read, or a key of it is unknown, missing or out of range.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: is not YAML: {' '.join(str(error).split())}") from None
    try:
        return Workload.model_validate(document)
    except ValidationError as error:
        raise UsageError(f"{path}: {_first_problem(error)}") from None


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    return f"{key}: {first['msg']}" if key else first["msg"]
