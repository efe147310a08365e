"""What a part found in the engine's prefix cache, when the engine does not say so in its `usage`.

Two signs, the better first. The engine's own counter of tokens found: between two readings it grew by what this part
found and by what others found meanwhile, so it shows at most too much. And the clock: a part that ran alone took as
long as what it computed, measured against the first part of the same prompt, which computed all of itself.
"""

SLOW_PARTS = 2
"""So many slow parts in a row are a miss; one may have met a hiccup."""
SHORTEST_PART_S = 0.01
"""A first part faster than this sets no pace: the network and the event loop would say more than the prefill."""
_MISS_BELOW = 0.5


def found_by_counter(done: int, before: float | None, after: float | None) -> int | None:
    """Return how many of the first `done` tokens were found, by the engine's counter of prefix cache hits.

    Args:
        done: tokens that were sent before.
        before: the counter at the end of the part before.
        after: the counter at the end of this part.

    Returns:
        At most `done`; None when a reading is missing, or the counter went back because the engine restarted.
    """
    if before is None or after is None or after < before:
        return None
    return min(done, int(after - before))


class PartClock:
    """Times the parts of one prompt.

    A part of k tokens behind `done` others takes the time of k when these are found, and of done + k when not: at least
    twice as long. Attention over what was found makes later parts slower too, but over a whole prompt of 24,000 tokens
    only about twofold, while a miss would then cost sixteenfold.
    """

    __slots__ = ("_per_token", "_slow")

    def __init__(self) -> None:
        self._per_token: float | None = None
        self._slow = 0

    def found(self, done: int, tokens: int, seconds: float, *, alone: bool) -> int | None:
        """Return how many of the first `done` tokens were found, by the time that a part took.

        Args:
            done: tokens that were sent before; 0 for the first part, which sets the pace.
            tokens: how many more this part sent.
            seconds: how long it took.
            alone: nothing else ran on that engine meanwhile.

        Returns:
            None when that says nothing: others ran, the first part had no pace, or it is the first slow one.
        """
        if not alone or seconds <= 0:
            return None
        if done == 0:
            self._per_token = seconds / tokens if seconds >= SHORTEST_PART_S else None
            return None
        if self._per_token is None:
            return None
        computed = seconds / self._per_token
        found = round(min(done, max(0.0, done + tokens - computed)))
        if found >= _MISS_BELOW * done:
            self._slow = 0
            return found
        self._slow += 1
        return found if self._slow >= SLOW_PARTS else None
