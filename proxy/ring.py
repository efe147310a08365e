"""The last minutes of some numbers, in memory of fixed size. Pure: the time comes in as an argument."""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence


class Ring:
    """Samples of named numbers, all taken at the same moments; the oldest go when it is full.

    Args:
        names: what is sampled.
        slots: how many samples are kept.
    """

    def __init__(self, names: Iterable[str], slots: int) -> None:
        self.names = tuple(names)
        self._times: deque[float] = deque(maxlen=slots)
        self._columns: dict[str, deque[float | None]] = {name: deque(maxlen=slots) for name in self.names}

    def __len__(self) -> int:
        return len(self._times)

    @property
    def times(self) -> list[float]:
        """When the samples were taken, the oldest first, in the unit of `add`."""
        return list(self._times)

    def add(self, now: float, values: Mapping[str, float | None]) -> None:
        """Keep one sample.

        Args:
            now: later than the one before, in seconds of one clock.
            values: by name; None, or left out: not known at this moment.
        """
        self._times.append(now)
        for name, column in self._columns.items():
            column.append(values.get(name))

    def column(self, name: str) -> list[float | None]:
        """Return one number over time, the oldest first.

        Raises:
            KeyError: nobody samples it.
        """
        return list(self._columns[name])

    def grown(self, name: str, since: float) -> float:
        """Return by how much a number that only grows did so since a moment, or since the oldest sample that is kept.

        Raises:
            KeyError: nobody samples it.
        """
        column = [(at, value) for at, value in zip(self._times, self._columns[name], strict=True) if value is not None]
        if not column:
            return 0.0
        before = next((value for at, value in reversed(column) if at <= since), column[0][1])
        return column[-1][1] - before


def rates(times: Sequence[float], totals: Sequence[float | None]) -> list[float | None]:
    """Turn a number that only grows into its growth per second since the sample before; the first has none."""
    found: list[float | None] = [None] * len(times)
    for place in range(1, len(times)):
        before, after, seconds = totals[place - 1], totals[place], times[place] - times[place - 1]
        if before is not None and after is not None and seconds > 0:
            found[place] = max(0.0, after - before) / seconds
    return found


class Window:
    """Measured values of the last seconds, for their quantiles.

    Args:
        seconds: how long a value counts.
        most: values kept; when more come in this time, the window is shorter.
    """

    def __init__(self, seconds: float, most: int = 4096) -> None:
        self._seconds = seconds
        self._kept: deque[tuple[float, float]] = deque(maxlen=most)

    def add(self, now: float, value: float) -> None:
        """Keep one value."""
        self._kept.append((now, value))

    def quantile(self, now: float, share: float) -> float | None:
        """Return the smallest value that at least this share of the values do not exceed; None without values."""
        while self._kept and self._kept[0][0] < now - self._seconds:
            self._kept.popleft()
        if not self._kept:
            return None
        ordered = sorted(value for _, value in self._kept)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
