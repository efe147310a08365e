"""One request, seen from three sides: the load generator's journal, the proxy's record, the engine's ledger.

Joined by request id. Every planned row must be in the journal once and, when it was sent, in the record once, with
outcomes that mean the same; and the bytes of a complete answer must be equal on all three sides. The parts of a prompt
that was fed in installments are requests of the proxy's own: the ledger has as many as the record says.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadgen.journal import RunFolder
from tools.acceptance.loop import lines

MEANS_THE_SAME: Mapping[str, frozenset[str]] = {
    "ok": frozenset({"ok"}),
    "rejected": frozenset({"rejected", "expired", "draining"}),
    "error": frozenset({"too_long", "invalid", "backend_error", "backend_timeout"}),
    "truncated": frozenset({"truncated", "backend_timeout"}),
    "timeout": frozenset({"client_gone"}),
    "stalled": frozenset({"client_gone"}),
    "cancelled": frozenset({"client_gone"}),
}
"""Outcome in the journal → outcomes that the record may have for it."""
CROSSING_S = 0.1
"""A client that leaves while its answer is on the way: the proxy ends the request before it hears of the leaving."""
PART = re.compile(r"inst-(?P<request>.+)-\d+")
"""Request id of a part."""
SHOWN = 5


@dataclass(slots=True)
class Joined:
    """What joining found."""

    planned: int
    speed: float
    origin_s: float
    """When the plan began on the proxy's wall clock: the earliest that any request allows. Unix seconds."""
    outcomes: dict[str, int]
    """Journal."""
    recorded: dict[str, int]
    """Record."""
    pairs: dict[str, int]
    """`journal outcome/record outcome` → requests."""
    compared: int = 0
    """Complete answers whose bytes were compared on all three sides."""
    compared_bytes: int = 0
    parts: int = 0
    """Parts of prompts that the engine answered."""
    faults: dict[str, list[str]] = field(default_factory=dict)
    """What is wrong → the requests concerned."""

    def fault(self, what: str, request: str) -> None:
        """Note one request for which something does not hold."""
        self.faults.setdefault(what, []).append(request)

    def document(self) -> dict[str, Any]:
        """Return everything as plain values; of the requests with a fault only the first few."""
        return {
            "planned": self.planned,
            "outcomes": self.outcomes,
            "recorded": self.recorded,
            "pairs": self.pairs,
            "answers_compared": self.compared,
            "bytes_compared": self.compared_bytes,
            "parts": self.parts,
            "faults": {what: {"requests": len(which), "first": which[:SHOWN]} for what, which in self.faults.items()},
        }


def join_folder(folder: Path) -> Joined:
    """Join what one loop left in its folder (`tools.acceptance.loop`)."""
    manifest = RunFolder(folder / "run").manifest()
    return join(
        manifest["plan"]["requests"],
        manifest["salt"],
        manifest["speed"],
        shots=lines([folder / "run" / "shots.jsonl"]),
        records=(record for record in lines(sorted((folder / "trace").glob("trace-*.jsonl"))) if _generates(record)),
        ledger=lines([folder / "ledger.jsonl"]),
    )


def _generates(record: Mapping[str, Any]) -> bool:
    return record["endpoint"] in {"completions", "chat"}


def join(
    planned: int,
    salt: str,
    speed: float,
    *,
    shots: Iterable[Mapping[str, Any]],
    records: Iterable[Mapping[str, Any]],
    ledger: Iterable[Mapping[str, Any]],
) -> Joined:
    """Join the three sides.

    Args:
        planned: rows of the plan; their indices are 0 … planned - 1.
        salt: of the run; a request's id is `salt-index`.
        speed: of the run; the journal's times are multiplied by it.
        shots: lines of the journal.
        records: lines of the proxy's record.
        ledger: lines of the engine's ledger.
    """
    journal = _by(f"{salt}-{{index}}", shots)
    record = _by("{request_id}", records)
    whole, parts = _apart(ledger)
    engine = _by("{request_id}", whole)
    first = {name: found[0] for name, found in journal.items()}
    joined = Joined(
        planned,
        speed,
        _origin_s(first, record, speed),
        dict(Counter(shot["outcome"] for shot in first.values())),
        dict(Counter(found[0]["outcome"] for found in record.values())),
        {},
        parts=parts.total(),
    )
    pairs: Counter[str] = Counter()
    for index in range(planned):
        name = f"{salt}-{index}"
        shot = _one(joined, "row not in the journal exactly once", name, journal)
        if shot is not None and shot.get("sent") is not None:
            seen = _one(joined, "request not in the record exactly once", name, record)
            if seen is not None:
                pairs[f"{shot['outcome']}/{seen['outcome']}"] += 1
                if shot["outcome"] == "ok" and seen.get("parts", 0) != parts[name]:
                    joined.fault("the record counts other parts than the engine answered", name)
                _compare(joined, name, shot, seen, engine)
    joined.pairs = dict(sorted(pairs.items()))
    ours = {f"{salt}-{index}" for index in range(planned)}
    _strangers(joined, ours, journal, record, {**engine, **parts})
    return joined


def _apart(ledger: Iterable[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], Counter[str]]:
    """Return the lines of whole requests, and how many parts each request had."""
    whole, parts = list[Mapping[str, Any]](), Counter[str]()
    for line in ledger:
        found = PART.fullmatch(line["request_id"])
        if found is None:
            whole.append(line)
        else:
            parts[found["request"]] += 1
    return whole, parts


def _by(pattern: str, rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(pattern.format_map(row), []).append(row)
    return found


def _one(joined: Joined, what: str, name: str, rows: Mapping[str, list[Mapping[str, Any]]]) -> Mapping[str, Any] | None:
    found = rows.get(name, [])
    if len(found) == 1:
        return found[0]
    joined.fault(what, name)
    return None


def _compare(
    joined: Joined,
    name: str,
    shot: Mapping[str, Any],
    seen: Mapping[str, Any],
    engine: Mapping[str, list[Mapping[str, Any]]],
) -> None:
    if seen["outcome"] not in MEANS_THE_SAME[shot["outcome"]] and not _crossed(joined, shot, seen):
        joined.fault(f"journal says {shot['outcome']}, record says {seen['outcome']}", name)
    if shot.get("status") is not None and seen.get("status") != shot["status"]:
        joined.fault("another status in the record than in the journal", name)
    if shot["outcome"] != "ok":
        return
    sent = _one(joined, "complete answer not in the engine's ledger exactly once", name, engine)
    if sent is None:
        return
    joined.compared += 1
    joined.compared_bytes += sent["bytes"]
    if not sent["whole"] or (sent["bytes"], sent["crc32"]) != (shot["body_bytes"], shot["body_crc32"]):
        joined.fault("the client received other bytes than the engine sent", name)
    if seen["response_bytes"] != sent["bytes"]:
        joined.fault("the record counts other bytes than the engine sent", name)
    if (seen.get("prompt_tokens"), seen.get("output_tokens")) != (shot["prompt_tokens"], shot["output_tokens"]):
        joined.fault("the record has other lengths than the plan", name)


def _origin_s(
    shots: Mapping[str, Mapping[str, Any]], records: Mapping[str, list[Mapping[str, Any]]], speed: float
) -> float:
    """Return what no request could have arrived before: arrival minus send, the least of all."""
    sent = ((name, shot["sent"]) for name, shot in shots.items() if shot.get("sent") is not None and name in records)
    return min((records[name][0]["arrived_s"] - at / speed for name, at in sent), default=0.0)


def _crossed(joined: Joined, shot: Mapping[str, Any], seen: Mapping[str, Any]) -> bool:
    """Whether the proxy ended a request just when its client left."""
    left_s = joined.origin_s + shot["end"] / joined.speed
    ended_s = seen["arrived_s"] + seen["end_s"]
    return shot["outcome"] == "cancelled" and bool(abs(ended_s - left_s) < CROSSING_S)


def _strangers(joined: Joined, ours: set[str], *sides: Mapping[str, object]) -> None:
    for side, rows in zip(("journal", "record", "engine's ledger"), sides, strict=True):
        for name in rows:
            if name not in ours:
                joined.fault(f"the {side} has a request that was not planned", name)
