"""The status document as tables for a terminal."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

_WIDE = 200
"""Columns where no terminal limits them."""


def write(status: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the document of `/status.json` for people.

    Args:
        status: the document.
        console: where to; None: stdout.
    """
    out = console or Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE)
    state = "ready" if status["ready"] else f"not ready: {status['reason']}"
    out.print(f"{state}, version {status['version']}, configuration {status['config']}, up {status['uptime_s']:.0f} s")
    _write_reload(out, status["mode"], status["reload"])
    sharing = status.get("sharing")  # a proxy of an older version does not tell
    if sharing:
        where = f"{sharing['state']}, {sharing['proxies']} proxies" if sharing["by"] == "leases" else "static"
        out.print(f"limits shared: {where}, share {sharing['share']}", markup=False)
    out.print(_lanes(status["lanes"]))
    if status.get("last_minute"):  # a proxy of an older version does not tell
        out.print(_last_minute(status["last_minute"]))
    out.print(_backends(status["backends"]))
    if status["tenants"]:
        out.print(_tenants(status["tenants"]))
    if status["would"]:
        out.print(_on_paper(status["would"]))
    if status["limit_moves"]:
        out.print(_moves(status["limit_moves"]))
    if status["rejections"]:
        out.print(_rejections(status["rejections"]))


def _write_reload(out: Console, mode: str, reload: Mapping[str, Any]) -> None:
    judged = f", judged {reload['verdict']}" if reload["verdict"] else ""
    failed = "" if reload["succeeded"] else f"; the last change was not made ({reload['tried_at']})"
    out.print(f"mode {mode}, generation {reload['generation']} since {reload['since']}{judged}{failed}", markup=False)
    for change in reload.get("changed", ()):  # a proxy of an older version does not tell
        out.print(f"  changed {change}", markup=False)
    for sentence in reload["said"]:
        out.print(f"  {sentence}", markup=False)


def _on_paper(lanes: Sequence[Mapping[str, Any]]) -> Table:
    words = ("send", "queue", "reject", "expire", "too_long", "invalid", "cap")
    table = _table("on paper", *(f">{word.replace('_', ' ')}" for word in words))
    for of in lanes:
        table.add_row(of["lane"], *(str(of[word]) for word in words))
    return table


def _lanes(lanes: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("lane", ">waiting", ">prompt tokens", ">oldest s", "held by", ">on time", ">late", ">dropped")
    for of in lanes:
        table.add_row(
            of["name"],
            f"{of['waiting_requests']}/{of['limit_requests']}",
            f"{of['waiting_tokens']}/{of['limit_tokens']}",
            f"{of['oldest_wait_s']:.2f}",
            of["head_blocked"] or "-",
            str(of["granted_on_time"]),
            str(of["granted_late"]),
            str(of["dropped"]),
        )
    return table


def _last_minute(lanes: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("last minute", ">finished", ">refused", ">failed", ">wait p95 s", ">TTFT p95 s", ">TPOT p95 ms")
    for of in lanes:
        times = [of["wait_p95_s"], of["ttft_p95_s"]]
        tpot = "-" if of["tpot_p95_s"] is None else f"{1000 * of['tpot_p95_s']:.0f}"
        counts = (str(of[word]) for word in ("finished", "refused", "failed"))
        table.add_row(of["lane"], *counts, *("-" if value is None else f"{value:.2f}" for value in times), tpot)
    return table


def _backends(backends: Sequence[Mapping[str, Any]]) -> Table:
    table = _table(
        "backend",
        "state",
        "models",
        ">in flight",
        ">prefill budget",
        "installments",
        ">engine waiting",
        ">KV cache",
        "probe",
    )
    for of in backends:
        budget = "-" if of["prefill_budget"] is None else str(of["prefill_budget"])
        table.add_row(
            of["name"],
            of["state"],
            ", ".join(model["name"] for model in of["models"]) or "-",
            f"{of['in_flight']}/{of['allowed']}",
            f"{of['prefill_tokens']}/{budget}",
            of["installments"] or "-",
            "-" if of["engine_waiting"] is None else f"{of['engine_waiting']:.0f}",
            "-" if of["engine_kv_usage"] is None else f"{of['engine_kv_usage']:.0%}",
            of["probe_error"] or "ok",
        )
    return table


def _tenants(tenants: Sequence[Mapping[str, Any]]) -> Table:
    table = _table(
        "tenant", ">waiting", ">prompt tokens", ">running", ">granted", ">granted tokens", ">rejected", ">dropped"
    )
    words = ("waiting_requests", "waiting_tokens", "running", "granted", "granted_tokens", "rejected", "dropped")
    for of in tenants:
        table.add_row(of["name"] or "-", *(str(of[word]) for word in words))
    return table


def _moves(moves: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("last limit moves", "backend", ">limit", "cause", ">in flight", ">TPOT ms")
    for of in moves:
        tpot = "-" if of["tpot_s"] is None else f"{1000 * of['tpot_s']:.0f}"
        limit = f"{of['before']} -> {of['after']}"
        table.add_row(of["at"], of["backend"], limit, of["cause"], str(of["in_flight"]), tpot)
    return table


def _rejections(rejections: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("last rejections", "lane", "reason", ">waited s", "detail")
    for of in rejections:
        waited = "-" if of["waited_s"] is None else f"{of['waited_s']:.2f}"
        table.add_row(of["at"], of["lane"] or "-", of["reason"] or of["outcome"], waited, of["detail"])
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left", overflow="fold")
    return table
