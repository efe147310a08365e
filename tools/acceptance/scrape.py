"""What a scrape costs the streams: gaps between chunks of concurrent streams, with scrapes and without, in turn.

`python -m tools.acceptance.scrape`: real processes, lanewise with about as many series as its budget allows, fifty
windows with one scrape each, paired with fifty without. Each pair says by how much the p99 gap of its scraped window is
longer; what a scrape adds is the median of the pairs, which no burst of other work on the machine decides.

Exit codes: 0 less than 10 ms are added; 3 they are not; 4 the machine is too busy to say: the interval of the median
holds 10 ms.
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
_RESAMPLES = 2000
_DONE, _FAILED, _UNDECIDED = 0, 3, 4
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
    windows: list[tuple[bool, float, float]] = []
    took, text = [], b""
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        streams = [asyncio.ensure_future(_stream(session, f"http://{listen}", seen)) for _ in range(asked.streams)]
        await asyncio.sleep(_WARM_UP_S)
        for turn in range(2 * asked.pairs):
            start = perf_counter()
            scraped = turn % 2 == (turn // 2) % 2  # which comes first alternates too
            if scraped:
                async with session.get(f"http://{admin}/metrics", headers=SCRAPED_AS) as answer:
                    text = await answer.read()  # nothing more is done with it here: that would be a gap of ours
                took.append(perf_counter() - start)
            await asyncio.sleep(max(0.0, asked.window - (perf_counter() - start)))
            windows.append((scraped, start, perf_counter()))
        for stream in streams:
            if stream.done():
                stream.result()  # it ended before its time, and says why
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
    return {
        "series": sum(not line.startswith(b"#") for line in text.splitlines()),
        "streams": asked.streams,
        "scrapes": len(took),
        "scrape_median_s": float(np.median(took)),
        **judged(seen, windows),
    }


def judged(seen: Seen, windows: list[tuple[bool, float, float]]) -> dict[str, Any]:
    """Compare windows with and without a scrape, which come in pairs of one each.

    Args:
        seen: what the streams saw.
        windows: whether there was a scrape, beginning and end.

    Raises:
        ValueError: a window in which nothing arrived.
    """
    gaps = {
        scraped: [seen.between(start, end) for was, start, end in windows if was is scraped]
        for scraped in (True, False)
    }
    if not all(map(all, gaps.values())):
        raise ValueError("nothing arrived in one of the windows: the streams stood still")
    p99 = {scraped: np.array([np.percentile(window, 99) for window in each]) for scraped, each in gaps.items()}
    added = p99[True] - p99[False]
    drawn = np.random.default_rng(0).choice(added, (_RESAMPLES, len(added)))
    low, high = (float(bound) for bound in np.percentile(np.median(drawn, axis=1), (2.5, 97.5)))
    median = float(np.median(added))
    return {
        "gaps": {"with": sum(map(len, gaps[True])), "without": sum(map(len, gaps[False]))},
        "gap_p99_s": {"with": float(np.median(p99[True])), "without": float(np.median(p99[False]))},
        "added_s": median,
        "added_interval_s": [low, high],
        "passed": median < ALLOWED_S,
        "decided": not low <= ALLOWED_S <= high,
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
            f"{p99['without']} without; a scrape adds {1000 * result['added_s']:+.1f} ms "
            f"({', '.join(f'{1000 * bound:+.1f}' for bound in result['added_interval_s'])})"
        )
    if not result["decided"]:
        return _UNDECIDED
    return _DONE if result["passed"] else _FAILED


if __name__ == "__main__":
    sys.exit(main())
