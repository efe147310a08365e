"""How sure a difference between two runs of one plan is: a joint block bootstrap over paired rows. Pure.

Whole stretches of consecutive rows are drawn again, because requests that met in one queue share their luck and are not
separate witnesses (circular blocks: Politis and Romano 1992). All metrics are computed on the same draws, so that their
dependence is known, and the intervals of a family are made so wide that *none* of them misses with the stated
confidence (the largest studentised deviation of each draw: Westfall and Young 1993).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int32]

CONFIDENCE = 0.95
DRAWS = 1000
FEWEST_DRAWS = 300
MOST_DRAWN = 20_000_000
"""Rows times draws; more rows get fewer draws."""
FEWEST_BEYOND = 5
"""So many rows, from as many different blocks, must lie beyond a quantile before anything is said of it."""
_CHUNK = 2_000_000
"""Rows times draws held at once."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """One number of every request in both runs, and what is compared of it.

    Attributes:
        before: one array for each repeat of the run before, over the rows of the plan; NaN: this row does not count.
        after: the same of the run after.
        shares: quantiles, 0 to 1; None: the mean.
        family: whether its intervals have to hold together with those of the others in the family.
    """

    before: tuple[Floats, ...]
    after: tuple[Floats, ...]
    shares: tuple[float | None, ...]
    family: bool = True


@dataclass(frozen=True, slots=True)
class Interval:
    """What is known of a difference, after minus before, over the rows that count in all runs.

    Attributes:
        difference: point estimate; NaN without rows.
        low: lower end; None: too few rows to say anything.
        high: upper end.
        pairs: rows that count in all runs.
    """

    difference: float
    low: float | None
    high: float | None
    pairs: int


def intervals(
    contrasts: Sequence[Contrast], *, seed: int, confidence: float = CONFIDENCE
) -> list[tuple[Interval, ...]]:
    """Return the intervals of every contrast, one for each of its shares.

    Those of the family hold together, each of the others alone.

    Args:
        contrasts: over the same rows, in order of due time.
        seed: decides the draws.
        confidence: of the whole family, and of each interval outside it.
    """
    if not contrasts:
        return []
    count = len(contrasts[0].after[0])
    tables = [_Table.of(contrast) for contrast in contrasts]
    block = max(1, min(max(map(_correlated_rows, tables)), count // 20))
    wanted = [
        (at, share)
        for at, table in enumerate(tables)
        for share in table.shares
        if table.witnesses(share, block) >= FEWEST_BEYOND
    ]
    drawn = _bootstrap(tables, wanted, count, block, np.random.Generator(np.random.PCG64(seed)))
    family = [around for (at, _), around in drawn.items() if contrasts[at].family]
    critical = _critical(family, confidence)

    def interval(at: int, share: float | None) -> Interval:
        table = tables[at]
        estimate = table.estimate(share)
        if (at, share) not in drawn:
            return Interval(estimate, None, None, len(table.rows))
        around = drawn[at, share]
        width = (critical if contrasts[at].family else _critical([around], confidence)) * _spread(around)
        return Interval(estimate, estimate - width, estimate + width, len(table.rows))

    return [tuple(interval(at, share) for share in table.shares) for at, table in enumerate(tables)]


@dataclass(frozen=True, slots=True)
class _Table:
    """A contrast as the draws need it.

    Attributes:
        rows: the rows that count in every run, in order of the plan.
        sides: per side its runs, each as values in ascending order and the row of each value.
        shares: as in the contrast.
    """

    rows: Rows
    sides: tuple[tuple[tuple[Floats, Rows], ...], tuple[tuple[Floats, Rows], ...]]
    shares: tuple[float | None, ...]

    @classmethod
    def of(cls, contrast: Contrast) -> "_Table":
        rows = np.flatnonzero(~np.isnan(np.sum((*contrast.before, *contrast.after), axis=0)))

        def ordered(values: Floats) -> tuple[Floats, Rows]:
            order = np.argsort(values[rows], kind="stable")
            return values[rows][order], rows[order]

        before, after = (tuple(map(ordered, side)) for side in (contrast.before, contrast.after))
        return cls(rows, (before, after), contrast.shares)

    @property
    def runs(self) -> tuple[tuple[Floats, Rows], ...]:
        return (*self.sides[0], *self.sides[1])

    def estimate(self, share: float | None) -> float:
        """Return the difference over all rows."""
        if not len(self.rows):
            return float("nan")
        rank = None if share is None else max(0, int(np.ceil(share * len(self.rows) - 1e-9)) - 1)
        means = [
            np.mean([values.mean() if rank is None else values[rank] for values, _ in side]) for side in self.sides
        ]
        return float(means[1] - means[0])

    def differences(self, counts: Counts, shares: Sequence[float | None]) -> list[Floats]:
        """Return after minus before for every draw and share; of repeats the mean.

        Args:
            counts: draws by rows: how often each row was drawn.
            shares: those that are wanted.
        """
        sides = []
        for side in self.sides:
            runs = [list(_statistics(counts[:, rows], values, shares)) for values, rows in side]
            sides.append(np.mean(runs, axis=0))
        return list(sides[1] - sides[0])

    def witnesses(self, share: float | None, block: int) -> int:
        """Return how many separate stretches of rows say something about the quantile, at its scarcer side."""
        tail = 0.5 if share is None else min(share, 1 - share)
        keep = int(tail * len(self.rows) + 1e-9)
        if keep < 1:
            return 0
        upper = share is None or share >= 0.5
        return min(len(np.unique((rows[-keep:] if upper else rows[:keep]) // block)) for _, rows in self.runs)

    def influence(self, share: float | None) -> Floats:
        """Return what each row that counts adds to the difference, up to a factor, in order of the plan."""
        sides = []
        for side in self.sides:
            parts = []
            for values, rows in side:
                own = np.empty(len(values))
                rank = -1 if share is None else int(np.ceil(share * len(values))) - 1
                own[np.searchsorted(self.rows, rows)] = values if share is None else np.arange(len(values)) > rank
                parts.append(own)
            sides.append(np.mean(parts, axis=0))
        return np.asarray(sides[1] - sides[0])


def _statistics(mine: Counts, values: Floats, shares: Sequence[float | None]) -> Iterator[Floats]:
    upto = np.cumsum(mine, axis=1, dtype=np.int32) if any(share is not None for share in shares) else None
    for share in shares:
        if share is None or upto is None:
            yield np.asarray((mine.astype(np.float64) @ values) / np.maximum(1, mine.sum(axis=1)))
        else:
            rank = np.maximum(1, np.ceil(share * upto[:, -1] - 1e-9))
            yield np.asarray(values[np.minimum((upto < rank[:, None]).sum(axis=1), len(values) - 1)])


def _correlated_rows(table: _Table) -> int:
    """Return how many consecutive rows of the plan hang together, for the share where it is most."""
    return max((_flat_top(table.influence(share), table.rows) for share in table.shares), default=1)


def _flat_top(series: Floats, rows: Rows) -> int:
    """Return the reach of the autocorrelation of a series, in rows of the plan.

    The rule of Politis and White (2004): the first lag after which five correlations in a row cannot be told from zero,
    doubled.
    """
    n = len(series)
    if n < 50:
        return 1
    series = series - series.mean()
    power = float(series @ series)
    if power <= 0:
        return 1
    longest = min(n // 4, 500)
    spectrum = np.fft.rfft(series, 1 << (2 * n - 1).bit_length())
    correlation = np.fft.irfft(spectrum * spectrum.conj())[: longest + 1] / power
    small = np.abs(correlation[1:]) < 2 * np.sqrt(np.log10(n) / n)
    lag = next((at for at in range(len(small) - 4) if small[at : at + 5].all()), longest)
    return max(1, round(2 * lag * int(rows[-1] - rows[0] + 1) / n))


def _bootstrap(
    tables: Sequence[_Table],
    wanted: Sequence[tuple[int, float | None]],
    count: int,
    block: int,
    draw: np.random.Generator,
) -> dict[tuple[int, float | None], Floats]:
    """Return the deviations from the estimate of every wanted table and share."""
    if not wanted:
        return {}
    draws = int(min(DRAWS, max(FEWEST_DRAWS, MOST_DRAWN // count)))
    shares: dict[int, list[float | None]] = {}
    for at, share in wanted:
        shares.setdefault(at, []).append(share)
    parts: dict[tuple[int, float | None], list[Floats]] = {key: [] for key in wanted}
    chunk = max(1, _CHUNK // count)
    for start in range(0, draws, chunk):
        counts = _drawn(min(chunk, draws - start), count, block, draw)
        for at, asked in shares.items():
            for share, found in zip(asked, tables[at].differences(counts, asked), strict=True):
                parts[at, share].append(found)
    return {(at, share): np.concatenate(found) - tables[at].estimate(share) for (at, share), found in parts.items()}


def _drawn(draws: int, count: int, block: int, draw: np.random.Generator) -> Counts:
    """Draw blocks of consecutive rows, the end joined to the beginning, and count the rows."""
    blocks = -(-count // block)
    starts = draw.integers(0, count, (draws, blocks)) + np.arange(draws)[:, None] * count
    begun = np.bincount(starts.ravel(), minlength=draws * count).reshape(draws, count).astype(np.int32)
    if block == 1:
        return begun
    upto = np.cumsum(np.concatenate([begun[:, -block:], begun], axis=1), axis=1, dtype=np.int32)
    return np.asarray(upto[:, block:] - upto[:, :-block])


def _spread(around: Floats) -> float:
    """Root of the mean square distance from the estimate."""
    return float(np.sqrt(np.mean(around**2)))


def _critical(family: Sequence[Floats], confidence: float) -> float:
    """Return how many spreads wide all intervals must be, so that none of the family misses with `confidence`."""
    scaled = [np.abs(around) / spread for around in family if (spread := _spread(around)) > 0]
    return float(np.quantile(np.max(scaled, axis=0), confidence)) if scaled else 0.0
