"""How often a request may be given to a second connection: a budget for the whole proxy.

When an engine dies under load, every request that was on its way there would be sent again at once, to engines that
have enough to do. The budget bounds that: a share of the requests of the last seconds, and a few beside it so that a
quiet proxy can retry at all.
"""

from proxy.policy.recent import Recent

WINDOW_S = 10.0
"""Seconds over which requests and retries are counted, as long as Finagle's default for its retry budget."""
_REQUEST, _RETRY = 0, 1


class RetryBudget:
    """Says whether one more retry may be made.

    Args:
        ratio: retries for each request of the last `WINDOW_S` seconds.
        floor: retries in `WINDOW_S` seconds that are always allowed.
    """

    def __init__(self, ratio: float = 0.2, floor: int = 10) -> None:
        self._ratio = ratio
        self._floor = floor
        self._recent = Recent(2, WINDOW_S)

    def __repr__(self) -> str:
        return f"<RetryBudget {self._ratio:g} of requests and {self._floor}>"

    def configure(self, ratio: float, floor: int) -> None:
        """Take other limits; what was counted stays."""
        self._ratio = ratio
        self._floor = floor

    def request(self, now: float) -> None:
        """Count a request that is given to a backend for the first time."""
        self._recent.add(now, _REQUEST)

    def take(self, now: float) -> bool:
        """Take one retry out of the budget.

        Returns:
            Whether there was one left. If not, the request must not be sent again.
        """
        requests, retries = self._recent.totals(now)
        if retries + 1 > self._floor + self._ratio * requests:
            return False
        self._recent.add(now, _RETRY)
        return True
