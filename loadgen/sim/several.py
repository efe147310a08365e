"""Several proxies in front of the same engines, in virtual time: with leases in one store, or with a static share."""

from collections.abc import Callable, Sequence

from loadgen.sim.front import Order
from loadgen.sim.virtual import DispatcherFront, orders
from proxy.policy.leases.book import Book, Document
from proxy.policy.leases.member import Member

LEASE_S = 1.5
"""The product's default."""
STORE_S = 0.001
"""From a request to the store until its answer: ten times what Redis takes on one machine."""
RECOVERY_S = 30.0


class SeveralFront:
    """Requests go to the proxies in turn; each has its own queues.

    Args:
        fronts: one per proxy, alike.
        leased: whether they share by leases; else each keeps to what it was built with.
        store_s: how long the store takes to answer.
    """

    def __init__(self, fronts: Sequence[DispatcherFront], *, leased: bool, store_s: float = STORE_S) -> None:
        self._fronts = fronts
        self._store_s = store_s
        self._book = Book()
        count = len(fronts)
        self._members = [Member(f"{n:02x}", count, LEASE_S, RECOVERY_S) for n in range(count)] if leased else []
        self._asked: list[tuple[float, Document] | None] = [None] * count
        """Requests under way, and when their answers come."""
        self._live = 0
        self.requests = 0
        """To the store, in all."""

    def arrive(self, now: float, index: int, prompt_tokens: int, output_tokens: int) -> Sequence[Order]:
        """Give the request to the proxy whose turn it is."""
        return self._of(index).arrive(now, index, prompt_tokens, output_tokens)

    def first_token(self, now: float, index: int) -> Sequence[Order]:
        """See `DispatcherFront`."""
        return self._of(index).first_token(now, index)

    def part_ended(self, now: float, index: int, cached_tokens: int) -> Sequence[Order]:
        """See `DispatcherFront`."""
        return self._of(index).part_ended(now, index, cached_tokens)

    def finished(self, now: float, index: int, output_tokens: int, cached_tokens: int) -> Sequence[Order]:
        """See `DispatcherFront`."""
        return self._of(index).finished(now, index, output_tokens, cached_tokens)

    def gone(self, now: float, index: int) -> Sequence[Order]:
        """See `DispatcherFront`."""
        return self._of(index).gone(now, index)

    def stepped(self, backend: int, seconds: float, tokens: int) -> None:
        """Tell each proxy its part of the tokens, as its own streams show them."""
        running = [front.dispatcher.busy(str(backend))[0] for front in self._fronts]
        for front, own in zip(self._fronts, running, strict=True):
            seen = round(tokens * own / max(1, sum(running)))
            if seen:
                front.stepped(backend, seconds * seen / tokens, seen)

    def wake(self, now: float) -> Sequence[Order]:
        """Do what is due at each proxy, and between it and the store."""
        found: list[Order] = []
        for number, front in enumerate(self._fronts):
            at = front.next_wake()
            if at is not None and at <= now:
                found += front.wake(now)
            if self._members:
                found += self._share(now, number)
        return found

    def next_wake(self) -> float | None:
        """When the next of them is; while nobody waits or runs, nobody keeps its leases."""
        times = [at for front in self._fronts if (at := front.next_wake()) is not None]
        if self._members and any(front.dispatcher.live for front in self._fronts):
            times += [self._store_at(number) for number in range(len(self._fronts))]
        return min(times, default=None)

    def _of(self, index: int) -> DispatcherFront:
        return self._fronts[index % len(self._fronts)]

    def _store_at(self, number: int) -> float:
        asked = self._asked[number]
        if asked is not None:
            return asked[0]
        return self._members[number].due(0.0, self._fronts[number].dispatcher.lease_stirred())

    def _share(self, now: float, number: int) -> Sequence[Order]:
        """Send a request to the store, or take its answer."""
        member, dispatcher, asked = self._members[number], self._fronts[number].dispatcher, self._asked[number]
        if asked is None:
            if self._store_at(number) > now:
                return ()
            self.requests += 1
            self._asked[number] = (now + self._store_s, member.ask(now, dispatcher.lease_uses()))
        elif asked[0] <= now:
            self._asked[number] = None
            reply = self._book.sync(round(1000 * now), asked[1])
            if reply.get("w"):
                for other in self._members:
                    if other is not member:
                        other.woken()
            member.told(now, reply)
        else:
            return ()
        return orders(dispatcher.set_leases(now, member.terms(now)))


def several(build: Callable[[], DispatcherFront], proxies: int, *, leased: bool) -> SeveralFront:
    """Return so many proxies.

    Args:
        build: makes one, its limits split beforehand or leased.
        proxies: how many.
        leased: whether they share by leases.
    """
    return SeveralFront([build() for _ in range(proxies)], leased=leased)
