"""What this proxy may use of one place, and what it would need there to go on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from proxy.policy.job import NEVER

Amounts = tuple[int, ...]

EVERYTHING = 1 << 40
"""Of a resource without a limit."""


class Stir(IntEnum):
    """Why the store should be asked before the next heartbeat."""

    NOTHING = 0
    LACKS = 1
    """Something is lacking."""
    GIVES = 2
    """Others wait for what is idle here."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a lease says. Amounts are in the order of the place's resources."""

    held: Amounts
    """What may be used."""
    bound: Amounts
    """What all proxies together may use: a request that alone needs more runs when this proxy holds all of it."""
    until: float
    """Monotonic seconds from which on the lease is over."""
    after: Amounts
    """What may be used from then on, until new terms come."""
    elsewhere: int = 0
    """Of the first resource, what the other proxies hold."""
    hungry: bool = False
    """Another proxy waits for something here: what is not in use goes back at once."""


NOTHING_YET = Terms((0, 0, 0), (0, 0, 0), NEVER, (0, 0, 0))


@dataclass(frozen=True, slots=True)
class Need:
    """What the next ticket would need in all, with what is in use already."""

    rank: int
    """Lane: a lower one goes first."""
    amounts: Amounts


class Hold:
    """The terms in force at one place, what was used at most, and what was lacking.

    It starts with nothing: a place whose lease has not come yet gets no request.
    """

    __slots__ = ("_given_up", "_terms", "need", "peak")

    def __init__(self, terms: Terms = NOTHING_YET) -> None:
        self._terms = terms
        self._given_up = (0,) * len(terms.held)
        """Of what was held, what is out of use because others wait for it."""
        self.peak: Amounts = (0,) * len(terms.held)
        """Most that was in use since the last `take_peak`."""
        self.need: Need | None = None
        """Of the first ticket that did not go since the last `take_need`, by rank."""

    @property
    def terms(self) -> Terms:
        """What the lease says."""
        return self._terms

    @terms.setter
    def terms(self, terms: Terms) -> None:
        self._terms = terms
        self._given_up = (0,) * len(terms.held)

    def lacks(self, now: float, used: Amounts, more: Amounts, rank: int) -> int | None:
        """Return the first resource of which `more` would be too much, or None; remember what was needed.

        Where nothing is used, more than there is in all counts as all there is.
        """
        terms = self._terms
        held, bound = (terms.held, terms.bound) if now < terms.until else (terms.after, terms.after)
        if terms.hungry:
            held = tuple(map(int.__sub__, held, self._given_up))
        short = None
        need = []
        for index, (has, uses, adds, whole) in enumerate(zip(held, used, more, bound, strict=True)):
            total = uses + adds if uses else min(adds, max(1, whole))
            need.append(total)
            if short is None and total > has:
                short = index
        if short is not None and (self.need is None or rank < self.need.rank):
            self.need = Need(rank, tuple(need))
        return short

    def note(self, used: Amounts) -> None:
        """Take what is in use now."""
        self.peak = tuple(map(max, self.peak, used))

    def release(self, amounts: Amounts) -> None:
        """Take that so much is no longer in use: while others wait for it, it is not used again here."""
        if self._terms.hungry:
            self._given_up = tuple(map(int.__add__, self._given_up, amounts))

    def take_peak(self, used: Amounts) -> Amounts:
        """Return the most that was in use since the last call, and begin anew from what is used now."""
        peak, self.peak = tuple(map(max, self.peak, used)), used
        return peak

    def take_need(self) -> Need | None:
        """Return what was lacking since the last call."""
        need, self.need = self.need, None
        return need

    def stirred(self, used: Amounts) -> Stir:
        """Return whether the store should be asked: something is lacking, or others wait for what is idle here."""
        if self._terms.hungry and any(map(int.__gt__, self._terms.held, used)):
            return Stir.GIVES
        return Stir.NOTHING if self.need is None else Stir.LACKS
