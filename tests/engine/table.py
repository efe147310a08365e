"""The result of the head-of-line experiment as Markdown, between two marks of docs/real-engine.md."""

import re
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- measured: begin (make test-engine writes this) -->", "<!-- measured: end -->"

COLUMNS = (
    "way",
    "short TTFT p50 / p90 / p99",
    "p99 of each seed",
    "short worst gap p99",
    "long TTFT p50",
    "long end-to-end p50 / p99",
    "most waiting in the engine",
    "client late p99",
    "prompt tokens computed / needed",
    "failed",
)


def write_table(page: Path, result: dict[str, Any]) -> None:
    """Put the tables of a result between the marks of a page.

    Raises:
        ValueError: the page has no such marks.
    """
    text = page.read_text("utf-8")
    marks = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    if not marks.search(text):
        raise ValueError(f"{page} has no place for the measured tables")
    page.write_text(marks.sub(lambda _: f"{BEGIN}\n{tables(result)}\n{END}", text), "utf-8")


def tables(result: dict[str, Any]) -> str:
    """Return what was measured and whether it is enough."""
    machine = result["machine"]
    seeds = ", ".join(str(seed) for seed in result["seeds"])
    where = f"vLLM {machine['vllm']} on {machine['cpu']}, {machine['cores']} cores, {machine['dtype']}"
    lines = [
        f"{result['date']}, {where}; seeds {seeds}, pooled. Milliseconds.",
        "",
        _line(*COLUMNS),
        _rule(len(COLUMNS)),
    ]
    lines += [_row(way, summary) for way, summary in result["ways"].items()]
    lines += ["", _line("target", "at most", "measured", ""), _rule(4)]
    for one in result["targets"]:
        met = "met" if one["met"] else "**missed**"
        lines.append(_line(one["target"], f"{one['limit']:g}", f"{one['value']:.3g}", met))
    return "\n".join(lines)


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _rule(columns: int) -> str:
    return "|" + "---|" * columns


def _row(way: str, summary: dict[str, Any]) -> str:
    return _line(
        way,
        " / ".join(_ms(value) for value in summary["short_ttft"]),
        " / ".join(_ms(value) for value in summary["short_ttft_p99_by_seed"].values()),
        _ms(summary["short_worst_gap_p99"]),
        _ms(summary["long_ttft_p50"]),
        f"{_ms(summary['long_e2e_p50'])} / {_ms(summary['long_e2e_p99'])}",
        f"{summary['waiting_most']:.0f}",
        _ms(summary["late_p99"]),
        f"{summary['computed_tokens']:,.0f} / {summary['needed_tokens']:,.0f}",
        str(summary["failed"]),
    )


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.0f}"
