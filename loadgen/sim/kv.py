"""The KV cache: blocks handed out by number, and found again by content hash until somebody needs the room."""

from collections import OrderedDict
from collections.abc import Sequence


class KvCache:
    """Counts blocks and keeps the prefix cache, in vLLM's order of reuse.

    Free blocks form one queue: blocks without content first, then cached blocks, least recently released first, the
    tail of a prompt before its head (`block_pool.free_blocks`). Because no other order can arise, blocks need no
    identity: a number of empty ones and an ordered set of hashes say the same.

    A hash has one block. A second copy computed at the same time stays anonymous, where vLLM would keep both.
    """

    __slots__ = ("_blank", "_idle", "_refs", "blocks")

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._blank = blocks
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._refs: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Blocks that can be taken: empty ones, and cached ones that nobody holds."""
        return self._blank + len(self._idle)

    @property
    def cached(self) -> int:
        """Blocks that can be found by their hash, held or not."""
        return len(self._idle) + len(self._refs)

    def match(self, hashes: Sequence[int], at_most: int) -> int:
        """Return how many leading blocks are cached, `at_most` at most."""
        found = 0
        for key in hashes:
            if found >= at_most or (key not in self._refs and key not in self._idle):
                break
            found += 1
        return found

    def idle_among(self, hashes: Sequence[int]) -> int:
        """Return how many of these cached blocks nobody holds: holding them will use up as many free blocks."""
        return sum(1 for key in hashes if key in self._idle)

    def hold(self, hashes: Sequence[int]) -> None:
        """Hold cached blocks, so that they cannot be taken.

        Raises:
            KeyError: a hash is not cached.
        """
        for key in hashes:
            if key in self._refs:
                self._refs[key] += 1
            else:
                del self._idle[key]
                self._refs[key] = 1

    def take(self, count: int) -> bool:
        """Take `count` blocks, from the head of the queue; False and nothing taken when there are too few."""
        if count > self.free:
            return False
        evict = max(0, count - self._blank)
        for _ in range(evict):
            self._idle.popitem(last=False)
        self._blank -= count - evict
        return True

    def store(self, key: int) -> bool:
        """Make a taken block findable and held under `key`; False when another block already is."""
        if key in self._refs or key in self._idle:
            return False
        self._refs[key] = 1
        return True

    def release(self, blank: int, hashes: Sequence[int]) -> None:
        """Give back `blank` anonymous blocks and the held ones of `hashes` (in prompt order)."""
        self._blank += blank
        for key in reversed(hashes):
            left = self._refs[key] - 1
            if left:
                self._refs[key] = left
            else:
                del self._refs[key]
                self._idle[key] = None

    def forget(self) -> None:
        """Drop every cached block that nobody holds, as `POST /reset_prefix_cache` does."""
        self._blank += len(self._idle)
        self._idle.clear()
