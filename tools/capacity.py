"""Writes the figures of `make bench` into docs/capacity.md and docs/capacity.zh.md.

    python tools/capacity.py [runs/bench/latest.json]

A stage that was void for one proxy is a dash; what was measured for none is left out.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("docs/capacity.md", "docs/capacity.zh.md")
EVENTS_PER_S = 20
"""Tokens a second that one stream is reckoned with: a decode step of 50 ms."""
COLUMNS = ("nginx", "aiohttp_naive", "lanewise")
ROWS: tuple[tuple[str, str, str], ...] = (
    ("added latency, p50 / 额外延迟 p50", "added_p50_us", "µs"),
    ("added latency, p99 / 额外延迟 p99", "added_p99_us", "µs"),
    ("CPU for 1,000 requests of 2 KB / 每千个 2 KB 请求的 CPU", "cpu_s_per_1k_requests", "s"),
    ("requests/s on one core / 单核每秒请求", "requests_per_s", ""),
    ("CPU for 1,000 requests of 100 KB / 每千个 100 KB 请求的 CPU", "cpu_s_per_1k_requests_100kb", "s"),
    ("CPU for a million events, 1,000 streams / 每百万事件的 CPU (1000 条流)", "cpu_s_per_1m_events_20k", "s"),
    ("CPU for a million events, 200 streams / 每百万事件的 CPU (200 条流)", "cpu_s_per_1m_events_4k", "s"),
    ("delay of an event added, p99, 1,000 streams / 事件额外延迟 p99 (1000 条流)", "delay_p99_added_ms_1000", "ms"),
    ("memory for an open stream / 每条打开的流的内存", "kb_per_stream_5000", "KB"),
    ("memory idle / 空闲内存", "idle_pss_mb", "MB"),
    ("upstream ends after the client left / 客户端离开后上游结束", "cancel_s", "s"),
)


def table(results: list[dict[str, Any]]) -> str:
    """Return the figures as a Markdown table: one row a measure, one column a proxy.

    Args:
        results: the rows of `runs/bench/latest.json`.
    """
    found = {row["proxy"]: row for row in results}
    names = [name for name in COLUMNS if name in found]
    lines = ["| measure / 指标 | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for title, key, unit in ROWS:
        if all(found[name].get(key) is None for name in names):
            continue
        values = [shown(found[name].get(key), unit) for name in names]
        lines.append(f"| {title} | " + " | ".join(values) + " |")
    streams = [streams_on_one_core(found[name]) for name in names]
    title = f"streams of {EVENTS_PER_S} events/s that fill one core / 占满单核的流数 (每秒 {EVENTS_PER_S} 个事件)"
    return "\n".join([*lines, f"| {title} | " + " | ".join(streams) + " |"])


def shown(value: float | None, unit: str) -> str:
    """Return a figure with three significant digits and its unit; a dash where nothing was measured."""
    if value is None:
        return "-"
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{text} {unit}".rstrip()


def streams_on_one_core(row: dict[str, Any]) -> str:
    """Return how many streams take a whole core, from the CPU that events cost; a dash where nothing was measured."""
    cost = row.get("cpu_s_per_1m_events_20k") or row.get("cpu_s_per_1m_events_4k")
    return "-" if not cost else f"{1e6 / cost / EVENTS_PER_S:,.0f}"


def filled(page: str, figures: str) -> str:
    """Return a page with the figures between its two marks.

    Raises:
        ValueError: the page has no such marks.
    """
    between = re.compile(r"(<!-- bench -->\n).*?(\n<!-- /bench -->)", re.DOTALL)
    made, count = between.subn(lambda marks: marks[1] + figures + marks[2], page)
    if count != 1:
        raise ValueError("the page has to have one pair of marks: <!-- bench --> and <!-- /bench -->")
    return made


def main(arguments: list[str]) -> int:
    """Fill both pages."""
    source = Path(arguments[0]) if arguments else ROOT / "runs/bench/latest.json"
    if not source.is_file():
        sys.stderr.write(f"{source}: no such file; `make bench` writes it\n")
        return 2
    figures = table(json.loads(source.read_text()))
    for name in PAGES:
        page = ROOT / name
        page.write_text(filled(page.read_text(), figures))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
