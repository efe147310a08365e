"""Run folders of the shards of one plan, merged into one run: its quantiles are those of all requests together."""

import heapq
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadgen.conditions import differing_conditions
from loadgen.failure import RefusedError, UsageError
from loadgen.journal import Journal, RunFolder
from loadgen.result import LoadOutcome, Result
from loadgen.shards.nouns import WHOLE, Shard, read_shard

_MAY_DIFFER = ("share of the plan", "load generator's machine")


def merge(folders: Sequence[RunFolder], out: Path) -> RunFolder:
    """Write one run folder from those of all shards of a plan.

    Stamps stay as they are: each generator measured against its own clock from the common start, so latencies do not
    depend on how far the clocks were apart; the offsets are kept in the manifest.

    Args:
        folders: one of each shard, in any order.
        out: the new run folder.

    Returns:
        The merged run; complete when every shard is.

    Raises:
        UsageError: a folder is no run of a shard, or `out` is in use.
        RefusedError: a shard is missing or there twice, or they are not shards of one run.
        StopError: the disk does not take it.
    """
    shards = _in_order(folders)
    manifests = [manifest for _, manifest in shards]
    journal = Journal(out, _manifest(manifests))
    pages = [page["file"] for page in manifests[0].get("telemetry", ()) if isinstance(page, dict) and "file" in page]
    for name in pages:
        if (source := shards[0][0].path / name).is_file():
            shutil.copyfile(source, out / name)
    counted: Counter[str] = Counter()
    for number, result in enumerate(heapq.merge(*(folder.results() for folder, _ in shards), key=_finished)):
        counted[result.outcome] += 1
        journal.add(result)
        if number % 4096 == 0:
            journal.flush()
    whole = sum(counted.values()) == manifests[0]["plan"]["requests"]
    return journal.close(
        complete=whole and all(manifest.get("complete") for manifest in manifests),
        outcomes={outcome.value: counted[outcome.value] for outcome in LoadOutcome},
    )


def _finished(result: Result) -> float:
    """Journals are in the order in which requests finished."""
    return max(result.end or 0.0, result.due)


def _in_order(folders: Sequence[RunFolder]) -> list[tuple[RunFolder, dict[str, Any]]]:
    found: dict[Shard, tuple[RunFolder, dict[str, Any]]] = {}
    for folder in folders:
        manifest = folder.manifest()
        shard = read_shard(str(manifest.get("share", WHOLE)))
        if shard == WHOLE:
            raise UsageError(f"{folder.path}: is a whole run and no shard of one; nothing to merge")
        if shard in found:
            raise RefusedError(f"{folder.path} and {found[shard][0].path} are both shard {shard}")
        found[shard] = (folder, manifest)
    counts = {shard.of for shard in found}
    if len(counts) != 1:
        raise RefusedError(f"shards of {' and of '.join(map(str, sorted(counts)))} do not make one run")
    of = counts.pop()
    missing = [str(shard) for shard in (Shard(index, of) for index in range(of)) if shard not in found]
    if missing:
        raise RefusedError(f"shard {', '.join(missing)} is missing; give the run folders of all {of}")
    ordered = [found[Shard(index, of)] for index in range(of)]
    _check_alike(ordered)
    return ordered


def _check_alike(ordered: Sequence[tuple[RunFolder, Mapping[str, Any]]]) -> None:
    first_folder, first = ordered[0]
    for folder, manifest in ordered[1:]:
        if manifest.get("salt") != first.get("salt"):
            raise RefusedError(f"{first_folder.path} and {folder.path} are not shards of one run: the salt differs")
        unlike = [
            sentence
            for sentence in differing_conditions(first, {**manifest, "salt": None})
            if not sentence.startswith(_MAY_DIFFER)
        ]
        if unlike:
            raise RefusedError(f"{first_folder.path} and {folder.path} are not shards of one run: {'; '.join(unlike)}")


def _manifest(manifests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what all have in common, counts of all together, and of what is worst the worst."""
    first = dict(manifests[0])
    hosts = [manifest.get("host") for manifest in manifests]
    certificates: list[Any] = [manifest.get("certificate") or {} for manifest in manifests]
    return first | {
        "share": str(WHOLE),
        "shards": [
            {
                key: manifest.get(key)
                for key in ("share", "label", "host", "start", "started_at", "ended_at", "complete", "interrupted")
            }
            for manifest in manifests
        ],
        "start": None,
        "start_ns": None,
        "cpu_s": sum(float(manifest.get("cpu_s") or 0.0) for manifest in manifests),
        "host": hosts[0] if all(host == hosts[0] for host in hosts) else {"several": hosts},
        "workers": _sum(manifests, "workers"),
        "sent": _sum(manifests, "sent"),
        "most_in_flight": _sum(manifests, "most_in_flight"),
        "connections": _sum(manifests, "connections"),
        "interrupted": "; ".join(f"shard {one['share']}: {why}" for one in manifests if (why := one.get("interrupted")))
        or None,
        "started_late_p99_s": _worst(manifests, "started_late_p99_s"),
        "loop_lag_p99_s": _worst(manifests, "loop_lag_p99_s"),
        "loop_lag_max_s": _worst(manifests, "loop_lag_max_s"),
        "certificate": max(certificates, key=_error_of),
        "prefix_cache": _cache(one.get("prefix_cache") for one in manifests),
        "ended_at": max((str(one["ended_at"]) for one in manifests if one.get("ended_at")), default=None),
    }


def _sum(manifests: Iterable[Mapping[str, Any]], key: str) -> int:
    return sum(int(manifest.get(key) or 0) for manifest in manifests)


def _worst(manifests: Iterable[Mapping[str, Any]], key: str) -> float:
    return max(float(manifest.get(key) or 0.0) for manifest in manifests)


def _error_of(certificate: Mapping[str, Any]) -> float:
    """What was not measured is worse than any error that was."""
    found = certificate.get("ttft_error_mean_s")
    return abs(found) if isinstance(found, (int, float)) else float("inf")


def _cache(deltas: Iterable[Any]) -> dict[str, float] | None:
    """The engine counts for all shards; the one that read it over the longest time saw the most."""
    known = [delta for delta in deltas if isinstance(delta, dict)]
    return {name: max(delta.get(name, 0.0) for delta in known) for name in known[0]} if known else None
