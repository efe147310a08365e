"""Recording rules: what alerts and the first row of dashboards read."""

from collections.abc import Iterator

from tools.prometheus.nouns import Objectives, Recording

WINDOWS = ("5m", "30m", "1h", "6h", "3d")
BY = "by (lane, experiment)"
LANES = 'lane=~"short|long"'
FAULTS = "backend_error|backend_timeout|truncated"
CLIENTS_OWN = "invalid|too_long|client_gone"


def recordings(objectives: Objectives) -> Iterator[Recording]:
    """Yield every recording rule."""
    yield from _quantiles()
    for window in WINDOWS:
        yield _rejections(window)
        yield from _ttft_errors(window, objectives)
        yield _availability_errors(window)
    yield _goodput("5m")


def _quantiles() -> Iterator[Recording]:
    for name, metric in (
        ("ttft", "lanewise_time_to_first_token_seconds"),
        ("tpot", "lanewise_time_per_output_token_seconds"),
        ("queue_wait", "lanewise_queue_wait_seconds"),
    ):
        for share, word in ((0.95, "p95"), (0.99, "p99")):
            yield Recording(
                record=f"lane:lanewise_{name}_seconds:{word}_5m",
                expr=f"histogram_quantile({share}, sum by (le, lane, experiment) (rate({metric}_bucket[5m])))",
            )


def _rejections(window: str) -> Recording:
    return Recording(
        record=f"lane:lanewise_rejections:ratio_rate{window}",
        expr=f'sum {BY} (rate(lanewise_requests_total{{outcome=~"rejected|expired"}}[{window}]))'
        f" / (sum {BY} (rate(lanewise_requests_total[{window}])) > 0)",
    )


def _ttft_errors(window: str, objectives: Objectives) -> Iterator[Recording]:
    metric = "lanewise_time_to_first_token_seconds"
    parts = [
        f'1 - sum {BY} (rate({metric}_bucket{{lane="{lane}", le="{bound}"}}[{window}]))'
        f' / (sum {BY} (rate({metric}_count{{lane="{lane}"}}[{window}])) > 0)'
        for lane, bound in objectives.ttft_bounds.items()
    ]
    yield Recording(record=f"lane:lanewise_slo_ttft_errors:ratio_rate{window}", expr="\nor\n".join(parts))


def _availability_errors(window: str) -> Recording:
    """A request that no backend was there for failed too, although it was refused in good order."""
    return Recording(
        record=f"lane:lanewise_slo_availability_errors:ratio_rate{window}",
        expr=f'(sum {BY} (rate(lanewise_requests_total{{{LANES}, outcome=~"{FAULTS}"}}[{window}]))'
        f' + sum {BY} (rate(lanewise_rejections_total{{{LANES}, reason="no_backend"}}[{window}])))'
        f' / (sum {BY} (rate(lanewise_requests_total{{{LANES}, outcome!~"{CLIENTS_OWN}"}}[{window}])) > 0)',
    )


def _goodput(window: str) -> Recording:
    return Recording(
        record=f"lane:lanewise_goodput:ratio_rate{window}",
        expr=f"sum {BY} (rate(lanewise_slo_good_total[{window}]))"
        f' / (sum {BY} (rate(lanewise_requests_total{{{LANES}, outcome!~"{CLIENTS_OWN}"}}[{window}])) > 0)',
    )
