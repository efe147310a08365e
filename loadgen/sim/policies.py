"""What a study compares lanewise with: no proxy at all, and two lanes with fixed slots."""

from collections import deque
from collections.abc import Sequence

from loadgen.sim.drive import BORDER_TOKENS
from loadgen.sim.front import Lost, Order, Send


class Direct:
    """No queue in front: every request goes at once to the backend with the fewest in flight, ties in turn."""

    def __init__(self, backends: int) -> None:
        self._in_flight = [0] * backends
        self._where: dict[int, int] = {}
        self._turn = 0

    def arrive(self, now: float, index: int, prompt_tokens: int, output_tokens: int) -> Sequence[Order]:
        """Send it."""
        del now, output_tokens
        backend = self._least()
        self._in_flight[backend] += 1
        self._where[index] = backend
        return (Send(index, backend, prompt_tokens, final=True),)

    def first_token(self, now: float, index: int) -> Sequence[Order]:
        """Nothing waits for it."""
        del now, index
        return ()

    def part_ended(self, now: float, index: int, cached_tokens: int) -> Sequence[Order]:
        """Never sent a part."""
        raise AssertionError(f"request {index} was never sent in parts ({now}, {cached_tokens})")

    def finished(self, now: float, index: int, output_tokens: int, cached_tokens: int) -> Sequence[Order]:
        """Count it out."""
        del output_tokens, cached_tokens
        return self.gone(now, index)

    def gone(self, now: float, index: int) -> Sequence[Order]:
        """Count it out."""
        del now
        self._in_flight[self._where.pop(index)] -= 1
        return ()

    def stepped(self, backend: int, seconds: float, tokens: int) -> None:
        """Nothing follows from it."""

    def wake(self, now: float) -> Sequence[Order]:
        """Nothing is ever due."""
        del now
        return ()

    def next_wake(self) -> float | None:
        """Nothing is ever due."""
        return None

    def _least(self) -> int:
        backends = len(self._in_flight)
        self._turn += 1
        order = (offset % backends for offset in range(self._turn, self._turn + backends))
        return min(order, key=self._in_flight.__getitem__)


class StaticLanes:
    """Two lanes with fixed slots per backend, each a bounded queue in order of arrival; a full one rejects.

    Args:
        backends: how many.
        slots: of the short and of the long lane, per backend.
        queues: requests that may wait, short and long, per backend.
    """

    def __init__(self, backends: int, slots: tuple[int, int], queues: tuple[int, int]) -> None:
        self._slots = slots
        self._limits = [limit * backends for limit in queues]
        self._queues: tuple[deque[tuple[int, int]], deque[tuple[int, int]]] = (deque(), deque())
        self._in_flight = [[0] * backends, [0] * backends]
        self._where: dict[int, tuple[int, int]] = {}

    def arrive(self, now: float, index: int, prompt_tokens: int, output_tokens: int) -> Sequence[Order]:
        """Send it, queue it, or reject it."""
        del now, output_tokens
        lane = 0 if prompt_tokens <= BORDER_TOKENS else 1
        queue = self._queues[lane]
        queue.append((index, prompt_tokens))
        orders = self._pull(lane)
        if len(queue) > self._limits[lane]:
            queue.pop()
            return (Lost(index, "rejected", "queue_full"),)
        return orders

    def first_token(self, now: float, index: int) -> Sequence[Order]:
        """Slots are held to the last token."""
        del now, index
        return ()

    def part_ended(self, now: float, index: int, cached_tokens: int) -> Sequence[Order]:
        """Never sent a part."""
        raise AssertionError(f"request {index} was never sent in parts ({now}, {cached_tokens})")

    def finished(self, now: float, index: int, output_tokens: int, cached_tokens: int) -> Sequence[Order]:
        """Free its slot."""
        del output_tokens, cached_tokens
        return self.gone(now, index)

    def gone(self, now: float, index: int) -> Sequence[Order]:
        """Free its slot or its place in the queue."""
        del now
        if index in self._where:
            lane, backend = self._where.pop(index)
            self._in_flight[lane][backend] -= 1
            return self._pull(lane)
        for queue in self._queues:
            for entry in [entry for entry in queue if entry[0] == index]:
                queue.remove(entry)
        return ()

    def stepped(self, backend: int, seconds: float, tokens: int) -> None:
        """Nothing follows from it."""

    def wake(self, now: float) -> Sequence[Order]:
        """Nothing is ever due."""
        del now
        return ()

    def next_wake(self) -> float | None:
        """Nothing is ever due."""
        return None

    def _pull(self, lane: int) -> list[Order]:
        queue, in_flight, orders = self._queues[lane], self._in_flight[lane], list[Order]()
        while queue:
            backend = min(range(len(in_flight)), key=in_flight.__getitem__)
            if in_flight[backend] >= self._slots[lane]:
                break
            index, prompt_tokens = queue.popleft()
            in_flight[backend] += 1
            self._where[index] = (lane, backend)
            orders.append(Send(index, backend, prompt_tokens, final=True))
        return orders
