"""The tables of the status page, each from its part of the status document."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from proxy.statuspage.cells import age, alarming, duration, number, of_limit, share, table, text, with_meaning
from proxy.statuspage.words import Say, meaning

_PRESET = "scheduling.preset"


def lanes(found: Iterable[Mapping[str, Any]], minute: Iterable[Mapping[str, Any]], say: Say, language: str) -> str:
    """Return what waits, and what became of requests in the last minute and since the start.

    Args:
        found: `lanes` of the status document.
        minute: `last_minute` of it.
        say: gives texts.
        language: of the meanings.
    """
    columns = (
        (say("lane"), False),
        (say("waiting"), True),
        (say("prompt_tokens"), True),
        (say("oldest"), True),
        (say("held_by"), False),
        (say("minute_finished"), True),
        (say("minute_refused"), True),
        (say("minute_failed"), True),
        (say("wait_p95"), True),
        (say("ttft_p95"), True),
        (say("tpot_p95"), True),
        (say("on_time"), True),
        (say("late"), True),
        (say("dropped"), True),
        (say("rejected"), True),
    )
    by_lane = {of["lane"]: of for of in minute}
    rows = []
    for of in found:
        last = by_lane.get(of["name"], {})
        held = of["head_blocked"]
        rows.append(
            (
                text(of["name"]),
                of_limit(of["waiting_requests"], of["limit_requests"]),
                of_limit(of["waiting_tokens"], of["limit_tokens"]),
                age(of["oldest_wait_s"]),
                "-" if held is None else with_meaning(held, meaning(language, held)),
                number(last.get("finished")),
                _worrying(last.get("refused")),
                _worrying(last.get("failed")),
                duration(last.get("wait_p95_s")),
                duration(last.get("ttft_p95_s")),
                duration(last.get("tpot_p95_s")),
                number(of["granted_on_time"]),
                number(of["granted_late"]),
                number(of["dropped"]),
                number(of["rejected"]),
            )
        )
    return table(columns, rows)


def backends(found: Iterable[Mapping[str, Any]], say: Say, language: str) -> str:
    """Return the engines: state, load, what they say of themselves."""
    columns = (
        (say("backend"), False),
        (say("state"), False),
        (say("models"), False),
        (say("in_flight"), True),
        (say("prefill_budget"), True),
        (say("installments"), False),
        (say("engine_waiting"), True),
        (say("kv"), True),
        (say("last_probe"), False),
        (say("last_fault"), False),
    )
    rows = [
        (
            text(of["name"]) + (f' <span class="quiet">vLLM {text(of["version"])}</span>' if of["version"] else ""),
            _state(of, say, language),
            text(", ".join(model["name"] for model in of["models"]) or "-"),
            of_limit(of["in_flight"], of["allowed"])
            + (f' <span class="quiet">{text(say("adaptive"))}</span>' if of["adaptive"] else ""),
            of_limit(of["prefill_tokens"], of["prefill_budget"]),
            _installments(of, say, language),
            number(of["engine_waiting"]),
            share(of["engine_kv_usage"]),
            alarming(of["probe_error"]) if of["probe_error"] else text(age(of["probe_age_s"])),
            text(of["last_fault"] or "-"),
        )
        for of in found
    ]
    return table(columns, rows)


def tenants(found: Iterable[Mapping[str, Any]], say: Say) -> str:
    """Return what each tenant waits for, runs and got."""
    words = ("waiting_requests", "waiting_tokens", "running", "granted", "granted_tokens", "rejected", "dropped")
    heads = ("waiting", "prompt_tokens", "running", "granted", "granted_tokens", "rejected", "dropped")
    columns = ((say("tenant"), False), *((say(head), True) for head in heads))
    return table(columns, [(text(of["name"] or None), *(number(of[word]) for word in words)) for of in found])


def on_paper(found: Iterable[Mapping[str, Any]], say: Say) -> str:
    """Return what would have been done with requests that were only observed."""
    words = ("send", "queue", "reject", "expire", "too_long", "invalid", "cap")
    columns = ((say("lane"), False), *((say(f"would_{word}"), True) for word in words))
    return table(columns, [(text(of["lane"]), *(number(of[word]) for word in words)) for of in found])


def moves(found: Sequence[Mapping[str, Any]], say: Say, language: str) -> str:
    """Return the last changes of the concurrency limits, and why they were made."""
    if not found:
        return _none(say)
    columns = (
        (say("at"), False),
        (say("backend"), False),
        (say("limit"), True),
        (say("cause"), False),
        (say("running"), True),
        ("TPOT", True),
    )
    rows = [
        (
            f"<time>{text(of['at'])}</time>",
            text(of["backend"]),
            f"{number(of['before'])} → {number(of['after'])}",
            with_meaning(of["cause"], meaning(language, of["cause"])),
            number(of["in_flight"]),
            "-" if of["tpot_s"] is None else f"{1000 * of['tpot_s']:.0f} ms",
        )
        for of in found
    ]
    return table(columns, rows)


def rejections(found: Sequence[Mapping[str, Any]], say: Say, language: str) -> str:
    """Return the last refusals, each with the way to what was decided then."""
    if not found:
        return _none(say)
    columns = (
        (say("at"), False),
        (say("lane"), False),
        (say("reason"), False),
        (say("waited"), True),
        (say("prompt_tokens"), True),
        (say("detail"), False),
        ("", False),
    )
    rows = [
        (
            f"<time>{text(of['at'])}</time>",
            text(of["lane"] or "-"),
            with_meaning(of["reason"] or of["outcome"], meaning(language, of["reason"] or of["outcome"])),
            duration(of["waited_s"]),
            number(of["prompt_tokens_estimated"]),
            text(of["detail"]),
            f'<a href="explain.json?id={text(quote(of["request_id"], safe=""))}">{text(say("explain"))}</a>',
        )
        for of in found
    ]
    return table(columns, rows)


def settings(values: Mapping[str, Any], why: Mapping[str, str], say: Say) -> str:
    """Return what differs from the defaults, with the reason that the operator wrote down."""
    if not values:
        return _none(say)
    columns = ((say("key"), False), (say("value"), False), (say("why"), False))
    rows = [
        (
            f"<code>{text(key)}</code>",
            f"<code>{text(_shown(value))}</code>",
            text(why[key]) if key in why else f'<span class="quiet">{text(say("no_why"))}</span>',
        )
        for key, value in values.items()
    ]
    return table(columns, rows)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _state(of: Mapping[str, Any], say: Say, language: str) -> str:
    meant = meaning(language, of["state"])
    shown = with_meaning(of["state"], meant) if of["up"] else alarming(of["state"]) + with_meaning("", meant)
    if of["held_back_s"]:
        shown += f' <span class="quiet">{text(say("held_back"))} {age(of["held_back_s"])}</span>'
    return shown


def _installments(of: Mapping[str, Any], say: Say, language: str) -> str:
    """Write the mode, and the mean share of what was sent before that the engine found again."""
    mode, found = of["installments"], of["installment_hit_ratio"]
    if mode is None:
        return "-"
    ratio = "" if found is None else f" · {share(found)} {text(say('found_again'))}"
    return with_meaning(mode, meaning(language, mode)) + ratio


def _worrying(count: float | None) -> str:
    return alarming(number(count)) if count else number(count)


def _none(say: Say) -> str:
    return f'<p class="quiet">{text(say("none"))}</p>'
