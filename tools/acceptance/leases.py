"""Three proxies over one engine and a real Redis: the limit holds, through kills, freezes and a network that is cut.

`python -m tools.acceptance.leases --admissions 20000 --json`: real processes, limit 64, more clients than that at any
time. Without faults the engine never has more than 64 requests; with them by no more than what the dead or frozen proxy
held, and a lease after the fault it is 64 again. At the end nothing is in flight, and nothing is held. Exits with 3
when one of this is not so, with 4 when a proxy lost its leases because the machine was too busy, with 1 where there is
no redis-server.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
import yaml
from redis.asyncio import Redis

from loadgen.children import Child, answers, free_address
from tools.acceptance.cutter import Cutter

LIMIT = 64
PROXIES = 3
LEASE_S, TIMEOUT_S = 3.0, 0.5
"""Longer than by default: many processes share the processors, and what they cannot keep up with is no fault."""
_READY_S = 60.0
_MARGIN_S = 1.0
"""Between a signal and what follows from it, on a busy machine."""
_KEY = "lanewise:{lanewise}:leases"


@dataclass
class Phase:
    """What happened from one fault to the next."""

    name: str
    allowed: int
    """Requests above the limit that the fault may bring."""
    began: float
    fault_ended: float | None = None
    ended: float = 0.0
    served: int = 0
    peak: int = 0
    over: list[tuple[float, int]] = field(default_factory=list)
    lost: int = 0
    """Leases that ran out meanwhile."""

    @property
    def disturbed(self) -> bool:
        """Whether a proxy lost its leases although nothing was done to it: the machine was too busy."""
        return self.lost > 0 and self.fault_ended is None

    @property
    def late_s(self) -> float:
        """Seconds after the end of the fault at which there were still more than the limit."""
        end = self.began if self.fault_ended is None else self.fault_ended
        return max((at - end for at, count in self.over if count > LIMIT), default=0.0)

    @property
    def passed(self) -> bool:
        """Whether the promise was kept."""
        return self.peak <= LIMIT + self.allowed and self.late_s <= LEASE_S + _MARGIN_S

    def document(self) -> dict[str, Any]:
        """Return it, ready for JSON."""
        return {
            "phase": self.name,
            "seconds": round(self.ended - self.began, 2),
            "served": self.served,
            "peak": self.peak,
            "allowed": LIMIT + self.allowed,
            "over_after_fault_s": round(self.late_s, 3),
            "leases_lost": self.lost,
            "passed": self.passed,
        }


class Fleet:
    """Redis, the engine, the proxies and the clients."""

    def __init__(self, folder: Path, stack: ExitStack, asked: argparse.Namespace) -> None:
        self.folder = folder
        self._stack = stack
        self.asked = asked
        self.engine = free_address()
        self.redis_port = int(free_address().rpartition(":")[2])
        self.listen = [free_address() for _ in range(PROXIES)]
        self.admin = [free_address() for _ in range(PROXIES)]
        self.proxies: list[Child] = []
        self.outcomes: Counter[str] = Counter()
        self.phases: list[Phase] = []
        self.store_ports = [self.redis_port] * PROXIES
        self._starts = 0

    def start_redis(self) -> None:
        """Start a server that keeps nothing on disk."""
        command = ["redis-server", "--port", str(self.redis_port), "--bind", "127.0.0.1", "--save", ""]
        self.redis = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._stack.callback(_end, self.redis)

    def start_engine(self) -> None:
        """Start the simulated engine."""
        arguments = ["--listen", self.engine, "--speed", str(self.asked.speed), "--limit", str(LIMIT)]
        engine = Child("engine", "tools.acceptance.leases_engine", arguments, self.folder / "engine.log")
        self._stack.enter_context(engine)
        engine.wait_until(lambda: answers(f"http://{self.engine}/health"), _READY_S, "answer")

    def start_proxy(self, number: int) -> None:
        """Start one proxy, or start it anew."""
        config = {
            "listen": self.listen[number],
            "admin": self.admin[number],
            "backends": [{"url": f"http://{self.engine}", "name": "card"}],
            "scheduling": {"concurrency": LIMIT, "drop_factor": "never", "adaptive": {"enabled": False}},
            "installments": "off",
            "share": f"1/{PROXIES}",
            "sharing": {
                "store": f"redis://127.0.0.1:{self.store_ports[number]}/0",
                "lease": f"{LEASE_S}s",
                "timeout": f"{TIMEOUT_S}s",
            },
            "estimate": {"remember": False},
            "state_dir": str(self.folder / f"state-{number}"),
        }
        path = self.folder / f"proxy-{number}.yaml"
        path.write_text(yaml.safe_dump(config))
        self._starts += 1
        log = self.folder / f"proxy-{number}-{self._starts}.log"
        child = Child(f"proxy {number}", "proxy", ["serve", "--config", str(path)], log)
        self._stack.enter_context(child)
        child.wait_until(lambda: answers(f"http://{self.admin[number]}/readyz"), _READY_S, "get ready")
        self.proxies[number : number + 1] = [child]

    def kill(self, number: int, how: signal.Signals) -> None:
        """Send a signal to a proxy."""
        os.kill(self.proxies[number].pid, how)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGCONT)
    process.kill()
    process.wait()


async def _client(fleet: Fleet, session: aiohttp.ClientSession, enough: asyncio.Event, number: int) -> None:
    """Send one request after the other, each to the next proxy, until it is enough."""
    turn = number
    while not enough.is_set():
        turn += 1
        tokens = 1200 if turn % 40 == 0 else 4 + (turn * 37) % 30
        body = {"model": "tiny", "prompt": [1] * tokens, "max_tokens": 8, "ignore_eos": True, "stream": True}
        try:
            async with session.post(f"http://{fleet.listen[turn % PROXIES]}/v1/completions", json=body) as answer:
                data = await answer.read()
                done = b"[DONE]" in data
                fleet.outcomes["ok" if done else f"status {answer.status}"] += 1
        except (aiohttp.ClientError, OSError):  # the proxy was killed
            fleet.outcomes["connection"] += 1
            await asyncio.sleep(0.01)


@asynccontextmanager
async def _phase(fleet: Fleet, session: aiohttp.ClientSession, name: str, allowed: int) -> AsyncIterator[Phase]:
    """Watch the engine from one moment to the next."""
    before, lost = await _count(fleet, session), await _lost(fleet, session)
    phase = Phase(name, allowed, time.monotonic())
    yield phase
    seen = await _count(fleet, session)
    phase.ended = time.monotonic()
    phase.lost = max(0, await _lost(fleet, session) - lost)
    phase.served, phase.peak = seen["served"] - before["served"], seen["peak"]
    phase.over = [(at, count) for at, count in seen["over"]]
    fleet.phases.append(phase)
    print(json.dumps(phase.document()), file=sys.stderr)


async def _count(fleet: Fleet, session: aiohttp.ClientSession) -> dict[str, Any]:
    async with session.get(f"http://{fleet.engine}/count") as answer:
        return dict(await answer.json())


async def _sharing(fleet: Fleet, session: aiohttp.ClientSession, number: int) -> dict[str, Any]:
    async with session.get(f"http://{fleet.admin[number]}/status.json") as answer:
        document: dict[str, Any] = (await answer.json())["sharing"]
        return document


async def _lost(fleet: Fleet, session: aiohttp.ClientSession) -> int:
    """Return how often proxies have lost their leases; one that was started anew begins at 0."""
    return sum([(await _sharing(fleet, session, number))["fallbacks"] for number in range(PROXIES)])


async def _held(redis: Redis) -> dict[str, int]:
    """Return the sequences that each member holds, as the store says."""
    rows = await redis.hgetall(_KEY)
    seconds, micros = await redis.time()
    now = seconds * 1000 + micros // 1000
    members = {name: json.loads(row) for name, row in rows.items() if name}
    return {
        name: one["p"]["b/card"]["h"][0] for name, one in members.items() if one["e"] > now and "b/card" in one["p"]
    }


async def _joined(fleet: Fleet, session: aiohttp.ClientSession) -> float:
    """Wait until all proxies have joined; return how long it took."""
    began = time.monotonic()
    while time.monotonic() < began + _READY_S:
        states = [await _sharing(fleet, session, number) for number in range(PROXIES)]
        if all(one["state"] == "joined" and one["proxies"] == PROXIES for one in states):
            return time.monotonic() - began
        await asyncio.sleep(0.05)
    return float("inf")


async def _until_served(fleet: Fleet, count: int) -> None:
    """Wait until the clients have so many answers."""
    while True:
        if fleet.outcomes["ok"] >= count:
            return
        await asyncio.sleep(0.05)


async def _run(asked: argparse.Namespace, folder: Path, stack: ExitStack) -> dict[str, Any]:
    fleet = Fleet(folder, stack, asked)
    fleet.start_redis()
    fleet.start_engine()
    async with Cutter(fleet.redis_port) as cutter:
        fleet.store_ports[-1] = cutter.port
        for number in range(PROXIES):
            await asyncio.to_thread(fleet.start_proxy, number)
        connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=60)
        redis = Redis(port=fleet.redis_port, decode_responses=True)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            document = await _faults(fleet, session, redis, cutter)
        await redis.aclose()
    return document


async def _faults(fleet: Fleet, session: aiohttp.ClientSession, redis: Redis, cutter: Cutter) -> dict[str, Any]:
    await _joined(fleet, session)
    enough = asyncio.Event()
    part = fleet.asked.admissions // 6 + 1
    clients = [asyncio.ensure_future(_client(fleet, session, enough, n)) for n in range(fleet.asked.clients)]

    async with _phase(fleet, session, "no fault", 0):
        await _until_served(fleet, part)

    async with _phase(fleet, session, "a proxy killed", LIMIT) as phase:
        phase.allowed = max((await _held(redis)).values())
        fleet.kill(0, signal.SIGKILL)
        await asyncio.sleep(LEASE_S)
        phase.fault_ended = time.monotonic()
        await asyncio.to_thread(fleet.start_proxy, 0)
        await _until_served(fleet, 2 * part)

    rejoin_s = {"a proxy killed": await _joined(fleet, session)}
    async with _phase(fleet, session, "a proxy frozen", LIMIT) as phase:
        phase.allowed = LIMIT // 2 if (held := await _held(redis)) == {} else max(held.values())
        fleet.kill(1, signal.SIGSTOP)
        await asyncio.sleep(2 * LEASE_S)
        fleet.kill(1, signal.SIGCONT)
        phase.fault_ended = time.monotonic()
        rejoin_s["a proxy frozen"] = await _joined(fleet, session)
        await _until_served(fleet, 3 * part)

    async with _phase(fleet, session, "the store frozen", 0) as phase:
        fleet.redis.send_signal(signal.SIGSTOP)
        await asyncio.sleep(2 * LEASE_S)
        degraded = [(await _sharing(fleet, session, number))["state"] for number in range(PROXIES)]
        fleet.redis.send_signal(signal.SIGCONT)
        phase.fault_ended = time.monotonic()
        rejoin_s["the store frozen"] = await _joined(fleet, session)
        await _until_served(fleet, 4 * part)

    async with _phase(fleet, session, "the network cut", LIMIT // PROXIES) as phase:
        phase.allowed = max(LIMIT // PROXIES, *(await _held(redis)).values())
        cutter.cut()
        await asyncio.sleep(2 * LEASE_S)
        alone = (await _sharing(fleet, session, PROXIES - 1))["state"]
        cutter.mend()
        phase.fault_ended = time.monotonic()
        rejoin_s["the network cut"] = await _joined(fleet, session)
        await asyncio.sleep(LEASE_S)
        await _until_served(fleet, 5 * part)

    async with _phase(fleet, session, "no fault again", 0):
        await _until_served(fleet, fleet.asked.admissions)
        enough.set()
        await asyncio.gather(*clients)

    nothing_s = await _nothing_left(fleet, session, redis)
    fallbacks = [(await _sharing(fleet, session, number))["fallbacks"] for number in range(PROXIES)]
    checks = {
        "every_phase": all(phase.passed for phase in fleet.phases),
        "all_degraded_without_store": set(degraded) == {"degraded"},
        "cut_one_degraded": alone == "degraded",
        "recovered_by_itself": max(rejoin_s.values()) < _READY_S,
        "nothing_in_flight_and_nothing_held_at_the_end": nothing_s <= 2 * LEASE_S + _MARGIN_S,
        "every_request_answered": set(fleet.outcomes) <= {"ok", "connection"},
    }
    return {
        "limit": LIMIT,
        "proxies": PROXIES,
        "lease_s": LEASE_S,
        "admissions": fleet.outcomes["ok"],
        "outcomes": dict(fleet.outcomes),
        "phases": [phase.document() for phase in fleet.phases],
        "rejoined_after_s": {name: round(seconds, 2) for name, seconds in rejoin_s.items()},
        "empty_after_s": round(nothing_s, 2),
        "fallbacks": fallbacks,
        "checks": checks,
        "disturbed": any(phase.disturbed for phase in fleet.phases),
        "passed": all(checks.values()),
    }


async def _nothing_left(fleet: Fleet, session: aiohttp.ClientSession, redis: Redis) -> float:
    """Return after how long nothing was in flight any more, and nothing held."""
    began = time.monotonic()
    while time.monotonic() < began + _READY_S:
        if (await _count(fleet, session))["in_flight"] == 0 and not any((await _held(redis)).values()):
            return time.monotonic() - began
        await asyncio.sleep(0.05)
    return float("inf")


def main() -> int:
    """Run the check and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--admissions", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=150, help="requests that wait or run at any time")
    parser.add_argument("--speed", type=float, default=0.5, help="of the simulated engine")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if shutil.which("redis-server") is None:
        print("there is no redis-server here: tools/system-packages.sh installs it", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        document = uvloop.run(_run(asked, Path(folder), stack))
        if not document["passed"] and os.environ.get("KEEP"):
            shutil.copytree(folder, os.environ["KEEP"], dirs_exist_ok=True)
    if asked.json:
        print(json.dumps(document, indent=1))
    else:
        for phase in document["phases"]:
            print(
                f"{phase['phase']}: {phase['served']} served, at most {phase['peak']} of {phase['allowed']} in flight"
            )
        print("passed" if document["passed"] else f"failed: {document['checks']}")
    if document["passed"]:
        return 0
    return 4 if document["disturbed"] else 3


if __name__ == "__main__":
    sys.exit(main())
