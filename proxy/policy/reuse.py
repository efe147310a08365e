"""How much of the prompts that come repeats the beginning of a recent one: what prefix caching can gain here."""

from collections.abc import Sequence

AT_MOST = 50_000
"""Blocks that are remembered; those not seen for longest go first. 25 million tokens with blocks of 512."""


class PrefixReuse:
    """Counts blocks of prompts by whether an earlier prompt began the same way.

    Args:
        at_most: how many blocks are remembered, about 150 bytes each.
    """

    def __init__(self, at_most: int = AT_MOST) -> None:
        self._seen: dict[str, None] = {}
        """The one not seen for longest first."""
        self._at_most = at_most
        self.repeated = 0
        """Blocks that a remembered prompt began with, everything before them included."""
        self.new = 0

    def __repr__(self) -> str:
        return f"<PrefixReuse {self.repeated} repeated, {self.new} new>"

    def note(self, chain: Sequence[str]) -> None:
        """Take one prompt.

        Args:
            chain: a hash for each of its blocks that covers everything up to the end of that block.
        """
        seen = self._seen
        repeated = next((count for count, block in enumerate(chain) if block not in seen), len(chain))
        self.repeated += repeated
        self.new += len(chain) - repeated
        # The end first: when room is needed, long tails go before the beginnings that many prompts share.
        for block in reversed(chain):
            seen.pop(block, None)
            seen[block] = None
        while len(seen) > self._at_most:
            del seen[next(iter(seen))]
