"""Which requests are queued or run, by what they ask: so that a second identical one can be told apart."""

AT_MOST = 100_000
"""Requests that are remembered; more at once are let through unseen."""


class InFlight:
    """Fingerprints of requests between their first and their last room.

    Args:
        at_most: how many are remembered, about 200 bytes each.
    """

    def __init__(self, at_most: int = AT_MOST) -> None:
        self._first: dict[bytes, tuple[str, object]] = {}
        self._at_most = at_most

    def __len__(self) -> int:
        return len(self._first)

    def __repr__(self) -> str:
        return f"<InFlight {len(self._first)} of {self._at_most}>"

    def enter(self, fingerprint: bytes, request_id: str, owner: object) -> str | None:
        """Take a request; return the id of the identical one that came before and has not ended, or None.

        Args:
            fingerprint: the same for identical requests.
            request_id: what the next one is told.
            owner: who leaves again. Ids do not tell requests apart: a client that tries again may keep its own.
        """
        first = self._first.get(fingerprint)
        if first is not None:
            return first[0]
        if len(self._first) < self._at_most:
            self._first[fingerprint] = (request_id, owner)
        return None

    def leave(self, fingerprint: bytes, owner: object) -> None:
        """Forget a request that has ended; one that was the second of its kind leaves the first where it is."""
        first = self._first.get(fingerprint)
        if first is not None and first[1] is owner:
            del self._first[fingerprint]
