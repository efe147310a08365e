"""Two runs of one plan as one HTML file that is read without a network and without scripts. Pure but for the style."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from loadgen import charts
from loadgen.columns import Columns, Mask
from loadgen.document import document, figure, keys
from loadgen.headline import Check, Row
from loadgen.summarise import good
from loadgen.summary import Summary


@dataclass(frozen=True, slots=True)
class Side:
    """One run."""

    name: str
    chinese: str
    summary: Summary
    columns: Columns


@dataclass(frozen=True, slots=True)
class Page:
    """All that the page says."""

    title: str
    lead: str
    """One or two sentences under the title."""
    before: Side
    after: Side
    rows: Sequence[Row]
    checks: Sequence[Check]
    facts: Sequence[tuple[str, str]]
    """Conditions of the measurement: name and value."""
    notices: Sequence[str]
    """What a reader of the numbers has to know first."""
    remarks: Sequence[str]
    """What a careful reader wants to know too."""
    more: Sequence[Side] = ()
    """Further runs of the same plan, drawn in one more colour."""


def render(page: Page) -> str:
    """Return the HTML document."""
    parts = [
        f"<h1>{escape(page.title)}</h1><p>{escape(page.lead)}</p>",
        *(_check(check) for check in page.checks),
        _cards(page.rows),
        *(f'<p class="notice">{escape(notice)}</p>' for notice in page.notices),
        _heading("Before and after", "前后对比"),
        _table(page),
        _heading("Time to first token", "首字延迟"),
        keys((style, side.name) for style, side in _sides(page)),
        f'<div class="charts">{"".join(_latency_charts(page))}</div>',
        _heading("What became of every request", "请求结局"),
        keys(_ENDINGS),
        f'<figure class="bars">{_outcomes(page)}</figure>',
        _heading("Conditions", "条件"),
        _facts(page.facts),
        _remarks(page.remarks),
        f"<footer>{_FOOTER}</footer>",
    ]
    return document(page.title, parts, language="en")


_ENDINGS = (("good", "inside every SLO"), ("late", "complete, but late"), ("rejected", "rejected"), ("lost", "lost"))
_FOOTER = (
    "TTFT counts from the moment a request was due, queueing everywhere included. Latencies are over complete answers; "
    "goodput is over everything sent: complete, TTFT and TPOT inside the SLO. Written by lanewise-load."
)


def _heading(english: str, chinese: str) -> str:
    return f'<h2>{english}<span class="zh" lang="zh">{chinese}</span></h2>'


def _check(check: Check) -> str:
    return f'<p class="notice {"passed" if check.passed else "failed"}">{escape(check.sentence)}.</p>'


def _cards(rows: Sequence[Row]) -> str:
    chosen = [row for row in rows if row.name in {"TTFT, short, p99", "goodput, all"}]
    chosen += [row for row in rows if row.name.startswith("completed, long")]
    return f'<div class="cards">{"".join(map(_card, chosen))}</div>'


def _card(row: Row) -> str:
    return (
        f'<div class="card"><h3>{escape(row.name)}<span class="zh" lang="zh">{escape(row.chinese)}</span></h3>'
        f'<div class="figures"><span class="before-text">{escape(row.shown(row.before))}</span> → '
        f'<span class="after-text">{escape(row.shown(row.after))}</span></div>'
        f'<div class="soft">{escape(row.change)}</div></div>'
    )


def _table(page: Page) -> str:
    heads = "".join(
        f'<th class="{style}-text">{escape(side.name)}<br><span class="zh" lang="zh">{escape(side.chinese)}</span></th>'
        for style, side in _sides(page)
    )
    changes = "".join(
        f'<th class="{style}-text">Change<br><span class="zh" lang="zh">变化</span></th>'
        for style, _ in _sides(page)[1:]
    )
    head = f"<thead><tr><th></th>{heads}{changes}</tr></thead>"
    body, group = [], ""
    for row in page.rows:
        kind = row.name.partition(",")[0]
        body.append(_line(row, first=kind != group))
        group = kind
    return f'<div class="scroll"><table>{head}<tbody>{"".join(body)}</tbody></table></div>'


def _line(row: Row, *, first: bool) -> str:
    opening = '<tr class="group">' if first else "<tr>"
    name = f'<th>{escape(row.name)}<span class="zh" lang="zh">{escape(row.chinese)}</span></th>'
    cells = "".join(f"<td>{escape(row.shown(value))}</td>" for value in (row.before, row.after, *row.more))
    changes = "".join(
        f'<td class="{row.effect_of(value)}">{escape(row.change_to(value))}</td>' for value in (row.after, *row.more)
    )
    return f"{opening}{name}{cells}{changes}</tr>"


def _latency_charts(page: Page) -> Iterable[str]:
    slo = page.before.summary.slo
    for lane, limit in (("short", slo.ttft_short_s), ("long", slo.ttft_long_s)):
        curves = [_curve(style, side, lane) for style, side in _sides(page)]
        caption = "Share of all requests sent that had their first token within this time. What was lost is missing."
        drawn = charts.distribution(curves, limit, f"Distribution of TTFT, {lane} requests")
        yield figure(f"{lane.capitalize()} requests", caption, drawn)
    span = max(side.summary.window_s for _, side in _sides(page))
    for lane, limit in (("short", slo.ttft_short_s), ("long", slo.ttft_long_s)):
        runs = [_points(style, side, lane) for style, side in _sides(page)]
        caption = "Each dot is a request at the time it was due; a mark at the top is one without a first token."
        drawn = charts.timeline(runs, limit, span, f"TTFT over time, {lane} requests")
        yield figure(f"{lane.capitalize()} requests over time", caption, drawn)


def _sides(page: Page) -> list[tuple[str, Side]]:
    """Return every run with its style."""
    return [("before", page.before), ("after", page.after), *(("more", side) for side in page.more)]


def _lane(side: Side, lane: str) -> Mask:
    sent = ~side.columns.unsent
    return sent & (side.columns.short if lane == "short" else ~side.columns.short)


def _curve(style: str, side: Side, lane: str) -> charts.Curve:
    mask = _lane(side, lane)
    served = mask & side.columns.ok
    return charts.Curve(style, (side.columns.first - side.columns.due)[served].tolist(), int(mask.sum()))


def _points(style: str, side: Side, lane: str) -> charts.Points:
    columns, mask = side.columns, _lane(side, lane)
    has = mask & ~np.isnan(columns.first)
    points = zip(columns.due[has].tolist(), (columns.first - columns.due)[has].tolist(), strict=True)
    return charts.Points(style, list(points), columns.due[mask & np.isnan(columns.first)].tolist())


def _outcomes(page: Page) -> str:
    bars = []
    for lane in ("short", "long"):
        for _, side in _sides(page):
            mask = _lane(side, lane)
            well = good(side.columns, side.summary.slo) & mask
            complete = int((side.columns.ok & mask).sum())
            counts = side.summary.lanes[lane].outcomes
            parts = (
                ("good", int(well.sum()), "inside every SLO"),
                ("late", complete - int(well.sum()), "complete, but late"),
                ("rejected", counts["rejected"], "rejected"),
                ("missing", int(mask.sum()) - complete - counts["rejected"], "lost"),
            )
            bars.append(charts.Bar(f"{lane}, {side.name}", parts))
    return charts.stacked(bars, "Outcomes by lane, before and after")


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    lines = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts)
    return f'<div class="scroll"><table class="facts"><tbody>{lines}</tbody></table></div>'


def _remarks(remarks: Sequence[str]) -> str:
    if not remarks:
        return ""
    lines = "".join(f"<li>{escape(remark)}</li>" for remark in remarks)
    return f'{_heading("Read with care", "注意")}<ul class="soft">{lines}</ul>'
