"""Short requests beside long ones: direct, through lanewise, and with installments; three seeds, and the verdict."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.engine.drive import Mix, Pass, drive, fresh_prompt
from tests.engine.server import NAME, Engine
from tests.faults import wire
from tests.faults.station import Station, eventually, start

SEEDS: Final = (11, 12, 13)
DIRECT, LANES, PARTS_512, PARTS_1024 = "direct", "lanes", "installments 512", "installments 1024"
WAYS: Final = (DIRECT, LANES, PARTS_512, PARTS_1024)

FOR_THIS_ENGINE: Final[dict[str, Any]] = {
    "probes": {"interval": "1s", "timeout": "5s", "scrape_metrics": True},
    "timeouts": {"header": "20s", "body": "30s", "idle_stream": "120s"},
    "scheduling": {
        # Nothing is shed: every way serves the same 120 requests, so that their times can be compared.
        "drop_factor": "never",
        # One request alone: 4096 tokens in 1.5 s, one token in about 10 ms.
        "prefill_time_per_token": "350us",
        "step_time": "10ms",
        # What --max-num-seqs says. A step that holds a chunk of a long prompt takes 0.4 s here, four times the
        # default promise of 100 ms a token, so concurrency that follows it would only fall to its floor.
        "concurrency": 32,
        "adaptive": {"enabled": False},
    },
}
"""What an operator of such an engine would write; docs/real-engine.md gives the reasons."""


def configuration(way: str) -> dict[str, Any]:
    """Return the proxy's configuration for one way."""
    if way == LANES:
        return FOR_THIS_ENGINE | {"installments": {"mode": "off"}}
    tokens = int(way.rpartition(" ")[2])
    # Parts of 512 last 0.15 s here, and need no pause between them; docs/installments.md.
    pause = 0.0 if tokens == 512 else 0.25
    return FOR_THIS_ENGINE | {"installments": {"mode": "auto", "part_tokens": tokens, "pause": pause}}


async def one_pass(engine: Engine, way: str, seed: int, mix: Mix) -> dict[str, Any]:
    """Drive one way with one seed; return the pass, and what the proxy counted, as one row."""
    if way == DIRECT:
        return {"way": way, "seed": seed} | (await drive(engine.url, engine, mix, seed)).as_json()
    backend = {"url": engine.url, "name": "engine", "max_num_seqs": 32}
    async with start(configuration(way), backends=[backend]) as proxy:
        await warmed_up(proxy)
        passed: Pass = await drive(f"http://{wire.HOST}:{proxy.port}", engine, mix, seed)
        counted = {
            outcome: await proxy.total("installments_total", f'outcome="{outcome}"')
            for outcome in ("first", "hit", "miss", "unknown", "failed", "aborted")
        }
        recomputed = await proxy.total("installment_recomputed_tokens_total")
    return {"way": way, "seed": seed, "parts": counted, "recomputed": recomputed} | passed.as_json()


async def warmed_up(proxy: Station, api_key: str | None = None) -> None:
    """Wait until the proxy knows its engine, and send one request through it.

    Raises:
        AssertionError: the engine did not come up, or did not answer.
    """
    ready = await eventually(lambda: proxy.page("/readyz"), lambda page: page.answer.status == 200, 30.0)
    assert ready.answer.status == 200, proxy.log
    document = {"model": NAME, "prompt": fresh_prompt(64), "max_tokens": 4}
    headers = () if api_key is None else (f"Authorization: Bearer {api_key}",)
    told = await wire.ask(proxy.port, wire.request(document, path="/v1/completions", headers=headers), 60.0)
    assert told.answer.status == 200, told.answer.body


def percentile(values: list[float], share: float) -> float:
    """Nearest rank: the smallest value that at least that share of all does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def pooled(rows: list[dict[str, Any]], way: str) -> dict[str, Any] | None:
    """Summarise one way over its seeds, in seconds; None where it was not driven."""
    mine = [row for row in rows if row["way"] == way]
    if not mine:
        return None
    short = [one for row in mine for one in row["seen"] if one["lane"] == "short"]
    long = [one for row in mine for one in row["seen"] if one["lane"] == "long"]
    ttft = [one["ttft"] for one in short if one["ttft"] is not None]
    return {
        "requests": len(short) + len(long),
        "failed": sum(one["error"] is not None for one in short + long),
        "short_ttft": [percentile(ttft, share) for share in (0.5, 0.9, 0.99)],
        "short_ttft_p99_by_seed": {
            str(row["seed"]): percentile(
                [one["ttft"] for one in row["seen"] if one["lane"] == "short" and one["ttft"]], 0.99
            )
            for row in mine
        },
        "short_worst_gap_p99": percentile([one["worst_gap"] for one in short], 0.99),
        "long_ttft_p50": statistics.median(one["ttft"] for one in long if one["ttft"] is not None),
        "long_e2e_p50": percentile([one["e2e"] for one in long], 0.5),
        "long_e2e_p99": percentile([one["e2e"] for one in long], 0.99),
        "late_p99": percentile([one["late"] for one in short + long], 0.99),
        "needed_tokens": sum(row["needed_tokens"] for row in mine),
        "computed_tokens": sum(row["computed_tokens"] for row in mine),
        "waiting_most": max(row["waiting_most"] for row in mine),
        "parts": {name: sum(row["parts"][name] for row in mine) for name in mine[0].get("parts", {})},
    }


@dataclass(frozen=True)
class Target:
    """One thing that has to hold, pooled over the seeds."""

    name: str
    limit: float
    value: Callable[[dict[str, dict[str, Any]]], float]


def _p99(ways: dict[str, dict[str, Any]], way: str) -> float:
    return float(ways[way]["short_ttft"][2])


def targets() -> list[Target]:
    """Return what has to hold; each value at most its limit."""
    found = [
        Target("lanes: short TTFT p99 / direct", 0.6, lambda ways: _p99(ways, LANES) / _p99(ways, DIRECT)),
        Target(
            "lanes: long end-to-end p50 / direct",
            1.05,
            lambda ways: ways[LANES]["long_e2e_p50"] / ways[DIRECT]["long_e2e_p50"],
        ),
    ]
    found += [
        Target(f"{PARTS_512}: short TTFT p99 / direct", 0.25, lambda ways: _p99(ways, PARTS_512) / _p99(ways, DIRECT)),
        Target(
            f"{PARTS_512}: long end-to-end p50 / direct",
            1.05,
            lambda ways: ways[PARTS_512]["long_e2e_p50"] / ways[DIRECT]["long_e2e_p50"],
        ),
    ]
    for parts in (PARTS_512, PARTS_1024):
        found += [
            Target(
                f"{parts}: short TTFT p99 / lanes", 0.4, lambda ways, way=parts: _p99(ways, way) / _p99(ways, LANES)
            ),
            Target(
                f"{parts}: prompt tokens computed / needed",
                1.0,
                lambda ways, way=parts: ways[way]["computed_tokens"] / ways[way]["needed_tokens"],
            ),
            Target(f"{parts}: requests that failed", 0.0, lambda ways, way=parts: ways[way]["failed"]),
        ]
    return found


def judged(ways: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return every target whose ways were driven, with what was measured."""
    verdicts = []
    for target in targets():
        try:
            value = target.value(ways)
        except KeyError:
            continue
        verdicts.append({"target": target.name, "limit": target.limit, "value": value, "met": value <= target.limit})
    return verdicts
