"""The study's tables for people and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table as Grid

from loadgen.sim.trials import Figures, Study
from loadgen.tables import Case, Table
from loadgen.tables_run import Line, Span


def columns(table: Table) -> int:
    """Return how many columns of a terminal a table needs so that no figure is cut."""
    return 36 + 16 * (len(table.cases) + 1) if table.layout == "cases" else 0


def document(name: str, table: Table, lines: Sequence[Line], study: Study, span: Span) -> dict[str, Any]:
    """Return a table as one JSON object: its rows, each with its cases and their mean."""
    return {
        "table": name,
        "title": table.title,
        "engine": study.engine.name,
        "backends": table.backends,
        "windows": span.windows,
        "rows_per_window": span.rows,
        "seed": span.seed,
        "saturated_per_s": {workload: study.saturated_per_s(workload) for workload, _ in table.cases},
        "averaged": [list(case) for case in table.averaged],
        "rows": [_line(line) for line in lines],
    }


def _line(line: Line) -> dict[str, Any]:
    cases = [
        {"workload": workload, "load": round(load * line.row.load_factor, 6), **asdict(figures)}
        for (workload, load), figures in line.cells.items()
    ]
    return {
        "row": line.row.name,
        "policy": line.row.trial.policy,
        "mean": None if line.mean is None else asdict(line.mean),
        "cases": cases,
    }


def _windows(span: Span) -> str:
    return "One window" if span.windows == 1 else f"Mean of {span.windows} windows"


def show(console: Console, table: Table, lines: Sequence[Line], study: Study, span: Span) -> None:
    """Print a table with the loads and windows that it stands on."""
    rates = {workload: study.saturated_per_s(workload) * table.backends for workload, _ in table.cases}
    console.print(f"[bold]{table.title}[/bold]", highlight=False)
    console.print(
        f"Engine {study.engine.name}, backends: {table.backends}. 1.0x is "
        + ", ".join(f"{workload} {rate:.2f}" for workload, rate in rates.items())
        + f" requests/s. {_windows(span)} of {span.rows} requests, seed {span.seed}.",
        highlight=False,
    )
    if table.layout == "means":
        console.print(f"Mean of {', '.join(map(_case, table.averaged))}.", highlight=False)
        console.print(_means(lines))
    elif table.layout == "tenants":
        console.print(f"Load: {', '.join(map(_case, table.cases))}.", highlight=False)
        console.print(_tenants(lines))
    else:
        console.print(_by_case("Goodput", table, lines, lambda figures: f"{figures.goodput:.3f}"))
        console.print(_by_case("p99 TTFT of served short / long requests, s", table, lines, _tails))
        console.print(_by_case("Lost, % of short / long requests", table, lines, _losses))
        console.print(_by_case("Completed requests/s", table, lines, lambda figures: f"{figures.completed_per_s:.2f}"))


def _case(case: Case) -> str:
    return f"{case[0]} {case[1]:g}x"


def _grid(title: str, *columns: str) -> Grid:
    grid = Grid(title=title or None, title_justify="left", box=SIMPLE)
    grid.add_column("", overflow="fold")
    for column in columns:
        grid.add_column(column, justify="right", no_wrap=True)
    return grid


def _by_case(title: str, table: Table, lines: Sequence[Line], cell: Any) -> Grid:
    averaged = bool(table.averaged) and len(table.averaged) > 1
    grid = _grid(title, *map(_case, table.cases), *([f"mean of {len(table.averaged)}"] if averaged else []))
    for line in lines:
        means = [] if not averaged else ["-" if line.mean is None else cell(line.mean)]
        grid.add_row(line.row.name, *(cell(figures) for figures in line.cells.values()), *means)
    return grid


def _means(lines: Sequence[Line]) -> Grid:
    grid = _grid(
        "", "goodput", "short p99", "long p99", "TPOT p99", "short lost", "long lost", "completed/s", "attempts"
    )
    for line in lines:
        figures = line.mean
        if figures is not None:
            grid.add_row(
                line.row.name,
                f"{figures.goodput:.3f}",
                _seconds(figures.short_ttft_p99_s),
                _seconds(figures.long_ttft_p99_s),
                "-" if figures.tpot_p99_s is None else f"{figures.tpot_p99_s:.3f}",
                _percent(figures.short_lost),
                _percent(figures.long_lost),
                f"{figures.completed_per_s:.2f}",
                f"{figures.attempts:.2f}",
            )
    return grid


def _tenants(lines: Sequence[Line]) -> Grid:
    grid = _grid("Goodput", "the others", "the one", "all", "short p99 s", "completed/s")
    for line in lines:
        for figures in line.cells.values():
            apart = figures.others_goodput is not None
            grid.add_row(
                line.row.name,
                f"{figures.others_goodput:.3f}" if apart else f"{figures.goodput:.3f}",
                f"{figures.abuser_goodput:.3f}" if apart else "-",
                f"{figures.goodput:.3f}",
                _seconds(figures.short_ttft_p99_s),
                f"{figures.completed_per_s:.2f}",
            )
    return grid


def _tails(figures: Figures) -> str:
    return f"{_seconds(figures.short_ttft_p99_s)} / {_seconds(figures.long_ttft_p99_s)}"


def _losses(figures: Figures) -> str:
    return f"{_percent(figures.short_lost)} / {_percent(figures.long_lost)}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}" if value < 9.95 else f"{value:.0f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"
