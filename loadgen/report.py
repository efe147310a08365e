"""Text tables for people, from pure results. No computing beyond formatting."""

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import IO, Any

from rich.console import Console
from rich.table import Table

from loadgen.compare import Comparison, Metric
from loadgen.options import Progress
from loadgen.summary import LaneSummary, Quantiles, Summary
from loadgen.telemetry.tell import telemetry_lines


def console(file: IO[str] | None = None, *, stderr: bool = False) -> Console:
    """Return a console that honours NO_COLOR and is wide enough for a table when there is no terminal."""
    made = Console(file=file, stderr=stderr, highlight=False)
    if not made.is_terminal:
        made.width = 120
    return made


def seconds(value: float) -> str:
    """Write a duration with the unit that fits: 812 ms, 1.53 s, inf, or - for none."""
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "inf"
    if abs(value) < 0.1:
        return f"{value * 1e3:.1f} ms"
    return f"{value * 1e3:.0f} ms" if abs(value) < 1 else f"{value:.2f} s"


def share(value: float) -> str:
    """Write a share of one."""
    return "-" if math.isnan(value) else f"{value:z.3f}"


def rate(value: float) -> str:
    """Write a rate per second."""
    return "-" if math.isnan(value) else f"{value:.2f}/s"


def print_summary(summary: Summary, out: Console) -> None:
    """Print one run: latencies by lane, outcomes, rates, and every warning."""
    table = Table(title=f"{summary.label}  (plan {summary.plan_hash})", title_justify="left")
    table.add_column("")
    lanes = [lane for lane in summary.lanes.values() if lane.sent or lane.unsent or lane.lane == "all"]
    for lane in lanes:
        table.add_column(lane.lane, justify="right")
    for label, cells in _rows(lanes):
        table.add_row(label, *cells)
    out.print(table)
    out.print(rates_line(summary))
    if said := certificate_line(summary.notes.get("certificate")):
        out.print(said)
    for line in telemetry_lines(summary.notes.get("telemetry")):
        out.print(line)
    for caution in summary.warnings:
        out.print(f"! {caution.message}", style="yellow")


def rates_line(summary: Summary) -> str:
    """Write the rates over the steady window, and beside them what only the drain completed."""
    drained = f"{summary.drained} more answers ended in" if summary.drained else "no answer ended in"
    return (
        f"asked {rate(summary.asked_rate)}, sent {rate(summary.sent_rate)}, completed {rate(summary.completed_rate)}, "
        f"{tokens(summary.output_token_rate)} over the steady window of {summary.window_s:.1f} s; {drained} the drain "
        f"of {summary.drain_s:.1f} s and are in no rate; lag p99 {seconds(summary.lag.p99)}"
    )


def certificate_line(certificate: Any) -> str:
    """Write what the generator measured of itself before the run; empty where the manifest says nothing of it."""
    if not isinstance(certificate, dict):
        return ""
    if why := certificate.get("skipped"):
        return f"the generator's own error was not measured ({why})"
    mean, p99 = float(certificate["ttft_error_mean_s"]), float(certificate["ttft_error_p99_s"])
    reading = float(certificate.get("endpoint_read_mean_s", 0.0))
    return (
        f"the generator's own TTFT error: mean {milliseconds(mean)} (in which the endpoint read the request for "
        f"{milliseconds(reading)}), p99 {milliseconds(p99)}, of "
        f"{certificate['requests']} requests at {certificate['requests_per_s']:.0f}/s and "
        f"{certificate['chunks_per_s']:.0f} chunks/s, up to {certificate['most_in_flight']} at once"
    )


def milliseconds(value: float) -> str:
    """Write a small duration, with two digits after the point."""
    return f"{value * 1e3:.2f} ms"


def tokens(per_s: float) -> str:
    """Write a rate of tokens."""
    return "- tokens/s" if math.isnan(per_s) else f"{per_s:.0f} tokens/s"


def _rows(lanes: list[LaneSummary]) -> Iterable[tuple[str, list[str]]]:
    yield "requests sent", [str(lane.sent) for lane in lanes]
    if any(lane.unsent for lane in lanes):
        yield "planned, not sent", [str(lane.unsent) for lane in lanes]
    yield "ok / rejected / failed", [_counts(lane) for lane in lanes]
    yield "goodput", [share(lane.goodput) for lane in lanes]
    shown: list[tuple[str, list[Quantiles]]] = [
        ("TTFT", [lane.ttft for lane in lanes]),
        ("TTFT, failures inf", [lane.ttft_all for lane in lanes]),
        ("TTFT from the send", [lane.ttft_send for lane in lanes]),
        ("first answer token", [lane.ttfot for lane in lanes]),
        ("TPOT", [lane.tpot for lane in lanes]),
        ("chunk gap", [lane.icl for lane in lanes]),
        ("end to end", [lane.e2e for lane in lanes]),
        ("rejection", [lane.reject for lane in lanes]),
    ]
    for label, values in shown:
        if any(value.known for value in values):
            yield f"{label}  p50 / p90 / p99", [spread(value) for value in values]
    yield "longest chunk gap", [seconds(lane.icl.max) for lane in lanes]


def spread(value: Quantiles) -> str:
    """Write p50, p90 and p99."""
    return " / ".join(seconds(part) for part in (value.p50, value.p90, value.p99))


def _counts(lane: LaneSummary) -> str:
    ok, rejected = lane.outcomes["ok"], lane.outcomes["rejected"]
    return f"{ok} / {rejected} / {sum(lane.outcomes.values()) - ok - rejected}"


def print_comparison(comparison: Comparison, out: Console) -> None:
    """Print two runs side by side, what changed between them, and the verdict."""
    table = Table(title=f"{comparison.label_a}  →  {comparison.label_b}", title_justify="left")
    for column in ("", "A", "B", "B - A", "95 % interval", ""):
        table.add_column(column, justify="left" if column == "" else "right")
    for metric, following in pairwise((*comparison.metrics, None)):
        if metric is not None:
            last = following is not None and metric.in_verdict and not following.in_verdict
            table.add_row(*metric_cells(metric), end_section=last)
    out.print(table)
    for change in comparison.changes:
        follows = "" if change.counts else ", which follows from the rest"
        out.print(f"changed ({change.kind}{follows}): {change}")
    for sentence in (*comparison.conditions_differ, *comparison.notes):
        out.print(f"! {sentence}", style="yellow")
    out.print(f"verdict: {comparison.verdict}. {comparison.why}", style="bold")


def metric_cells(metric: Metric) -> list[str]:
    """Write one line of a comparison: name, A, B, B - A, interval, effect."""
    write = {"s": seconds, "share": share, "count": _count, "rate": rate, "MB": _megabytes}[metric.unit]
    interval = "" if metric.low is None or metric.high is None else f"{write(metric.low)} … {write(metric.high)}"
    return [metric.name, write(metric.a), write(metric.b), write(metric.b - metric.a), interval, metric.effect]


def _megabytes(value: float) -> str:
    return f"{value:.0f} MB"


def _count(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.0f}"


def progress_line(progress: Progress) -> str:
    """Write how far a replay is, in one line."""
    state = "draining" if progress.draining else "sending"
    span = "" if progress.span_s is None or progress.draining else f" of {progress.span_s:.0f}"
    return (
        f"{state} {progress.sent}/{progress.planned}, at {progress.elapsed_s:.0f}{span} s, "
        f"in flight {progress.in_flight}, ok {progress.ok}, rejected {progress.rejected}, failed {progress.failed}, "
        f"lag p99 {seconds(progress.lag_p99_s)}{_pace(progress)}"
    )


def _pace(progress: Progress) -> str:
    """Rates of the plan and of what was sent so far, and what is left: where there is a plan in time, and it lasts."""
    if progress.draining or not progress.span_s or progress.elapsed_s <= 0:
        return ""
    due = progress.planned / progress.span_s * progress.elapsed_s if progress.due is None else progress.due
    planned, reached = due / progress.elapsed_s, progress.sent / progress.elapsed_s
    left = max(0.0, progress.span_s - progress.elapsed_s)
    return f", planned {rate(planned)}, sent {rate(reached)}, {left:.0f} s to go"
