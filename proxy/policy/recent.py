"""Counts of the last seconds: how many of each kind there were within a window that moves with `now`."""

from collections import deque


class Recent:
    """Counts over a sliding window, kept per second, so that the memory does not grow with what is counted.

    Args:
        kinds: how many kinds are counted.
        window_s: length of the window, seconds; what is older is forgotten, to a second.
    """

    def __init__(self, kinds: int, window_s: float) -> None:
        self._window_s = window_s
        self._seconds: deque[tuple[int, list[int]]] = deque()
        self._totals = [0] * kinds

    def __repr__(self) -> str:
        return f"<Recent {self._totals} in {self._window_s:g} s>"

    def add(self, now: float, kind: int) -> None:
        """Count one.

        Args:
            now: monotonic seconds, never going back.
            kind: from 0.
        """
        second = int(now)
        self._forget(now)
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append((second, [0] * len(self._totals)))
        self._seconds[-1][1][kind] += 1
        self._totals[kind] += 1

    def totals(self, now: float) -> tuple[int, ...]:
        """Return how many of each kind are in the window."""
        self._forget(now)
        return tuple(self._totals)

    def clear(self) -> None:
        """Forget everything."""
        self._seconds.clear()
        self._totals = [0] * len(self._totals)

    def _forget(self, now: float) -> None:
        seconds = self._seconds
        while seconds and seconds[0][0] + 1 <= now - self._window_s:
            for kind, count in enumerate(seconds.popleft()[1]):
                self._totals[kind] -= count
