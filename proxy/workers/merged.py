"""The status of several workers as one document, and what became of an order that all of them were given."""

from collections.abc import Mapping, Sequence
from typing import Any

_LANE_SUMS = (
    *("waiting_requests", "waiting_tokens", "waiting_bytes", "limit_requests", "limit_tokens", "limit_bytes"),
    *(
        "demoted_now",
        "returned",
        "parked",
        "offered",
        "granted_on_time",
        "granted_late",
        "demoted",
        "dropped",
        "rejected",
    ),
)
_BACKEND_SUMS = ("in_flight", "requests", "prefill_tokens", "kv_tokens", "recomputed_tokens", "reported_failures")
_MOST = ("oldest_wait_s", "retry_after_s")


def merged(workers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one status document for all workers.

    Args:
        workers: one each: `worker`, `admin`, `pid`, `restarts`, and `status`, its `/status.json` or None.

    Returns:
        The document of the first that answers, lanes and backends added up, and `workers` with one row each. Ready as
        soon as one is.
    """
    documents = [one["status"] for one in workers if one["status"] is not None]
    rows = [
        {key: value for key, value in one.items() if key != "status"}
        | {
            "up": one["status"] is not None,
            "ready": bool(one["status"] and one["status"]["ready"]),
            "config": one["status"]["config"] if one["status"] else None,
            "in_flight": sum(of["in_flight"] for of in one["status"]["backends"]) if one["status"] else None,
            "sharing": one["status"]["sharing"] if one["status"] else None,
        }
        for one in workers
    ]
    if not documents:
        return {"ready": False, "reason": "no worker answers", "workers": rows}
    ready = [document for document in documents if document["ready"]]
    first = dict(ready[0] if ready else documents[0])
    first["lanes"] = _added([document["lanes"] for document in documents], _LANE_SUMS)
    first["backends"] = _added([document["backends"] for document in documents], _BACKEND_SUMS)
    first["rejections"] = sorted(
        (one for document in documents for one in document["rejections"]), key=lambda one: str(one["at"]), reverse=True
    )[:20]
    first["uptime_s"] = max(document["uptime_s"] for document in documents)
    return first | {"workers": rows}


def _added(lists: Sequence[Sequence[Mapping[str, Any]]], sums: Sequence[str]) -> list[dict[str, Any]]:
    """Add up the rows of one name; what is no amount is that of the first."""
    rows: dict[str, dict[str, Any]] = {}
    for one in (row for rows_of in lists for row in rows_of):
        known = rows.get(one["name"])
        if known is None:
            rows[one["name"]] = dict(one)
            continue
        for key in sums:
            known[key] += one[key]
        for key in _MOST:
            if key in known:
                known[key] = max(known[key], one[key])
    return list(rows.values())


def merged_reply(replies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what became of an order: done where every worker did it; sentences that differ are all told."""
    first = dict(replies[0])
    first["done"] = all(reply.get("done") is True for reply in replies)
    for key in ("sentences", "warnings", "changed"):
        told = [str(one) for reply in replies for one in reply.get(key, ())]
        if told or key in first:
            first[key] = list(dict.fromkeys(told))
    return first
