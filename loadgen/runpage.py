"""One run, or two side by side, as one HTML file that needs neither network nor scripts. Pure but for the style."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from loadgen import charts
from loadgen.columns import Columns, Floats, Mask
from loadgen.compare import Comparison
from loadgen.document import document, figure, keys
from loadgen.report import certificate_line, metric_cells, rates_line, seconds, share, spread
from loadgen.runwords import Words
from loadgen.summarise import good
from loadgen.summary import LaneSummary, Quantiles, Summary

_STYLES = ("after", "before")
"""CSS classes: one run has the colour of what is new; of two, the first has that of before."""
LANES = ("short", "long")


@dataclass(frozen=True, slots=True)
class Shown:
    """One run on the page."""

    summary: Summary
    columns: Columns
    manifest: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunPage:
    """All that the page says."""

    runs: Sequence[Shown]
    """One, or before and after."""
    comparison: Comparison | None
    refused: str | None
    """Why two runs are not compared; None: they are, or there is one."""
    words: Words


def render(page: RunPage) -> str:
    """Return the HTML document."""
    say = page.words
    kind = say("comparison" if len(page.runs) > 1 else "run")
    title = f"{kind}: {' → '.join(shown.summary.label for shown in page.runs)}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        *(f"<p>{escape(_lead(shown, say))}</p>" for shown in page.runs),
        *_verdict(page),
        f"<h2>{say('latencies')}</h2>",
        *(_lanes(shown, say) for shown in page.runs),
        f"<h2>{say('cdf')}</h2>",
        keys((style, shown.summary.label) for style, shown in _styled(page)),
        f'<div class="charts">{"".join(_distributions(page))}</div>',
        f"<h2>{say('time')}</h2>",
        f'<div class="charts">{"".join(_timelines(page))}</div>',
        f"<h2>{say('outcomes')}</h2>",
        keys((key, say(key)) for key in ("good", "late", "rejected", "lost")),
        f'<figure class="bars">{_outcomes(page)}</figure>',
        f"<h2>{say('conditions')}</h2>",
        *(_conditions(shown, say) for shown in page.runs),
        *_warnings(page),
        f"<footer>{escape(say('footer'))}</footer>",
    ]
    return document(title, parts, language=say.language.value)


def _styled(page: RunPage) -> list[tuple[str, Shown]]:
    styles = _STYLES[: len(page.runs)][::-1]
    return list(zip(styles, page.runs, strict=True))


def _lead(shown: Shown, say: Words) -> str:
    summary = shown.summary
    return say(
        "lead",
        sent=summary.lanes["all"].sent,
        window=_decimal(summary.window_s),
        rate=_decimal(summary.asked_rate),
        target=shown.manifest.get("target", "-"),
        model=shown.manifest.get("model", "-"),
    )


def _decimal(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1f}"


def _verdict(page: RunPage) -> Iterable[str]:
    say = page.words
    if page.refused is not None:
        yield f'<p class="notice failed">{escape(say("refused", why=page.refused))}</p>'
    if page.comparison is None:
        return
    verdict = page.comparison.verdict.value
    passed = "failed" if verdict == "roll back" else "passed"
    text = say("verdict", verdict=say(verdict), why=page.comparison.why)
    yield f'<p class="notice {passed}">{escape(text)}</p>'
    for sentence in (*page.comparison.conditions_differ, *page.comparison.notes, *map(str, page.comparison.changes)):
        yield f'<p class="notice">{escape(sentence)}</p>'
    heads = ("", say("before"), say("after"), say("difference"), say("interval"), "")
    rows = [[*cells[:-1], say(cells[-1])] for cells in map(metric_cells, page.comparison.metrics)]
    yield f"<h2>{say('metrics')}</h2>{_table(heads, rows)}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(
        f"<tr><th>{escape(name)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        for name, *cells in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


_OF: tuple[tuple[str, Callable[[LaneSummary], Quantiles]], ...] = (
    ("ttft", lambda lane: lane.ttft),
    ("ttft_all", lambda lane: lane.ttft_all),
    ("ttft_send", lambda lane: lane.ttft_send),
    ("ttfot", lambda lane: lane.ttfot),
    ("tpot", lambda lane: lane.tpot),
    ("icl", lambda lane: lane.icl),
    ("e2e", lambda lane: lane.e2e),
    ("reject", lambda lane: lane.reject),
)


def _lanes(shown: Shown, say: Words) -> str:
    lanes = [lane for lane in shown.summary.lanes.values() if lane.sent or lane.unsent or lane.lane == "all"]
    rows = [
        [say("sent"), *(str(lane.sent) for lane in lanes)],
        *([[say("unsent"), *(str(lane.unsent) for lane in lanes)]] if any(lane.unsent for lane in lanes) else []),
        *(
            [name, *(str(lane.outcomes[name]) for lane in lanes)]
            for name in lanes[-1].outcomes
            if any(lane.outcomes[name] for lane in lanes)
        ),
        [say("goodput"), *(share(lane.goodput) for lane in lanes)],
    ]
    for key, of in _OF:
        found = [of(lane) for lane in lanes]
        if any(value.known for value in found):
            rows.append([say(key), *map(spread, found)])
    rows.append([say("stall"), *(seconds(lane.icl.max) for lane in lanes)])
    return _table([shown.summary.label, *(say(lane.lane) for lane in lanes)], rows)


def _mask(shown: Shown, lane: str) -> Mask:
    of = {"short": shown.columns.short, "long": ~shown.columns.short, "all": np.ones_like(shown.columns.short)}
    return np.asarray(of[lane] & ~shown.columns.unsent)


def _distributions(page: RunPage) -> Iterable[str]:
    say, slo = page.words, page.runs[0].summary.slo
    wanted = [(say("cdf_ttft", lane=say(lane)), lane, limit, _ttft) for lane, limit in _limits(page)]
    for title, lane, limit, values in (*wanted, (say("cdf_tpot"), "all", slo.tpot_s, _tpot)):
        curves = []
        for style, shown in _styled(page):
            mask = _mask(shown, lane)
            had = values(shown.columns)[mask & shown.columns.ok]
            curves.append(charts.Curve(style, had[~np.isnan(had)].tolist(), max(1, int(mask.sum()))))
        yield figure(title, say("cdf_caption"), charts.distribution(curves, limit, title))


def _timelines(page: RunPage) -> Iterable[str]:
    say = page.words
    span = max((shown.summary.window_s for shown in page.runs if shown.summary.window_s > 0), default=1.0)
    for lane, limit in _limits(page):
        title = say("cdf_ttft", lane=say(lane))
        runs = [_points(style, shown, lane) for style, shown in _styled(page)]
        yield figure(title, say("time_caption"), charts.timeline(runs, limit, span, title))


def _limits(page: RunPage) -> list[tuple[str, float]]:
    """Return the lanes that have requests, with the limit of their TTFT."""
    slo = page.runs[0].summary.slo
    limits = {"short": slo.ttft_short_s, "long": slo.ttft_long_s}
    used = [lane for lane in LANES if any(shown.summary.lanes[lane].sent for shown in page.runs)]
    return [(lane, limits[lane]) for lane in used]


def _ttft(columns: Columns) -> Floats:
    return columns.first - columns.due


def _tpot(columns: Columns) -> Floats:
    return columns.tpot


def _points(style: str, shown: Shown, lane: str) -> charts.Points:
    columns, mask = shown.columns, _mask(shown, lane)
    has = mask & ~np.isnan(columns.first)
    points = zip(columns.due[has].tolist(), _ttft(columns)[has].tolist(), strict=True)
    return charts.Points(style, list(points), columns.due[mask & np.isnan(columns.first)].tolist())


def _outcomes(page: RunPage) -> str:
    say, bars = page.words, []
    for lane, _ in _limits(page):
        for _, shown in _styled(page):
            mask = _mask(shown, lane)
            well = int((good(shown.columns, shown.summary.slo) & mask).sum())
            complete = int((shown.columns.ok & mask).sum())
            refused = shown.summary.lanes[lane].outcomes["rejected"]
            lost = int(mask.sum()) - complete - refused
            counts = (("good", well), ("late", complete - well), ("rejected", refused), ("lost", lost))
            label = f"{say(lane)}, {shown.summary.label}" if len(page.runs) > 1 else say(lane)
            parts = [("missing" if key == "lost" else key, count, say(key)) for key, count in counts]
            bars.append(charts.Bar(label, parts))
    return charts.stacked(bars, say("outcomes"))


def _conditions(shown: Shown, say: Words) -> str:
    manifest = shown.manifest
    plan, engine = manifest.get("plan"), manifest.get("engine")
    told = manifest.get("parameters")
    parameters = told if isinstance(told, dict) else {}
    facts = [
        (say("plan"), f"{shown.summary.plan_hash}, {_get(plan, 'requests')}"),
        (say("target"), str(manifest.get("target", "-"))),
        (say("model"), str(manifest.get("model", "-"))),
        (say("engine"), str(_get(engine, "version"))),
        (say("started"), str(manifest.get("started_at", "-"))),
        (say("parameters"), ", ".join(f"{name}={value}" for name, value in parameters.items())),
        (say("rates"), rates_line(shown.summary)),
        (say("certificate"), certificate_line(manifest.get("certificate"))),
    ]
    lines = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts if value)
    return f'<div class="scroll"><table class="facts"><tbody>{lines}</tbody></table></div>'


def _get(document: Any, key: str) -> Any:
    return document.get(key, "-") if isinstance(document, dict) else "-"


def _warnings(page: RunPage) -> Iterable[str]:
    lines = [
        f"<li>{escape(shown.summary.label)}: {escape(caution.message)}</li>"
        for shown in page.runs
        for caution in shown.summary.warnings
    ]
    if lines:
        yield f'<h2>{page.words("warnings")}</h2><ul class="soft">{"".join(lines)}</ul>'
