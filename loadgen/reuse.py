"""How much of the prompts repeats an earlier prefix, counted in bounded memory.

All ids are remembered while they are few. When they become too many, only a part of the id space is watched from then
on, half as large each time: ids are spread evenly by a hash, so the share of repetition among the watched ones stands
for all (the sampling that is used for cache simulation, SHARDS by Waldspurger and others, FAST 2015).
"""

from collections.abc import Sequence

MOST_IDS = 1 << 20
_MIX = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


class PrefixReuse:
    """Adds up prompts in order of their arrival: what a prefix cache without limits would have saved.

    Args:
        most_ids: ids that are remembered at most.
    """

    def __init__(self, most_ids: int = MOST_IDS) -> None:
        self._most = most_ids
        self._seen: set[int] = set()
        self._below = 1 << 64
        self._repeated = 0.0

    @property
    def exact(self) -> bool:
        """Whether every id was watched."""
        return self._below == 1 << 64

    @property
    def repeated_tokens(self) -> int:
        """Prompt tokens that repeat an earlier prefix; an estimate when not `exact`."""
        return round(self._repeated)

    def add(self, blocks: Sequence[int], block_tokens: int, prompt_tokens: int) -> None:
        """Take the next prompt.

        Args:
            blocks: its prefix ids; none: nothing is known of it.
            block_tokens: size of one block.
            prompt_tokens: its length; the last block may be partial.
        """
        weight = (1 << 64) / self._below
        done = 0
        for block in blocks:
            upto = min(done + block_tokens, prompt_tokens)
            if self._watched(block) and block in self._seen:
                self._repeated += (upto - done) * weight
            done = upto
        self._seen.update(block for block in blocks if self._watched(block))
        while len(self._seen) > self._most:
            self._below >>= 1
            self._seen = {block for block in self._seen if self._watched(block)}

    def _watched(self, block: int) -> bool:
        if self._below == 1 << 64:
            return True
        mixed = (block ^ block >> 31) * _MIX & _MASK
        return (mixed ^ mixed >> 29) * _MIX & _MASK < self._below
