"""Adds `metrics_us_per_request` to lanewise's row: what the metrics of one finished request cost, measured alone."""

import json
import sys
import timeit
from pathlib import Path

from proxy.exchange import Exchange, Usage
from proxy.metrics.requests import RequestMetrics
from proxy.policy.outcome import Outcome
from proxy.settings import Settings
from proxy.wire.facts import Endpoint, Facts

ROUNDS = 20_000


def finished_request():
    """A streamed request that went well: the one that moves the most series."""
    return Exchange(
        "id",
        100.0,
        1.7e9,
        endpoint=Endpoint.CHAT,
        facts=Facts(Endpoint.CHAT, model="m", stream=True),
        lane="short",
        prompt_tokens_estimated=110,
        offered=100.001,
        granted=100.2,
        backend="b",
        attempts=1,
        sent=100.201,
        first_token=100.5,
        last_token=101.3,
        answered=101.4,
        usage=Usage(prompt_tokens=100, cached_tokens=64, completion_tokens=10),
        finish_reason="stop",
        status=200,
        outcome=Outcome.OK,
        ended=101.401,
    )


def metrics_us_per_request():
    """Median of five runs, microseconds per call."""
    settings = Settings.model_validate({"backends": [{"url": "http://127.0.0.1:1", "name": "b", "models": ["m"]}]})
    metrics, exchange = RequestMetrics(settings), finished_request()
    runs = timeit.repeat(lambda: metrics.observe(exchange), repeat=5, number=ROUNDS)
    return sorted(runs)[2] / ROUNDS * 1e6


if __name__ == "__main__":
    rows = json.loads(Path(sys.argv[1]).read_text())
    for row in rows:
        row["metrics_us_per_request"] = metrics_us_per_request() if row["proxy"] == "lanewise" else None
    json.dump(rows, sys.stdout, indent=1)
