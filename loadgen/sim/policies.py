"""What a study compares lanewise with: no proxy at all, and two lanes with fixed slots."""

from collections import deque
from collections.abc import Sequence
from enum import StrEnum

from loadgen.sim.drive import BORDER_TOKENS
from loadgen.sim.front import Lost, Order, Send


class Balance(StrEnum):
    """How a load balancer without a queue chooses a backend."""

    LEAST_REQUESTS = "least-requests"
    """Fewest in flight, ties in turn."""
    ROUND_ROBIN = "round-robin"
    LEAST_WORK = "least-work"
    """Fewest prompt and output tokens in flight, an output token counting for eight; it is told both lengths."""
    PARTITION = "partition"
    """The first backend for long prompts, the others for short ones; fewest in flight."""


OUTPUT_WEIGHT = 8
"""Cost of an output token in prompt tokens, as in the Dispatcher (`decode_weight`)."""


class Direct:
    """No queue in front: every request goes at once to one of the backends.

    Args:
        backends: how many.
        balance: how one is chosen.
    """

    def __init__(self, backends: int, balance: Balance = Balance.LEAST_REQUESTS) -> None:
        self._balance = balance
        self._load = [0] * backends
        self._where: dict[int, tuple[int, int]] = {}
        self._turn = 0

    def arrive(self, now: float, index: int, prompt_tokens: int, output_tokens: int) -> Sequence[Order]:
        """Send it."""
        del now
        weight = prompt_tokens + OUTPUT_WEIGHT * output_tokens if self._balance is Balance.LEAST_WORK else 1
        backend = self._least(prompt_tokens)
        self._load[backend] += weight
        self._where[index] = (backend, weight)
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
        backend, weight = self._where.pop(index)
        self._load[backend] -= weight
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

    def _least(self, prompt_tokens: int) -> int:
        backends = len(self._load)
        self._turn += 1
        order = [offset % backends for offset in range(self._turn, self._turn + backends)]
        if self._balance is Balance.ROUND_ROBIN:
            return order[0]
        if self._balance is Balance.PARTITION and backends > 1:
            long = prompt_tokens > BORDER_TOKENS
            order = [backend for backend in order if (backend == 0) == long]
        return min(order, key=self._load.__getitem__)


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
