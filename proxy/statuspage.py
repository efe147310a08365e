"""The status document as a plain HTML page: tables, no script, nothing loaded from anywhere."""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any
from urllib.parse import quote

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.45 system-ui, "WenQuanYi Zen Hei", sans-serif; }
body { margin: 1.5rem auto; max-width: 76rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 1.8rem; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid color-mix(in srgb, currentColor 20%, transparent); padding: .3rem .6rem; }
th { text-align: left; font-weight: 600; word-break: keep-all; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
.full { color: #c62828; font-weight: 600; } .quiet { opacity: .65; }
@media (prefers-color-scheme: dark) { .full { color: #ff8a80; } }
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()

CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Nothing may run, load or frame; the one style sheet is named by its hash."""


def page(status: Mapping[str, Any]) -> str:
    """Write the page.

    Args:
        status: the document of `Status.document`.
    """
    state = "ready" if status["ready"] else f"not ready: {status['reason']}"
    head = (
        f"<p>{_text(state) if status['ready'] else _full(state)} · version {_text(status['version'])} · configuration "
        f"<code>{_text(status['config'])}</code> · preset {_text(status['preset'])} · mode {_text(status['mode'])} · "
        f"up {_age(status['uptime_s'])}</p>"
    )
    parts = (
        head,
        _reload(status["reload"]),
        "<h2>Lanes 车道</h2>",
        _lanes(status["lanes"]),
        "<h2>Backends 后端</h2>",
        _backends(status["backends"]),
        *(("<h2>Tenants 租户</h2>", _tenants(status["tenants"])) if status["tenants"] else ()),
        *(("<h2>On paper 纸上推演</h2>", _on_paper(status["would"])) if status["would"] else ()),
        "<h2>Last limit moves 并发上限变动</h2>",
        _moves(status["limit_moves"]),
        "<h2>Last rejections 最近拒绝</h2>",
        _rejections(status["rejections"]),
        '<p class="quiet">The same as JSON: <a href="status.json">status.json</a> · <a href="metrics">metrics</a></p>',
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>lanewise</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><h1>lanewise</h1>{''.join(parts)}</body></html>"
    )


def _reload(reload: Mapping[str, Any]) -> str:
    """Say which configuration this is, and what is doubtful about it or kept it from being changed."""
    judged = f", judged {_text(reload['verdict'])}" if reload["verdict"] else ""
    told = f"Generation {reload['generation']} since {_text(reload['since'])}{judged}."
    if not reload["succeeded"]:
        told += f" {_full('The last change was not made')} ({_text(reload['tried_at'])})."
    said = "".join(f"<li>{_text(sentence)}</li>" for sentence in reload["said"])
    return f"<p>{told}</p>" + (f"<ul>{said}</ul>" if said else "")


def _on_paper(lanes: Iterable[Mapping[str, Any]]) -> str:
    columns = (
        ("Lane 车道", False),
        ("Sent at once 直发", True),
        ("Queued 排队", True),
        ("Rejected 拒绝", True),
        ("Expired 超时", True),
        ("Too long 过长", True),
        ("Invalid 无效", True),
        ("Capped 截短", True),
    )
    words = ("send", "queue", "reject", "expire", "too_long", "invalid", "cap")
    return _table(columns, [(_text(of["lane"]), *(_number(of[word]) for word in words)) for of in lanes])


def _tenants(tenants: Iterable[Mapping[str, Any]]) -> str:
    columns = (
        ("Tenant 租户", False),
        ("Waiting 排队", True),
        ("Prompt tokens 词元", True),
        ("Running 运行", True),
        ("Granted 放行", True),
        ("Granted tokens 放行词元", True),
        ("Rejected 拒绝", True),
    )
    words = ("waiting_requests", "waiting_tokens", "running", "granted", "granted_tokens", "rejected")
    return _table(columns, [(_text(of["name"] or None), *(_number(of[word]) for word in words)) for of in tenants])


def _lanes(lanes: Iterable[Mapping[str, Any]]) -> str:
    columns = (
        ("Lane 车道", False),
        ("Waiting 排队", True),
        ("Prompt tokens 词元", True),
        ("Oldest 最久", True),
        ("Next is held by 受阻", False),
        ("On time 准时", True),
        ("Late 迟到", True),
        ("Dropped 丢弃", True),
        ("Rejected 拒绝", True),
    )
    rows = [
        (
            _text(of["name"]),
            _of_limit(of["waiting_requests"], of["limit_requests"]),
            _of_limit(of["waiting_tokens"], of["limit_tokens"]),
            _age(of["oldest_wait_s"]),
            _text(of["head_blocked"] or "-"),
            _number(of["granted_on_time"]),
            _number(of["granted_late"]),
            _number(of["dropped"]),
            _number(of["rejected"]),
        )
        for of in lanes
    ]
    return _table(columns, rows)


def _backends(backends: Iterable[Mapping[str, Any]]) -> str:
    columns = (
        ("Backend 后端", False),
        ("State 状态", False),
        ("Models 模型", False),
        ("In flight 在途", True),
        ("Prefill budget 预填充", True),
        ("Installments 分段", False),
        ("Engine waiting 引擎排队", True),
        ("KV cache", True),
        ("Last probe 探测", False),
    )
    rows = [
        (
            _text(of["name"]),
            _text(of["state"]) if of["up"] else _full(of["state"]),
            _text(", ".join(model["name"] for model in of["models"]) or "-"),
            _of_limit(of["in_flight"], of["allowed"]),
            _of_limit(of["prefill_tokens"], of["prefill_budget"]),
            _installments(of),
            _number(of["engine_waiting"]),
            "-" if of["engine_kv_usage"] is None else f"{of['engine_kv_usage']:.0%}",
            _text(of["probe_error"] or _age(of["probe_age_s"])),
        )
        for of in backends
    ]
    return _table(columns, rows)


def _moves(moves: Sequence[Mapping[str, Any]]) -> str:
    if not moves:
        return '<p class="quiet">None. 无</p>'
    columns = (
        ("At 时间", False),
        ("Backend 后端", False),
        ("Limit 上限", True),
        ("Cause 原因", False),
        ("In flight 在途", True),
        ("TPOT", True),
    )
    rows = [
        (
            _text(of["at"]),
            _text(of["backend"]),
            f"{_number(of['before'])} → {_number(of['after'])}",
            _text(of["cause"]),
            _number(of["in_flight"]),
            "-" if of["tpot_s"] is None else f"{1000 * of['tpot_s']:.0f} ms",
        )
        for of in moves
    ]
    return _table(columns, rows)


def _explained(at: str, request_id: str) -> str:
    """Lead from a moment to what was decided then."""
    return f'<a href="explain.json?id={_text(quote(request_id, safe=""))}">{_text(at)}</a>'


def _rejections(rejections: Sequence[Mapping[str, Any]]) -> str:
    if not rejections:
        return '<p class="quiet">None. 无</p>'
    columns = (
        ("At 时间", False),
        ("Lane 车道", False),
        ("Reason 原因", False),
        ("Waited 等待", True),
        ("Prompt tokens 词元", True),
        ("Detail 说明", False),
    )
    rows = [
        (
            _explained(of["at"], of["request_id"]),
            _text(of["lane"] or "-"),
            _text(of["reason"] or of["outcome"]),
            _age(of["waited_s"]),
            _number(of["prompt_tokens_estimated"]),
            _text(of["detail"]),
        )
        for of in rejections
    ]
    return _table(columns, rows)


def _installments(of: Mapping[str, Any]) -> str:
    """Write the mode, and the mean share of what was sent before that the engine found again."""
    found = of["installment_hit_ratio"]
    return _text(of["installments"] or "-") + ("" if found is None else f" · {found:.0%}")


def _table(columns: Sequence[tuple[str, bool]], rows: Iterable[Sequence[str]]) -> str:
    marks = [' class="n"' if numeric else "" for _, numeric in columns]
    head = "".join(f"<th{mark}>{_text(name)}</th>" for (name, _), mark in zip(columns, marks, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td{mark}>{cell}</td>' for cell, mark in zip(row, marks, strict=True))}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _of_limit(value: float, limit: float | None) -> str:
    if limit is None:
        return _number(value)
    text = f"{_number(value)} / {_number(limit)}"
    return f'<span class="full">{text}</span>' if value >= limit else text


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _full(value: Any) -> str:
    return f'<span class="full">{_text(value)}</span>'


def _text(value: Any) -> str:
    return escape(str(value))
