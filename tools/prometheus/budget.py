"""Alerts on error budgets, over two windows each: the long one says that it matters, the short one that it goes on.

Factors and windows are those of the multiwindow, multi-burn-rate recipe of Google's SRE workbook: 14.4 times the
budget over an hour is 2 % of a month's budget, 6 times over six hours 5 %, once over three days 10 %.
"""

from collections.abc import Callable, Iterator

from tools.prometheus.nouns import Alert, Case, Fired, Objectives, Said

_STEPS = (("1h", "5m", 14.4, "page"), ("6h", "30m", 6.0, "page"), ("3d", "6h", 1.0, "ticket"))
_HOPELESS = 90.0
"""Per cent of errors in the case that fires everything."""
_PER_MINUTE = 2000
_Series = Callable[[float], dict[str, str]]
"""From per cent of errors to series."""


def budget_alerts(objectives: Objectives) -> Iterator[Alert]:
    """Yield the alerts of both budgets: time to first token, and availability."""
    ttft, available = objectives.ttft, objectives.availability
    yield from _burns(
        "LanewiseTTFTBudgetBurn",
        "slo_ttft_errors",
        ttft,
        Said(
            en=f"In lane {{{{ $labels.lane }}}} {{{{ $value | humanizePercentage }}}} of first tokens come late; "
            f"{1 - ttft:.0%} may",
            zh=f"{{{{ $labels.lane }}}} 通道有 {{{{ $value | humanizePercentage }}}} 的首 token 超时,允许值为 "
            f"{1 - ttft:.0%}",
        ),
        _ttft_series,
    )
    yield from _burns(
        "LanewiseAvailabilityBudgetBurn",
        "slo_availability_errors",
        available,
        Said(
            en=f"In lane {{{{ $labels.lane }}}} {{{{ $value | humanizePercentage }}}} of requests fail; "
            f"{1 - available:.0%} may",
            zh=f"{{{{ $labels.lane }}}} 通道有 {{{{ $value | humanizePercentage }}}} 的请求失败,允许值为 "
            f"{1 - available:.0%}",
        ),
        _availability_series,
    )


def _burns(name: str, ratio: str, objective: float, summary: Said, series: _Series) -> Iterator[Alert]:
    for at, (long, short, factor, severity) in enumerate(_STEPS):
        bound = round(factor * (1 - objective), 6)
        if bound >= 1:
            continue  # an error ratio cannot exceed 1: the alert could never fire
        yield Alert(
            name=name,
            expr=f"lane:lanewise_{ratio}:ratio_rate{long} > {bound:g} and lane:lanewise_{ratio}:ratio_rate{short} > "
            f"{bound:g}",
            severity=severity,
            window=long,
            summary=summary,
            description=Said(
                en=f"At {factor:g} times the rate that the objective of {objective:.0%} allows, over the last {long} "
                f"and "
                f"still over the last {short}.",
                zh=f"在最近 {long} 以及最近 {short} 内,错误预算的消耗速度均超过目标 {objective:.0%} 所允许的 "
                f"{factor:g} 倍。",
            ),
            cases=_cases(objective, series) if at == 0 else (),
        )


def _cases(objective: float, series: _Series) -> tuple[Case, ...]:
    budget = 100 * (1 - objective)

    def fired(share: float, *windows: str) -> tuple[Fired, ...]:
        return tuple(Fired(labels={"lane": "short"}, value=f"{share:.4g}%", window=window) for window in windows)

    pages = tuple(long for long, _, factor, _ in _STEPS if factor * budget < _HOPELESS)
    return (
        Case(
            name="nine in ten",
            series=series(_HOPELESS),
            at="80m",
            interval="1m",
            fired=fired(_HOPELESS, *pages),
        ),
        Case(
            name="three times what is allowed",
            series=series(3 * budget),
            at="80m",
            interval="1m",
            fired=fired(3 * budget, "3d"),
        ),
        Case(name="half of what is allowed", series=series(budget / 2), at="80m", interval="1m"),
    )


def _ttft_series(late: float) -> dict[str, str]:
    metric = "lanewise_time_to_first_token_seconds"
    return {
        f'{metric}_bucket{{lane="short", le="1.0"}}': f"0+{_PER_MINUTE - _of(late)}x90",
        f'{metric}_count{{lane="short"}}': f"0+{_PER_MINUTE}x90",
    }


def _availability_series(failed: float) -> dict[str, str]:
    return {
        'lanewise_requests_total{lane="short", outcome="ok"}': f"0+{_PER_MINUTE - _of(failed)}x90",
        'lanewise_requests_total{lane="short", outcome="backend_error"}': f"0+{_of(failed)}x90",
        'lanewise_rejections_total{lane="short", reason="no_backend"}': "0x90",
    }


def _of(percent: float) -> int:
    return round(_PER_MINUTE * percent / 100)
