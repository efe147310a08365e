"""This proxy in its group: joined, rejoining or degraded; what it asks of the store, and what it may use meanwhile.

    DEGRADED ── registered ──► REJOINING ── calm is over ──► JOINED
        ▲                          │                            │
        └──── the lease ran out, or the store forgot us ◄───────┘

- **Joined**: it uses what the store granted, never more, until one lease after the last request that was answered,
  counted from before it was sent. What it gives up it stops using before it tells the store.
- **Degraded**: it keeps to its static share. Where it held less it grows from there, so that others get rid of what
  they hold above theirs. It is where a proxy starts, too: then it has its whole share.
- **Rejoining**: the store is back, or new, and calm until everybody has said what is in flight. It keeps to the same.

Between two heartbeats, three to a lease, it asks when something is lacking or when others wait for what is idle here,
but not within `GAP_S` of the last time, not while it stands in line and nothing was given back, and only by the
heartbeat after two failures in a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from proxy.policy.job import NEVER
from proxy.policy.leases.book import UNLIMITED, Document
from proxy.policy.leases.hold import EVERYTHING, Amounts, Need, Stir, Terms

BEATS = 3
"""Heartbeats in a lease."""
GAP_S = 0.005
"""Shortest time between two requests to the store: what a grant may be late when proxies compete."""
LINE_S = 0.1
"""The same while it stands in line, unless the store says that something was given back."""
OPEN_AFTER = 2
"""Failures in a row after which nothing is asked for that is lacking: only the leases are to be renewed."""
TRIES = 12
"""In a lease, while renewing it fails."""
AHEAD = 4
"""A quarter more than was in use at most is kept ahead of need."""
SMALLEST = (1, 8, 16)
"""Least that is kept ahead where something was in use: one sequence, an eighth of the prefill budget, a sixteenth of
the KV cache."""


class State(StrEnum):
    """How this proxy stands to its group; the metric label."""

    JOINED = "joined"
    REJOINING = "rejoining"
    DEGRADED = "degraded"


@dataclass(frozen=True, slots=True)
class Use:
    """What happens at one place of this proxy."""

    used: Amounts
    """In use now."""
    peak: Amounts
    """Most that was in use since it was asked last."""
    limits: Amounts
    """What all proxies together may use, as this one knows it; -1: no limit."""
    waiting: Amounts
    """What those that wait would use beside it."""
    need: Need | None = None
    """Of the first that did not go, because this proxy holds too little."""
    adapts: bool = False
    """The first limit follows what this proxy measures."""


@dataclass(slots=True)
class _Place:
    """What is known of one place."""

    limits: Amounts
    held: Amounts
    elsewhere: int = 0
    hungry: bool = False
    lost: Amounts | None = None
    """What was held when the store was lost; None: nothing ever was."""
    frozen: Amounts | None = None
    """While it registers: what is in flight, and no more."""
    peaks: tuple[Amounts, Amounts] = ((), ())
    """Of this heartbeat and the one before."""


@dataclass
class Member:
    """The state machine. Every method takes `now`, monotonic seconds.

    Attributes:
        name: of this proxy in its group, lower-case hexadecimal, new with each start.
        share: proxies among which the static share divides.
        lease_s: see `sharing.lease`.
        recovery_s: see `sharing.recovery`.
    """

    name: str
    share: int
    lease_s: float
    recovery_s: float
    state: State = State.DEGRADED
    up: bool = False
    """The last request was answered."""
    members: int = 0
    """Proxies in the group, as the store said last."""
    fallbacks: int = 0
    """How often it lost its leases."""
    next_at: float = 0.0
    """When to ask the store by the heartbeat."""
    failures: int = 0
    """In a row."""
    _known: int = 1
    """Most proxies that were ever seen, or said to be."""
    _seq: int = 0
    _seen: int = 0
    _until: float = -NEVER
    _lost_at: float = -NEVER
    _asked_at: float = -NEVER
    _window_at: float = -NEVER
    _needs: dict[str, list[int]] = field(default_factory=dict)
    _in_line: bool = False
    """The store knows what is lacking, and had not enough."""
    _places: dict[str, _Place] = field(default_factory=dict)

    @property
    def proxies(self) -> int:
        """Among how many the static share divides: as configured, or as many as were seen."""
        return max(self.share, self._known)

    def due(self, now: float, stirred: Stir) -> float:
        """Return when to ask the store next.

        Args:
            now: monotonic seconds.
            stirred: whether something is lacking, or others wait for what is idle here.
        """
        if stirred and self.failures < OPEN_AFTER and self.state is not State.DEGRADED:
            gap_s = LINE_S if self._in_line and stirred is Stir.LACKS else GAP_S
            return min(self.next_at, max(now, self._asked_at + gap_s))
        return min(self.next_at, self._until) if self.state is not State.DEGRADED else self.next_at

    def check(self, now: float) -> bool:
        """Return whether the leases have just run out; then it is degraded from now on."""
        if self.state is State.DEGRADED or now < self._until:
            return False
        self._lose(now)
        return True

    def ask(self, now: float, uses: Mapping[str, Use]) -> Document:
        """Return the next request; what it gives up is out of use from this moment.

        Args:
            now: monotonic seconds.
            uses: all places of this proxy. Those that are missing are given up.
        """
        self.check(now)
        self._seq += 1
        self._asked_at = now
        self.next_at = now + self.lease_s / BEATS
        if now >= self._window_at + self.lease_s / BEATS:
            self._window_at = now
            for place in self._places.values():
                place.peaks = ((0,) * len(place.held), place.peaks[0])
        self._places = {name: self._known_place(name, use) for name, use in uses.items()}
        rows = {name: self._row(self._places[name], use, now) for name, use in uses.items()}
        self._needs = {name: row["d"] for name, row in rows.items() if "d" in row}
        return {
            "m": self.name,
            "q": self._seq,
            "t": round(self.lease_s * 1000),
            "n": self.share,
            "v": self._seen,
            "p": rows,
        }

    def told(self, now: float, reply: Document) -> None:
        """Take the answer to the last request.

        What `check` has found since it was sent stands: then the answer is of no use.
        """
        self.up, self.failures = True, 0
        if reply.get("s"):
            self._thaw()
            self.next_at = now
            return
        lapsed = now >= self._asked_at + self.lease_s
        if lapsed or (self.state is not State.DEGRADED and not reply["k"]):
            self.check(now)
            if self.state is not State.DEGRADED:
                self._lose(now)
            self._seen = reply["v"]
            self._thaw()
            self.next_at = now
            return
        self._seen, self.members = reply["v"], reply["n"]
        self._known = max(reply["N"], reply["n"])
        self.state = State.REJOINING if reply["c"] else State.JOINED
        self._until = self._asked_at + self.lease_s
        if reply["c"]:
            self.next_at = min(self.next_at, now + reply["c"] / 1000 + 0.001)
        self._in_line = any(
            any(map(int.__gt__, need, reply["p"][name]["h"]))
            for name, need in self._needs.items()
            if name in reply["p"]
        )
        for name, row in reply["p"].items():
            place = self._places.get(name)
            if place is None:
                continue
            place.frozen, place.lost = None, None
            place.held = tuple(
                held if limit != UNLIMITED else EVERYTHING for held, limit in zip(row["h"], row["l"], strict=True)
            )
            place.limits, place.elsewhere, place.hungry = tuple(row["l"]), row["e"], bool(row["y"])

    def failed(self, now: float) -> bool:
        """Take that the last request was not answered in time; return whether the leases have run out."""
        self.up = False
        self.failures += 1
        self._in_line = False
        self._thaw()
        if self.check(now):
            return True
        if self.state is not State.DEGRADED:  # what runs out is worth more tries than three
            self.next_at = min(self.next_at, now + self.lease_s / TRIES)
        return False

    def woken(self) -> None:
        """Take that something was given back that somebody stands in line for."""
        self._in_line = False

    def leave(self) -> Document:
        """Return the request that gives everything back."""
        self._seq += 1
        return {"m": self.name, "q": self._seq, "x": 1}

    def terms(self, now: float) -> dict[str, Terms]:
        """Return what may be used at each place."""
        return {name: self._terms(place, now) for name, place in self._places.items()}

    # ------------------------------------------------------------------ one place

    def _known_place(self, name: str, use: Use) -> _Place:
        place = self._places.get(name)
        if place is None:
            nothing = tuple(EVERYTHING if limit == UNLIMITED else 0 for limit in use.limits)
            place = _Place(use.limits, nothing, peaks=(use.peak, use.peak))
        if self.state is State.DEGRADED:
            place.limits = use.limits
        place.peaks = (tuple(map(max, place.peaks[0], use.peak)), place.peaks[1])
        return place

    def _row(self, place: _Place, use: Use, now: float) -> dict[str, Any]:
        targets = self._targets(place, use)
        if self.state is State.DEGRADED:
            floor = self._fallback(place, now)
            place.frozen = use.used
            keep = use.used
        elif place.hungry:
            floor = keep = use.used
        else:
            kept = map(min, place.held, targets)
            floor = keep = tuple(map(max, use.used, kept))
        if self.state is State.REJOINING:
            floor = keep = tuple(map(max, use.used, place.held))
        if self.state is not State.DEGRADED:
            place.held = tuple(
                EVERYTHING if limit == UNLIMITED else one for one, limit in zip(keep, use.limits, strict=True)
            )
        wanted = [
            0 if limit == UNLIMITED else min(limit, max(0 if place.hungry else target, used + waits))
            for limit, target, used, waits in zip(use.limits, targets, use.used, use.waiting, strict=True)
        ]
        row: dict[str, Any] = {
            "l": list(use.limits),
            "k": _finite(keep, use.limits, use.used),
            "f": _finite(floor, use.limits, use.used),
            "w": wanted,
            "o": 0,
            "a": int(use.adapts),
        }
        if use.need is not None:
            row["d"] = _finite(use.need.amounts, use.limits, use.used)
            row["o"] = use.need.rank
        return row

    def _targets(self, place: _Place, use: Use) -> Amounts:
        """Return what to hold where nobody else needs it: the recent peak and a little more."""
        found = []
        for index, limit in enumerate(use.limits):
            peak = max(place.peaks[0][index], place.peaks[1][index])
            least = 1 if index == 0 else limit // SMALLEST[index]
            found.append(0 if limit == UNLIMITED or not peak else min(limit, peak + max(least, peak // AHEAD)))
        return tuple(found)

    def _terms(self, place: _Place, now: float) -> Terms:
        if self.state is State.DEGRADED:
            held = self._fallback(place, now) if place.frozen is None else place.frozen
            return Terms(held, held, NEVER, held)
        shares = self._shares(place.limits)
        bound = tuple(EVERYTHING if limit == UNLIMITED else limit for limit in place.limits)
        after = tuple(map(min, place.held, shares))
        return Terms(place.held, bound, self._until, after, place.elsewhere, place.hungry)

    def _fallback(self, place: _Place, now: float) -> Amounts:
        """Return what may be used without the store."""
        shares = self._shares(place.limits)
        if place.lost is None:
            return shares
        grown = 1.0 if self.recovery_s <= 0 else min(1.0, (now - self._lost_at) / self.recovery_s)
        return tuple(
            share if had >= share else had + int((share - had) * grown)
            for had, share in zip(place.lost, shares, strict=True)
        )

    def _shares(self, limits: Amounts) -> Amounts:
        return tuple(EVERYTHING if limit == UNLIMITED else max(1, limit // self.proxies) for limit in limits)

    def _lose(self, now: float) -> None:
        self.state = State.DEGRADED
        self.fallbacks += 1
        self._lost_at = now
        for place in self._places.values():
            place.lost = tuple(map(min, place.held, self._shares(place.limits)))
            place.hungry, place.elsewhere = False, 0

    def _thaw(self) -> None:
        for place in self._places.values():
            place.frozen = None


def _finite(amounts: Amounts, limits: Amounts, used: Amounts) -> list[int]:
    """Return amounts as the store takes them: of what has no limit, what is in use."""
    return [use if limit == UNLIMITED else one for one, limit, use in zip(amounts, limits, used, strict=True)]
