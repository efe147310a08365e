"""What a scrape costs the streams: gaps between chunks of concurrent streams, with scrapes and without, in turn.

`python -m tools.acceptance.scrape`: real processes, lanewise with about as many series as its budget allows, fifty
windows with one scrape each, paired with fifty without. Exits with 3 when scrapes add 10 ms or more to the p99 gap.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import aiohttp
import numpy as np
import yaml

from loadgen.children import Child, answers, free_address

ALLOWED_S = 0.010
SCRAPED_AS = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"}
"""As Prometheus asks."""
_READY_S = 30.0
_WARM_UP_S = 1.0
_DEAD = 3
"""Backends that nobody serves: they have series all the same."""


@dataclass(slots=True)
class Seen:
    """What the streams saw: arrival of each chunk, and its gap to the one before it in its stream; seconds."""

    at: list[float]
    gap: list[float]

    def between(self, start: float, end: float) -> list[float]:
        """Return the gaps of the chunks that arrived within a window."""
        return self.gap[bisect_left(self.at, start) : bisect_right(self.at, end)]


def configuration(engine: str, listen: str, admin: str, streams: int) -> dict[str, Any]:
    """Return what the proxy is told: four backends, three models, four tenants."""
    dead = [{"url": f"http://127.0.0.1:{port}", "name": f"card-{port}"} for port in range(1, 1 + _DEAD)]
    return {
        "listen": listen,
        "admin": admin,
        "backends": [{"url": f"http://{engine}", "name": "card-0"}, *dead],
        "metrics": {"models": ["a", "b", "c"]},
        "tenants": {"by": "key", "named": [{"name": f"team-{n}", "keys": [f"{n:064x}"]} for n in range(4)]},
        "scheduling": {"concurrency": 2 * streams, "drop_factor": "never", "adaptive": {"enabled": False}},
    }


async def _stream(session: aiohttp.ClientSession, url: str, seen: Seen) -> None:
    """Read one stream after the other until cancelled."""
    body = {"model": "a", "prompt": [1] * 20, "max_tokens": 400, "ignore_eos": True, "stream": True}
    while True:
        async with session.post(f"{url}/v1/completions", json=body) as answer:
            answer.raise_for_status()
            last = None
            async for _chunk in answer.content.iter_any():
                now = perf_counter()
                if last is not None:
                    seen.at.append(now)
                    seen.gap.append(now - last)
                last = now


async def _measure(asked: argparse.Namespace, listen: str, admin: str) -> dict[str, Any]:
    seen = Seen([], [])
    gaps: dict[bool, list[float]] = {True: [], False: []}
    took, series = [], 0
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        streams = [asyncio.ensure_future(_stream(session, f"http://{listen}", seen)) for _ in range(asked.streams)]
        await asyncio.sleep(_WARM_UP_S)
        for turn in range(2 * asked.pairs):
            start = perf_counter()
            scraped = turn % 2 == (turn // 2) % 2  # which comes first alternates too
            if scraped:
                async with session.get(f"http://{admin}/metrics", headers=SCRAPED_AS) as answer:
                    text = await answer.text()
                took.append(perf_counter() - start)
                series = sum(not line.startswith("#") for line in text.splitlines())
            await asyncio.sleep(max(0.0, asked.window - (perf_counter() - start)))
            gaps[scraped] += seen.between(start, perf_counter())
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
    with_scrape, without = (float(np.percentile(gaps[scraped], 99)) for scraped in (True, False))
    return {
        "series": series,
        "streams": asked.streams,
        "scrapes": len(took),
        "scrape_median_s": float(np.median(took)),
        "gaps": {"with": len(gaps[True]), "without": len(gaps[False])},
        "gap_p99_s": {"with": with_scrape, "without": without},
        "added_s": with_scrape - without,
        "passed": with_scrape - without < ALLOWED_S,
    }


def measured(asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Start engine and proxy, measure, stop them."""
    engine, listen, admin = (free_address() for _ in range(3))
    file = folder / "lanewise.yaml"
    file.write_text(yaml.safe_dump(configuration(engine, listen, admin, asked.streams)))
    serve = ["sim", "serve", "--listen", engine, "--model", "a"]
    with Child("the simulated engine", "loadgen", serve, folder / "engine.log") as simulated:
        simulated.wait_until(lambda: answers(f"http://{engine}/health"), _READY_S, "get ready")
        with Child("lanewise", "proxy", ["serve", "--config", str(file)], folder / "lanewise.log") as proxy:
            proxy.wait_until(lambda: answers(f"http://{admin}/readyz"), _READY_S, "get ready")
            return asyncio.run(_measure(asked, listen, admin))


def main(arguments: list[str] | None = None) -> int:
    """Run the check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=50, help="windows with a scrape, and without (default: 50)")
    parser.add_argument("--streams", type=int, default=32, help="concurrent streams (default: 32)")
    parser.add_argument("--window", type=float, default=0.5, help="length of a window, seconds (default: 0.5)")
    parser.add_argument("--json", action="store_true", help="print one document")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        result = measured(asked, Path(folder))
    if asked.json:
        print(json.dumps(result, indent=1))
    else:
        p99 = {name: f"{1000 * value:.1f} ms" for name, value in result["gap_p99_s"].items()}
        print(
            f"{result['series']} series, {result['streams']} streams: p99 gap {p99['with']} with a scrape, "
            f"{p99['without']} without: {1000 * result['added_s']:+.1f} ms"
        )
    return 0 if result["passed"] else 3


if __name__ == "__main__":
    sys.exit(main())
