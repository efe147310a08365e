"""Which requests are queued or run, by what they ask: so that a second identical one can be told apart."""

AT_MOST = 100_000
"""Requests that are remembered; more at once are let through unseen."""


class InFlight:
    """Fingerprints of requests between their first and their last room.

    Args:
        at_most: how many are remembered, about 200 bytes each.
    """

    def __init__(self, at_most: int = AT_MOST) -> None:
        self._first: dict[bytes, str] = {}
        self._at_most = at_most

    def __len__(self) -> int:
        return len(self._first)

    def __repr__(self) -> str:
        return f"<InFlight {len(self._first)} of {self._at_most}>"

    def enter(self, fingerprint: bytes, request_id: str) -> str | None:
        """Take a request; return the id of the identical one that came before and has not ended, or None."""
        first = self._first.get(fingerprint)
        if first is None and len(self._first) < self._at_most:
            self._first[fingerprint] = request_id
        return first

    def leave(self, fingerprint: bytes, request_id: str) -> None:
        """Forget a request that has ended; one that was the second of its kind leaves the first where it is."""
        if self._first.get(fingerprint) == request_id:
            del self._first[fingerprint]
