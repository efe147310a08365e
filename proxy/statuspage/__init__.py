"""The status document as an HTML page: tables that stand without a script, and charts where one may run.

Nothing comes from another host: style, script and the chart library are files of this package (`assets`).
"""

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from proxy.statuspage import tables
from proxy.statuspage.cells import age, alarming, text
from proxy.statuspage.words import LANGUAGES, Say, say

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
"""Only files of the admin listener may run, style or load, and nothing that stands inside the page itself."""

ASSETS = {
    "status.css": "text/css",
    "status.js": "text/javascript",
    "icon.svg": "image/svg+xml",
    "uPlot.min.css": "text/css",
    "uPlot.iife.min.js": "text/javascript",
}
"""Files beside the page, and their types."""

REFRESH_S = 5.0
"""How often a page with a script looks again; without one, twice that."""

_NAMES = {"en": "English", "zh": "中文"}

_CHARTS = (
    ("chart_ttft", "s", (("ttft_p95_s_short", "series_short"), ("ttft_p95_s_long", "series_long"))),
    ("chart_waiting", "", (("waiting_short", "series_short"), ("waiting_long", "series_long"))),
    (
        "chart_running",
        "",
        (("in_flight", "series_running"), ("allowed", "series_cap"), ("engine_waiting", "series_engine")),
    ),
    ("chart_finished", "/s", (("finished_short_per_s", "series_short"), ("finished_long_per_s", "series_long"))),
    (
        "chart_refused",
        "/s",
        (
            ("refused_short_per_s", "series_refused_short"),
            ("refused_long_per_s", "series_refused_long"),
            ("failed_short_per_s", "series_failed_short"),
            ("failed_long_per_s", "series_failed_long"),
        ),
    ),
    ("chart_kv", "%", (("kv_usage", "series_kv"),)),
)
"""Title, unit, and which series of `/history.json` it draws under which name."""


def asset(name: str) -> bytes:
    """Return a file of `ASSETS`.

    Raises:
        KeyError: there is none of that name.
    """
    if name not in ASSETS:
        raise KeyError(name)
    return files(__name__).joinpath("assets", name).read_bytes()


def page(status: Mapping[str, Any], language: str = LANGUAGES[0], refresh_s: float = REFRESH_S) -> str:
    """Write the page.

    Args:
        status: the document of `Status.document`.
        language: one of `LANGUAGES`.
        refresh_s: how often a page with a script looks again.
    """
    speak = say(language)
    return (
        f'<!doctype html><html lang="{language}" data-refresh-ms="{1000 * refresh_s:.0f}"><head><meta charset="utf-8">'
        f"<title>{text(speak('title'))}</title>"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<noscript><meta http-equiv="refresh" content="{max(1, round(2 * refresh_s))}"></noscript>'
        '<link rel="icon" href="assets/icon.svg" type="image/svg+xml">'
        '<link rel="stylesheet" href="assets/uPlot.min.css"><link rel="stylesheet" href="assets/status.css">'
        '<script src="assets/uPlot.iife.min.js" defer></script><script src="assets/status.js" defer></script>'
        f"</head><body><header><h1>lanewise</h1><nav>{_languages(language)}</nav></header>"
        f'<p id="stale" class="full" hidden>{text(speak("stale"))}</p>'
        f'<div id="now">{_now(status, speak)}</div>{_charts(speak)}'
        f'<div id="tables">{_tables(status, speak, language)}</div>'
        f'<footer class="quiet">{text(speak("same_as_json"))}: <a href="status.json">status.json</a> · '
        '<a href="history.json">history.json</a> · <a href="config.json">config.json</a> · '
        '<a href="metrics">metrics</a></footer></body></html>'
    )


def _languages(language: str) -> str:
    return " · ".join(
        f"<strong>{name}</strong>" if code == language else f'<a href="?lang={code}" hreflang="{code}">{name}</a>'
        for code, name in _NAMES.items()
    )


def _now(status: Mapping[str, Any], say: Say) -> str:
    """Say whether it serves, with which configuration, and what is doubtful about that one."""
    reload = status["reload"]
    if status["ready"]:
        state = f'<span class="badge good">{text(say("ready"))}</span>'
    else:
        state = f'<span class="badge bad">{text(say("not_ready"))}: {text(status["reason"])}</span>'
    facts = (
        (say("version"), text(status["version"])),
        (say("up_for"), age(status["uptime_s"])),
        (say("mode"), text(status["mode"])),
        (say("preset"), text(status["preset"])),
        *(((say("experiment"), text(status["experiment"])),) if status["experiment"] else ()),
        (say("configuration"), f"<code>{text(status['config'])}</code>"),
        (say("generation"), text(reload["generation"])),
        (say("since"), text(reload["since"])),
        *(((say("judged"), text(reload["verdict"])),) if reload["verdict"] else ()),
        *(((say("sharing"), _sharing(sharing)),) if (sharing := status.get("sharing")) else ()),
    )
    listed = "".join(f"<div><dt>{text(name)}</dt><dd>{value}</dd></div>" for name, value in facts)
    told = f"<p>{state}</p><dl>{listed}</dl>"
    if not reload["succeeded"]:
        told += f"<p>{alarming(say('reload_failed'))} ({text(reload['tried_at'])})</p>"
    if reload["changed"]:
        keys = "".join(f"<li><code>{text(change)}</code></li>" for change in reload["changed"])
        told += f'<p>{text(say("changed"))}</p><ul class="quiet">{keys}</ul>'
    said = "".join(f"<li>{text(sentence)}</li>" for sentence in reload["said"])
    return told + (f"<ul>{said}</ul>" if said else "")


def _sharing(sharing: Mapping[str, Any]) -> str:
    """Say what this proxy takes of limits that others share, and mark a store that is lost."""
    if sharing["by"] == "share":
        return text(sharing["share"])
    if sharing["state"] != "degraded":
        return text(f"{sharing['state']}, {sharing['proxies']} x")
    words = f"{sharing['state']}, {sharing['share']}"
    return f"{alarming(words)} {text(sharing['error'])}"


def _charts(say: Say) -> str:
    """Leave room for the charts, and say to the script what is to be drawn: it has no words of its own."""
    figures = "".join(
        f'<figure data-unit="{unit}" data-series="{",".join(name for name, _ in drawn)}" '
        f'data-labels="{text("|".join(say(label) for _, label in drawn))}">'
        f"<figcaption>{text(say(title))}</figcaption></figure>"
        for title, unit, drawn in _CHARTS
    )
    return (
        f'<section id="charts" data-time="{text(say("time"))}" hidden><h2>{text(say("last_15"))}</h2>'
        f'<div class="grid">{figures}</div></section>'
        f'<noscript><p class="quiet">{text(say("no_script"))} <a href="history.json">history.json</a>.</p></noscript>'
    )


def _tables(status: Mapping[str, Any], say: Say, language: str) -> str:
    parts = [
        ("lanes", tables.lanes(status["lanes"], status["last_minute"], say, language)),
        ("backends", tables.backends(status["backends"], say, language)),
    ]
    if status["tenants"]:
        parts.append(("tenants", tables.tenants(status["tenants"], say)))
    if status["would"]:
        parts.append(("on_paper", tables.on_paper(status["would"], say)))
    parts += [
        ("rejections", tables.rejections(status["rejections"], say, language)),
        ("moves", tables.moves(status["limit_moves"], say, language)),
        ("settings", tables.settings(status["settings"], status["why"], say)),
    ]
    return "".join(f"<h2>{text(say(title))}</h2>{body}" for title, body in parts)
