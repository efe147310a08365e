"""Ids of requests that bring none."""

import os

_BYTES = 8
_AT_ONCE = 256
"""Ids drawn with one system call: one call for each request costs ten times as much."""


class RequestIds:
    """Makes ids of 16 hexadecimal digits, drawn from the system's random numbers."""

    __slots__ = ("_at", "_drawn")

    def __init__(self) -> None:
        self._drawn = ""
        self._at = 0

    def __repr__(self) -> str:
        return f"<RequestIds {len(self._drawn) - self._at} digits left>"

    def next(self) -> str:
        """Return an id that nobody has yet."""
        at = self._at
        if at == len(self._drawn):
            self._drawn, at = os.urandom(_BYTES * _AT_ONCE).hex(), 0
        self._at = at + 2 * _BYTES
        return self._drawn[at : at + 2 * _BYTES]
