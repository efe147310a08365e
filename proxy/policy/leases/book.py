"""What the store does with one request of a proxy, in one step: the rules of proxy/leases/sync.lua, in Python.

It serves the workers of one host, whose store is their supervisor, and it is the model that the Lua text is tested
against. Documents are those that go over the wire, with short keys:

    request   m member, q number of the request, t lease in ms, n proxies of the static share, v last version seen,
              x leaves (the rest is absent then), p places by name:
                  l limits (-1: none), k kept of what is held, f kept while calm, w wanted, d needed (absent: nothing),
                  o rank of the need, a whether the first limit adapts
    reply     s the request is older than one that was seen (the rest is absent then); v version, k whether the member
              was known, c ms of calm left, n members, N the largest static share, p places:
                  h held, l limits, e held by others (of the first resource), y others need something;
                w something was given back that another stands in line for: it should ask again

Rules, for one place:
- What a member keeps is its own word, and always taken; all that is granted is free, however much was kept.
- A need is met whole or not at all. Unmet needs stand in line, by rank, then by age; what those ahead need is not given
  to those behind, nor to anybody as a mere wish; of what is left a wish gets an equal part beside those in line.
- After everybody's leases have run out, or when the store has gone back in time, it is calm for one lease: nobody gets
  more than it brings, until all that live have said what they hold.
"""

from typing import Any

Document = dict[str, Any]

UNLIMITED = -1


class Book:
    """The leases of one group."""

    def __init__(self) -> None:
        self._members: dict[str, Document] = {}
        self._version = 0
        self._calm_until = 0

    def sync(self, now_ms: int, request: Document) -> Document:
        """Take what a member keeps, wants and needs, and return what it holds from now on.

        Args:
            now_ms: the store's own clock, milliseconds.
            request: see the module.
        """
        for name in [name for name, member in self._members.items() if member["e"] <= now_ms]:
            del self._members[name]
        me = request["m"]
        before = self._members.pop(me, None)
        if before is not None and request["q"] <= before["q"]:
            self._members[me] = before
            return {"s": 1}
        if request.get("x"):
            in_line = any("d" in place for one in self._members.values() for place in one["p"].values())
            reply = {"v": self._version, "k": int(before is not None), "c": 0, "n": len(self._members), "N": 1, "p": {}}
            return reply | {"w": int(in_line)}
        back_in_time = request["v"] > self._version
        if (before is None and not self._members) or back_in_time:
            self._calm_until = now_ms + request["t"]
        self._version = max(self._version, request["v"]) + 1
        calm_ms = max(0, self._calm_until - now_ms)
        record: Document = {"e": now_ms + request["t"], "q": request["q"], "n": request["n"], "p": {}}
        places: Document = {}
        wake = 0
        for name, asked in request["p"].items():
            earlier = None if before is None else before["p"].get(name)
            others = [(key, one["p"][name]) for key, one in self._members.items() if name in one["p"]]
            record["p"][name], places[name] = _place(now_ms, me, asked, earlier, others, calm=calm_ms > 0)
            if places[name]["y"] and earlier is not None and any(map(int.__gt__, earlier["h"], places[name]["h"])):
                wake = 1
        self._members[me] = record
        return {
            "v": self._version,
            "k": int(before is not None),
            "c": calm_ms,
            "n": len(self._members),
            "N": max(one["n"] for one in self._members.values()),
            "p": places,
            "w": wake,
        }

    def held(self, now_ms: int, place: str) -> dict[str, list[int]]:
        """Return what each member whose lease runs holds at a place."""
        live = ((name, one) for name, one in self._members.items() if one["e"] > now_ms)
        return {name: one["p"][place]["h"] for name, one in live if place in one["p"]}


def _place(
    now_ms: int,
    me: str,
    asked: Document,
    earlier: Document | None,
    others: list[tuple[str, Document]],
    *,
    calm: bool,
) -> tuple[Document, Document]:
    """Return what is written down for one place, and what is answered."""
    limits = _limits(asked, [one for _, one in others])
    size = range(len(limits))
    held = list(asked["k"])
    needed = asked.get("d")
    since = now_ms if earlier is None or "d" not in earlier else earlier["s"]
    mine = (asked["o"], since, me)
    ahead, anybody = [0] * len(limits), [0] * len(limits)
    hungry = 0
    for name, one in others:
        if "d" not in one:
            continue
        hungry += 1
        before_me = needed is not None and (one["o"], one["s"], name) < mine
        for i in size:
            missing = max(0, one["d"][i] - one["h"][i])
            anybody[i] += missing
            if before_me:
                ahead[i] += missing
    free = [
        limits[i] - held[i] - sum(one["h"][i] for _, one in others) if limits[i] != UNLIMITED else 1 << 40 for i in size
    ]
    met = needed is None
    if calm:
        held = [max(held[i], asked["f"][i]) for i in size]
        needed = None
    else:
        if needed is not None:
            missing_here = [max(0, needed[i] - held[i]) for i in size]
            met = all(missing_here[i] == 0 or missing_here[i] <= free[i] - ahead[i] for i in size)
            if met:
                held = [held[i] + missing_here[i] for i in size]
                free = [free[i] - missing_here[i] for i in size]
        for i in size:
            held[i] += max(0, min(asked["w"][i] - held[i], (free[i] - anybody[i]) // (1 + hungry)))
    record: Document = {"l": asked["l"], "h": held, "a": asked["a"], "o": asked["o"]}
    if needed is not None and not met:
        record["d"], record["s"] = needed, since
    reply = {"h": held, "l": limits, "e": sum(one["h"][0] for _, one in others), "y": min(1, hungry)}
    return record, reply


def _limits(asked: Document, others: list[Document]) -> list[int]:
    """Return what all together may hold: the smallest that anybody says.

    Of a limit that adapts, the mean, each weighted by what it holds: who uses an engine most knows it best.
    """
    limits = list(asked["l"])
    for one in others:
        for i, limit in enumerate(one["l"]):
            if limit != UNLIMITED and (limits[i] == UNLIMITED or limit < limits[i]):
                limits[i] = limit
    if asked["a"]:
        weight = asked["k"][0] + 1
        total = asked["l"][0] * weight
        for one in others:
            total += one["l"][0] * (one["h"][0] + 1)
            weight += one["h"][0] + 1
        limits[0] = total // weight
    return limits
