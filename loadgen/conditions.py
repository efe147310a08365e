"""Whether two sides may be compared at all. Pure: manifests and summaries in, sentences out."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loadgen.manifest import Change, Kind, premise
from loadgen.shards.nouns import WHOLE
from loadgen.sides import Side

_NAMED = {
    "plan": ("plan", "hash"),
    "share of the plan": ("share",),
    "endpoint": ("endpoint",),
    "model": ("model",),
    "speed": ("speed",),
    "time limits": ("limits",),
    "statuses counted as rejected": ("reject_statuses",),
    "connection reuse": ("fresh_connections",),
    "concurrency of the closed loop": ("closed_loop", "concurrency"),
    "load generator version": ("versions", "lanewise"),
    "load generator's machine": ("host",),
}
_UNSAID = {"share of the plan": str(WHOLE)}
"""What holds where a run does not say it: those of earlier versions know no shares."""
_PREMISES = {"card": "card", "size": "model size"}
"""Another card or another model size is another system; cards and quantisation are parameters of it."""
_SAME_PROMPTS = "both runs sent the same prompts (same salt), so a warm prefix cache can fake a gain"
_VOIDS = frozenset({"incomplete", "client_limited", "warm_cache"})


def differing_conditions(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Return what makes two runs incomparable, one sentence each: another workload, client, system or way of asking."""
    found = []
    for name, path in _NAMED.items():
        before, after = (_at(side, path) or _UNSAID.get(name) for side in (a, b))
        if before != after:
            found.append(f"{name} differs: {before} and {after}")
    for key, name in _PREMISES.items():
        before, after = premise(a, key), premise(b, key)
        if None not in (before, after) and before != after:
            found.append(f"{name} differs: {before} and {after}")
    if a.get("salt") == b.get("salt"):
        found.append(_SAME_PROMPTS)
    return found


def conditions(a: Side, b: Side) -> tuple[str, ...]:
    """Return everything that voids a comparison of two sides, one sentence each."""
    found = list(differing_conditions(a.repeats[0].manifest, b.repeats[0].manifest))
    salts = [{repeat.manifest.get("salt") for repeat in side.repeats} for side in (a, b)]
    if salts[0] & salts[1]:
        found.append(_SAME_PROMPTS)
    for name, side in (("A", a), ("B", b)):
        found += unfit(name, side)
    return tuple(dict.fromkeys(found))


def unfit(name: str, side: Side) -> Iterator[str]:
    """Yield what makes the runs of a side worthless for comparing, one sentence each."""
    if side.refused is not None:
        yield f"{name} is not a baseline: {side.refused}"
    for number, repeat in enumerate(side.repeats, 1):
        which = f"run {name}" if len(side.repeats) == 1 else f"run {name}, repeat {number}"
        for caution in repeat.summary.warnings:
            if caution.code in _VOIDS and caution.message not in (side.refused or ""):
                yield f"{which}: {caution.message}"


def too_many(changed: Sequence[Change]) -> str | None:
    """Return why a verdict is refused when more than one parameter was changed, or None."""
    own = [change for change in changed if change.counts]
    if len(own) < 2:
        return None
    return (
        f"{len(own)} parameters changed ({'; '.join(map(str, own))}), so nobody can tell which of them did what: "
        "change one at a time. The run before is void as a baseline for this one"
    )


def out_of_bounds(changed: Sequence[Change]) -> Iterator[str]:
    """Yield what has to be said of parameters that change the answers themselves."""
    for change in changed:
        if change.kind is Kind.MODEL and change.counts:
            yield (
                f"{change} is of class model: out of bounds for tuning, because the answers change with it. "
                "Whatever the latencies say, it needs an accuracy regression first"
            )


def _at(document: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = document
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value
