"""Refused requests that come back too early are told to stay away longer, twice as long each time.

Most clients obey `Retry-After`. Those that do not multiply a rush exactly while it lasts: to be refused again and again
is the cheapest that can happen to them, and the longer they are told to wait the fewer times they come.
"""

AT_MOST = 10_000
"""Refused requests that are remembered; the oldest go first."""
LONGEST_S = 12.0
"""With the jitter of a quarter this is the 15 s that no `Retry-After` goes over: clients obey it, and would hang."""
SHORTEST_S = 1.0
EARLIEST = 0.75
"""Share of what was told after which a return counts as obedient: the jitter may have made it that short."""
STRIKES_AT_MOST = 8


class Comebacks:
    """Remembers who was refused until when.

    Args:
        at_most: how many refused requests are remembered, about 200 bytes each.
    """

    def __init__(self, at_most: int = AT_MOST) -> None:
        self._told: dict[bytes, tuple[float, int]] = {}
        """Until when each was told to stay away, and how often it came too early; the oldest refusal first."""
        self._at_most = at_most

    def __len__(self) -> int:
        return len(self._told)

    def __repr__(self) -> str:
        return f"<Comebacks {len(self._told)} of {self._at_most}>"

    def refused(self, now: float, fingerprint: bytes, retry_after_s: float, retries: int = 0) -> tuple[float, bool]:
        """Take note of a refusal.

        Args:
            now: monotonic seconds.
            fingerprint: the same for the same request of the same sender.
            retry_after_s: when capacity is expected, seconds from now.
            retries: which attempt of its SDK it is, 0 for the first, as the SDK says.

        Returns:
            What the client is to be told, seconds; and whether that is longer because it came too early or says that
            it came before. A client that obeyed and is refused again starts from the beginning.
        """
        until, strikes = self._told.pop(fingerprint, (now, 0))
        strikes = min(STRIKES_AT_MOST, max(strikes + 1 if now < until else 0, retries))
        wait = retry_after_s
        if strikes:
            wait = max(wait, min(LONGEST_S, max(SHORTEST_S, wait) * 2.0**strikes))
        while len(self._told) >= self._at_most:
            del self._told[next(iter(self._told))]
        self._told[fingerprint] = (now + EARLIEST * min(wait, LONGEST_S), strikes)
        return wait, strikes > 0
