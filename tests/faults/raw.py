"""The framing cases: 151 raw inputs, each sent on a connection of its own, and counted at the recording upstream."""

import gzip
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.faults import wire
from tests.faults.case import Case, add
from tests.faults.raw_recipes import BODY, RECIPES
from tests.faults.raw_table import TABLE
from tests.faults.rules import Rule
from tests.faults.station import Station
from tests.faults.upstream import Seen

CHAT = "/v1/chat/completions"
_HALF_CLOSED = {"069", "195", "196"}
_PATH_AS_SENT = {
    "072": "/latest/meta-data",
    "084": "/v1/chat/completions%00",
    "085": "/v1/chat/completions%0d%0aX-Injected:%201",
}
"""Where the path itself may pass unchanged."""
_TWICE = {"accept1_or_reject"}
"""Classes with two allowed outcomes: it must be the same one each time."""

REFUSED = {"any_of": [{"at_least": 400, "at_most": 499}, {"one_of": [501, 505]}]}
_NONE: Rule = {"requests": 0}
_ONE: Rule = {"requests": 1, "complete": True, "same_path": True, "same_body": True}


def _accept(*statuses: Any, upstream: Rule = _ONE) -> Rule:
    return {"statuses": list(statuses), "upstream": upstream}


def _refuse(*statuses: int, closed: bool = False) -> Rule:
    status = {"one_of": list(statuses)} if statuses else REFUSED
    rule: dict[str, Any] = {"statuses": {"each": status, "count": 1}, "upstream": _NONE}
    return rule | {"closed": True} if closed else rule


_ACCEPTED = _accept(200)
CLASSES: dict[str, Rule] = {
    "accept1": _ACCEPTED,
    "accept1_get": {"statuses": [200], "upstream": {"requests": {"at_most": 1}, "smuggled": False}},
    "reject4xx+close": _refuse(closed=True),
    "accept1_or_reject": {"any_of": [_ACCEPTED, _refuse()], "again": True},
    "refuse": _refuse(),
    "reject405": _refuse(405),
    "reject413_or_415": _refuse(413, 415),
    "reject414": _refuse(414),
    "reject415": _refuse(415),
    "reject431": _refuse(431),
    "reject431_or_accept": {"any_of": [_refuse(431), _ACCEPTED]},
    "reject415_or_decode": {"any_of": [_refuse(415), _ACCEPTED]},
    "accept2": _accept(200, 200, upstream={"requests": 2, "complete": True, "same_path": True, "same_body": True}),
    "accept2_apart": {
        "statuses": {"count": 2, "each": {"at_least": 200, "at_most": 499}},
        "upstream": {"requests": {"one_of": [1, 2]}, "same_body": True},
    },
    "accept1+400": {"statuses": [200, 400], "closed": True, "upstream": _ONE},
    "accept-all-bounded": {"ok": 300, "upstream": {"requests": 300}, "memory_grew_mb": {"at_most": 64}},
    "100-or-final": {
        "first_status": {"any_of": [100, {"at_least": 200, "at_most": 499}]},
        "first_byte_s": {"at_most": 1.0},
    },
    "no-upstream-complete": {"upstream": {"complete_requests": 0}},
    "no-upstream": {"upstream": _NONE},
    "allowlist": {"any_of": [_refuse(), _ACCEPTED]},
}
"""What each class of raw case means for an observation."""


@dataclass
class Observation:
    """What one raw input did."""

    talk: wire.Talk
    seen: list[Seen]
    log: str
    grew_mb: float
    lines: tuple[str, ...]
    """Request lines that have the meaning of what was sent."""
    body: bytes
    """The body that was sent."""

    def as_got(self) -> dict[str, Any]:
        finals = [answer.status for answer in self.talk.answers if answer.status >= 200 or answer.status == 0]
        return {
            "first_status": self.talk.statuses[0] if self.talk.statuses else None,
            "first_byte_s": round(self.talk.first_byte_s, 3) if self.talk.first_byte_s is not None else None,
            "statuses": finals if len(finals) < 10 else f"{finals[0]} x {len(finals)}",
            "ok": finals.count(200),
            "closed": self.talk.closed,
            "upstream": self._upstream(),
            "memory_grew_mb": round(self.grew_mb, 1),
            "traceback": "Traceback" in self.log,
        }

    def _upstream(self) -> dict[str, Any]:
        seen = self.seen
        got: dict[str, Any] = {
            "requests": len(seen),
            "complete": all(one.complete for one in seen),
            "complete_requests": sum(one.complete for one in seen),
            "same_path": all(one.line in self.lines for one in seen),
            "same_body": all(_same_meaning(one, self.body) for one in seen if one.method == "POST"),
            "smuggled": any("smuggled" in one.line for one in seen),
        }
        if seen:
            got["first"] = seen[0].as_row()
        return got


def _same_meaning(seen: Seen, wanted: bytes) -> bool:
    """The body says what the client said, in the coding that its head names."""
    body = seen.body
    for coding in reversed(",".join(seen.all("content-encoding")).replace(" ", "").split(",")):
        if coding == "gzip":
            try:
                body = gzip.decompress(body)
            except (OSError, EOFError, zlib.error):
                return False
        elif coding not in {"", "identity"}:
            return False
    return body == wanted or _document(body) == _document(wanted) is not None


def _document(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


def _forwarded(seen: Seen) -> dict[str, Any]:
    names = ("x-forwarded-for", "forwarded", "x-real-ip", "x-forwarded-host")
    return {name: ", ".join(seen.all(name)) for name in names}


def _names(seen: Seen) -> list[str]:
    return sorted({key.decode("latin-1").lower() for key, _ in seen.fields})


_HOPS = ("keep-alive", "proxy-connection", "te", "proxy-authorization", "upgrade", "http2-settings", "x-hop", "x-t")
_REFUSED_401: Rule = {"statuses": [401], "upstream": _NONE}

EXTRAS: dict[str, tuple[Callable[[Seen], Any], Rule]] = {
    # number: what to look at in the request that reached the upstream, and what it must be
    **dict.fromkeys(
        ("064", "142", "143", "144"),
        (lambda seen: [name for name in _names(seen) if name in _HOPS], []),
    ),
    "012": (lambda seen: len(seen.all("content-length")), {"at_most": 1}),
    "014": (lambda seen: seen.all("content-length"), {"count": {"at_most": 1}, "each": {"matches": r"^\d+$"}}),
    "065": (lambda seen: [*seen.all("authorization"), *(h for h in seen.all("host") if "evil" in h)], []),
    "067": (_names, {"lacks": "get /smuggled http/1.1"}),
    "126": (
        lambda seen: seen.all("x-a"),
        {"any_of": [[], [b"caf\xe9 \xe4\xbd\xa0".decode("latin-1")]]},
    ),
    "160": (
        _forwarded,
        {
            "x-forwarded-for": {"is_not": "1.2.3.4"},
            "forwarded": {"lacks": "1.2.3.4"},
            "x-real-ip": {"is_not": "1.2.3.4"},
            "x-forwarded-host": {"lacks": "evil"},
        },
    ),
    "182": (lambda seen: len(seen.all("authorization")), {"at_most": 1}),
    "180": (lambda seen: len(seen.all("content-type")), 1),
}


def rule_of(number: str, kind: str) -> Rule:
    """The rule of a raw case: its class, what its words forbid, and what holds for all of them."""
    rule = CLASSES[kind]
    if number in EXTRAS:
        rule = _with_header(rule, {"any_of": [None, EXTRAS[number][1]]})
    if number == "141":
        rule = {"any_of": [_with_header(rule, ["Bearer t"]), _REFUSED_401]}
    if number == "171":
        rule = rule | {"memory_grew_mb": {"at_most": 64}}
    if number == "134":
        rule = rule | {"escape_in_log": False}
    return {**rule, "no_5xx": True, "traceback": False, "next_connection": 200}


def _with_header(rule: Rule, header: Rule) -> Rule:
    return {**rule, "header": header}


async def observe(station: Station, number: str, kind: str) -> dict[str, Any]:
    """Send a raw input and write down everything that it did."""
    data = RECIPES[number]()
    first = await _send(station, number, data)
    got = first.as_got()
    if kind in _TWICE:
        second = await _send(station, number, data)
        got["again"] = second.as_got()["statuses"] == got["statuses"]
    if number in EXTRAS or number == "141":
        look = EXTRAS[number][0] if number in EXTRAS else (lambda seen: seen.all("authorization"))
        got["header"] = look(first.seen[0]) if first.seen else None
    got["escape_in_log"] = "\x1b" in station.log
    statuses = [answer.status for answer in first.talk.answers]
    got["no_5xx"] = not any(status >= 500 and status not in {501, 505} for status in statuses)
    after = await wire.ask(station.port, wire.request(path="/v1/models", method="GET"), 5.0)
    got["next_connection"] = after.answer.status
    return got


async def _send(station: Station, number: str, data: bytes) -> Observation:
    log_before, seen_before, memory = len(station.log), len(station.upstream.seen), station.process.rss_mb
    talk = await wire.talk(station.port, data, half_close=number in _HALF_CLOSED, heads_only=number == "194")
    seen = [one for one in station.upstream.seen[seen_before:] if one.method != "GET" or one.path != "/v1/models"]
    lines = [f"POST {CHAT} HTTP/1.1"]
    if number in _PATH_AS_SENT:
        lines.append(f"POST {_PATH_AS_SENT[number]} HTTP/1.1")
    body = b"" if number == "199" else BODY
    return Observation(talk, seen, station.log[log_before:], station.process.rss_mb - memory, tuple(lines), body)


def register() -> None:
    """Add the raw cases; they are observed by the runner on stations that they share."""
    for number, (kind, name, words) in TABLE.items():
        add(Case(f"RAW-{number}", "raw", name, rule_of(number, kind), _on_a_station, f"{kind}: {words}"))


async def _on_a_station() -> dict[str, Any]:
    raise RuntimeError("a raw case is observed on a shared station")


register()
