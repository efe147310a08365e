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
        self._bucket = [0] * kinds
        """Of the second that counts now."""
        self._second = -1
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
        if second != self._second:
            self._forget(now)
            self._second, self._bucket = second, [0] * len(self._totals)
            self._seconds.append((second, self._bucket))
        self._bucket[kind] += 1
        self._totals[kind] += 1

    def totals(self, now: float) -> tuple[int, ...]:
        """Return how many of each kind are in the window."""
        self._forget(now)
        return tuple(self._totals)

    def clear(self) -> None:
        """Forget everything."""
        self._seconds.clear()
        self._second = -1
        self._totals = [0] * len(self._totals)

    def _forget(self, now: float) -> None:
        seconds = self._seconds
        while seconds and seconds[0][0] + 1 <= now - self._window_s:
            second, counts = seconds.popleft()
            if second == self._second:
                self._second = -1
            for kind, count in enumerate(counts):
                self._totals[kind] -= count
