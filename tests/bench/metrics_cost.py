"""Adds `metrics_us_per_request` to lanewise's row: what the metrics of one finished request cost, measured alone."""

import json
import sys
import timeit
from pathlib import Path

from proxy.exchange import Exchange
from proxy.metrics import Metrics


def metrics_us_per_request(metrics: Metrics, exchange: Exchange, rounds: int = 20_000) -> float:
    """Median of five runs, microseconds per call of `Metrics.observe`."""
    runs = timeit.repeat(lambda: metrics.observe(exchange), repeat=5, number=rounds)
    return sorted(runs)[2] / rounds * 1e6
