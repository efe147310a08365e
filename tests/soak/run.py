"""One soak: start everything, make traffic and trouble for a while, let it settle, and count."""

import asyncio
import itertools
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.faults.bodies import RECORDED
from tests.faults.rules import Rule
from tests.faults.station import ROOT, Options, Station, eventually, start
from tests.soak.engines import Simulated, liar
from tests.soak.traffic import Count, Traffic
from tests.soak.watch import Sample, Watch, lag, slope_mb_per_10_min, waited_s

INJECT = Path(__file__).resolve().parent / "inject"
CONFIG: dict[str, Any] = {
    **RECORDED,
    "probes": {"interval": "1s", "timeout": "1s", "scrape_metrics": True},
    "scheduling": {"concurrency": 48, "drop_factor": 5},
    "lanes": {name: {"first_byte_timeout": "10s"} for name in ("short", "long")},
}
SATURATED_WITH = 64
"""Clients that ask one after the other while the rate is found that the machine carries."""
_FIND_S = 12.0
STARVED = 0.05
"""Share of the time that the proxy waited for a processor, above which the lag of its event loop is not judged: it is
the machine's doing then."""
_AT_ONCE = 2000
"""Requests that may be open; above it none are started, and that is counted."""
_SETTLE_S = 12.0
"""Longest time until nothing is held after the last client; idle connections to engines close within it."""
_CHANGES: tuple[dict[str, Any] | str, ...] = (
    {"scheduling": {"concurrency": 16}},
    {"lanes": {"short": {"queue": {"requests": 40}}}},
    {"scheduling": {"concurrency": 48}, "timeouts": {"idle_stream": "2s"}},
    "scheduling: [broken",
)


@dataclass(frozen=True)
class Plan:
    """How long, how much, and which trouble."""

    seconds: float
    seed: int
    rate: float | None
    """Requests/s; None: half of what the machine carries."""
    warm_up_s: float


def expected(plan: Plan) -> Rule:
    """What a proxy that holds leaves behind."""
    span = max(60.0, plan.seconds - plan.warm_up_s) / 600.0
    return {
        "rss_slope_mb_per_10_min": {"at_most": max(1.0, 2.0 / span)},
        "descriptors_more": {"at_most": 4},
        "tasks_more": {"at_most": 4},
        "held_after": dict.fromkeys(("waiting", "waiting_tokens", "waiting_bytes", "in_flight", "prefill_tokens"), 0),
        "recorded_twice": 0,
        "not_recorded": 0,
        "records_less_counted": 0,
        "records_dropped": 0,
        "looked_whole": 0,
        "late": 0,
        "tracebacks": 0,
        "alive": True,
        "any_of": [{"late_share": {"at_most": 0.01}}, {"waited_for_a_processor": {"at_least": STARVED}}],
    }


async def soak(plan: Plan) -> dict[str, Any]:
    """Run a soak.

    Returns:
        `expected` and `got`, the plan, and the samples that were taken.
    """
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        simulated = [Simulated(folder, plan.seed + number) for number in range(2)]
        for one in simulated:
            one.start()
        tasks = folder / "tasks"
        options = Options({"PYTHONPATH": f"{INJECT}:{ROOT}", "SOAK_TASKS": str(tasks)})
        try:
            backends = [{"url": one.url, "name": f"simulated-{n}"} for n, one in enumerate(simulated)]
            async with start(CONFIG, liar(plan.seed), options=options, backends=[*backends, ""]) as station:
                return await _run(plan, station, simulated, Watch(station, tasks))
        finally:
            for one in simulated:
                await one.kill()


async def _run(plan: Plan, station: Station, simulated: list[Simulated], watch: Watch) -> dict[str, Any]:
    await eventually(lambda: _up(station), lambda up: up == len(simulated) + 1, 60.0)
    await asyncio.sleep(2.0)
    before = watch.look()
    saturated = await _saturated(station, plan.seed) if plan.rate is None else None
    rate = plan.rate or (saturated or 2.0) / 2
    _say(f"{rate:.1f} requests/s for {plan.seconds:.0f} s" + (f", half of {saturated:.1f}" if saturated else ""))
    rng = random.Random(plan.seed)
    traffic = Traffic(station.port, plan.seed)
    watch.begin()
    waited = waited_s(station.process.popen.pid)
    chores = [
        asyncio.ensure_future(chore)
        for chore in (
            watch.run(min(5.0, plan.seconds / 60)),
            _kill(simulated, random.Random(rng.random())),
            _reload(station, random.Random(rng.random())),
        )
    ]
    held_back = await _load(traffic, plan.seconds, rate, rng)
    _say("no more load: it settles")
    late = await lag(station)
    starved = (waited_s(station.process.popen.pid) - waited) / (time.monotonic() - watch.began)
    for chore in chores:
        chore.cancel()
    chores_ended = await asyncio.gather(*chores, return_exceptions=True)
    broken = [ended for ended in chores_ended if not isinstance(ended, asyncio.CancelledError)]
    if broken:
        raise RuntimeError(f"a chore of the soak ended by itself: {broken[0]!r}")
    got = await _settle(plan, station, watch, traffic.count, before)
    got |= {
        "rate_per_s": round(rate, 1),
        "saturated_per_s": None if saturated is None else round(saturated, 1),
        "held_back": held_back,
        "late_share": late["share"],
        "ticks": late["ticks"],
        "waited_for_a_processor": round(starved, 3),
    }
    samples = [asdict(sample) for sample in watch.samples]
    return {"plan": asdict(plan), "expected": expected(plan), "got": got, "samples": samples}


def _say(text: str) -> None:
    print(f"soak: {text}", file=sys.stderr, flush=True)


async def _up(station: Station) -> int:
    status = await station.status()
    return sum(bool(backend.get("up")) for backend in status.get("backends", ()))


async def _saturated(station: Station, seed: int) -> float:
    """Return the requests/s of many clients that ask one after the other: whole mix, no trouble."""
    traffic, until = Traffic(station.port, seed, "find"), time.monotonic() + _FIND_S
    done = 0

    async def client() -> None:
        nonlocal done
        while time.monotonic() < until:
            await traffic.one()
            done += 1

    began = time.monotonic()
    await asyncio.gather(*(client() for _ in range(SATURATED_WITH)))
    return done / (time.monotonic() - began)


async def _load(traffic: Traffic, seconds: float, rate: float, rng: random.Random) -> int:
    """Send requests at random times; return how many were not sent because too many were open."""
    running: set[asyncio.Task[None]] = set()
    until = due = time.monotonic()
    until += seconds
    held_back = 0
    while (due := due + rng.expovariate(rate)) < until:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        if len(running) >= _AT_ONCE:
            held_back += 1
            continue
        task = asyncio.ensure_future(traffic.one())
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    return held_back


async def _kill(simulated: list[Simulated], rng: random.Random) -> None:
    """Kill one engine after the other, and start it again."""
    while True:
        await asyncio.sleep(rng.uniform(10, 30))
        one = rng.choice(simulated)
        await one.kill()
        await asyncio.sleep(rng.uniform(0.5, 4))
        one.start()


async def _reload(station: Station, rng: random.Random) -> None:
    """Change the configuration under load, now and then to one that is broken."""
    whole = json.loads(station.config.read_text("utf-8"))
    for change in itertools.cycle(_CHANGES):
        await asyncio.sleep(rng.uniform(5, 20))
        text = change if isinstance(change, str) else json.dumps(whole | change)
        station.config.write_text(text, "utf-8")
        station.process.signal(signal.SIGHUP)


async def _settle(plan: Plan, station: Station, watch: Watch, count: Count, before: Sample) -> dict[str, Any]:
    """Wait until nothing is held, then lay what the clients did beside the records and the metrics."""
    held = await station.settled(_SETTLE_S)
    last = await eventually(_looking(watch), lambda one: one.descriptors <= before.descriptors + 2, _SETTLE_S)
    counted = await eventually(station.outcomes, lambda found: _lines(station) >= sum(found.values()), 10.0)
    records = _records(station)
    ids = Counter(record["request_id"] for record in records)
    metrics = await station.metrics()
    log = station.log
    return {
        "sent": dict(count.sent),
        "statuses": dict(count.statuses),
        "outcomes": counted,
        "records": len(records),
        "records_less_counted": len(records) - int(sum(counted.values())),
        "records_dropped": sum(value for name, value in metrics.items() if name.startswith("recorder_dropped_total")),
        "recorded_twice": sum(1 for name in count.ids if ids[name] > 1),
        "not_recorded": sum(1 for name, sure in count.ids.items() if sure and not ids[name]),
        "looked_whole": count.looked_whole,
        "late": count.late,
        "rss_mb": round(last.rss_mb, 1),
        "rss_slope_mb_per_10_min": round(slope_mb_per_10_min(watch.samples, plan.warm_up_s), 2),
        "descriptors_more": last.descriptors - before.descriptors,
        "tasks_more": last.tasks - before.tasks,
        "held_after": held,
        "tracebacks": log.count("Traceback"),
        "first_traceback": log[log.find("Traceback") :][:1500] if "Traceback" in log else "",
        "alive": station.process.popen.poll() is None,
        "proxy_cpu_s": round(station.process.cpu_s, 1),
    }


def _looking(watch: Watch) -> Callable[[], Awaitable[Any]]:
    async def look() -> Any:
        await asyncio.sleep(1.2)
        return watch.look()

    return look


def _lines(station: Station) -> int:
    return sum(file.read_bytes().count(b"\n") for file in (station.folder / "trace").glob("trace-*.jsonl"))


def _records(station: Station) -> list[dict[str, Any]]:
    files = sorted((station.folder / "trace").glob("trace-*.jsonl"))
    lines = (line for file in files for line in file.read_text("utf-8").split("\n") if line)
    return [record for record in map(json.loads, lines) if "outcome" in record]
