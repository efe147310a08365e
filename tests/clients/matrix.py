"""Every library against every case: what its user sees, and how often it asked. The verdict is computed by rules."""

import asyncio
import contextlib
import itertools
import json
import os
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from tests.clients import engine
from tests.clients.environment import JAVASCRIPT, Environment
from tests.faults import upstream
from tests.faults.admission import SHORT_QUEUE, fill
from tests.faults.bodies import RECORDED
from tests.faults.rules import Rule, unmet
from tests.faults.station import Station, free_port, merged, start, trace_rows

WITHIN_S = 900.0
"""For one library with all its cases; the longest waits are those for a 429 that never ends."""
_AT_ONCE = 3
"""Libraries that are driven at the same time."""
_CONFIG: dict[str, Any] = RECORDED | {"health": {"trip_after": "unlimited", "trip_share": 1.0}}
_ALWAYS_FULL = merged(SHORT_QUEUE, {"lanes": {"short": {"first_byte_timeout": "1h"}}, "timeouts": {"answer": "1h"}})
_FULL = {"full": "full", "down": "down"}
"""Cases that have a proxy of their own; the others share one."""

_WORDS: Rule = {"text": " w0 w1 w2", "finish": {"one_of": ["stop", "end_turn"]}, "attempts": 1}
_RAISES: dict[str, Any] = {"error": {"matches": "."}}
_THRICE: dict[str, Any] = {"attempts": 3}
RULES: dict[str, Rule] = {
    "plain": _WORDS | {"text": "Hello"},
    "stream": _WORDS,
    "tools": {
        "tool": "get_weather",
        "arguments": engine.ARGUMENTS,
        "finish": {"one_of": ["tool_calls", "tool_use", "tool-calls"]},
        "attempts": 1,
    },
    "refused": _RAISES | {"status": 400, "message": {"contains": "temperature must be at most 2"}, "attempts": 1},
    "comments": _WORDS,
    "slow": _WORDS | {"seconds": {"at_least": engine.FIRST_BYTE_S}},
    "cut": _RAISES | {"attempts": 1},
    "failed": _RAISES | _THRICE | {"status": 500},
    "full": _RAISES | _THRICE | {"status": 429, "gaps_s": {"each": {"at_least": 0.5, "at_most": 20.0}}},
    "down": _RAISES | _THRICE | {"status": 503, "gaps_s": {"each": {"at_least": 0.5, "at_most": 20.0}}},
}
"""What most libraries show, with their defaults."""
_WAITED: dict[str, Any] = {"gaps_s": RULES["full"]["gaps_s"]}
_BY_HAND: dict[str, Any] = {"attempts": 1, "retry_after": {"matches": r"^([1-9]|1[0-5])$"}}
EXCEPT: dict[tuple[str, str], Rule] = {
    # httpx raises nothing for a status, never asks again, and waits 5 s for a byte.
    ("httpx", "comments"): RULES["comments"] | {"comments": 3},
    ("httpx", "refused"): {"status": 400, "said": "temperature must be at most 2", "attempts": 1},
    ("httpx", "slow"): _RAISES | {"error": "ReadTimeout", "attempts": 1},
    ("httpx", "failed"): {"status": 500, "attempts": 1},
    ("httpx", "full"): _BY_HAND | {"status": 429, "code": "queue_full"},
    ("httpx", "down"): _BY_HAND | {"status": 503, "code": "no_backend"},
    # llama-index asks four times for a stream: its own retries go round those of the library below it.
    **{("llama_index", case): RULES[case] | {"attempts": 4} for case in ("failed", "full", "down")},
    # curl --retry 2 obeys Retry-After, and its exit code says nothing about a status.
    ("curl", "refused"): {"status": 400, "said": "temperature must be at most 2", "attempts": 1},
    ("curl", "cut"): {"error": "exit 18", "attempts": 1},
    ("curl", "failed"): _THRICE | {"status": 500},
    ("curl", "full"): _THRICE | _WAITED | {"status": 429, "code": "queue_full"},
    ("curl", "down"): _THRICE | _WAITED | {"status": 503, "code": "no_backend"},
}
"""What some show instead."""


@dataclass(frozen=True)
class Row:
    """One library in one case."""

    client: str
    version: str | None
    case: str
    expected: Rule
    got: dict[str, Any]

    @property
    def unmet(self) -> list[str]:
        return unmet(self.expected, self.got)

    def as_json(self) -> dict[str, Any]:
        found = self.unmet
        about = {"library": self.client, "version": self.version, "case": self.case, "expected": self.expected}
        return {**about, "got": self.got, "passed": not found, "unmet": found}


def rule_of(library: str, case: str) -> Rule:
    """What must be seen of a library in a case."""
    return EXCEPT.get((library, case), RULES[case])


@contextlib.asynccontextmanager
async def stations() -> AsyncIterator[dict[str, Station]]:
    """Start the proxies: one for what the engine does, one whose queue is full, one without an engine."""
    async with contextlib.AsyncExitStack() as stack:
        served = await stack.enter_async_context(start(_CONFIG, engine.serve))
        full = await stack.enter_async_context(start(merged(_CONFIG, _ALWAYS_FULL), upstream.silent))
        dead = f"http://127.0.0.1:{free_port()}"
        down = await stack.enter_async_context(start(_CONFIG, backends=[dead]))
        served.upstream.probes = full.upstream.probes = engine.probes
        for client in await fill(full):
            stack.callback(client.reset)
        yield {"served": served, "full": full, "down": down}


async def run(where: Environment, libraries: tuple[str, ...], cases: tuple[str, ...]) -> list[Row]:
    """Drive libraries through cases; a JavaScript library without Node is left out."""
    chosen = [one for one in libraries if one not in JAVASCRIPT or where.node_folder is not None]
    slots = asyncio.Semaphore(_AT_ONCE)
    async with stations() as proxies:
        urls = {case: f"http://127.0.0.1:{proxies[_FULL.get(case, 'served')].port}" for case in cases}

        async def one(library: str) -> tuple[str, dict[str, Any]]:
            async with slots:
                return library, await asyncio.to_thread(_drive, where, library, urls)

        told = dict(await asyncio.gather(*(one(library) for library in chosen)))
        attempts = await _attempts(proxies)
    return [
        Row(library, shown["version"], case, rule_of(library, case), got | attempts.get(f"{library}.{case}", _NEVER))
        for library, shown in told.items()
        for case, got in shown["cases"].items()
    ]


_NEVER: dict[str, Any] = {"attempts": 0, "gaps_s": []}


def _drive(where: Environment, library: str, urls: dict[str, str]) -> dict[str, Any]:
    folder = where.node_folder if library in JAVASCRIPT else None
    command = where.command(library, json.dumps(urls))
    env = os.environ | {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "PYTHONPATH": "",
    }  # else it asks the internet for prices
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{library} could not be driven: {done.stderr[-600:]}")
    shown: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return shown


async def _all_rows(station: Station) -> list[dict[str, Any]]:
    """The records of a proxy once no more are written: the answer that ended last may take a moment to be recorded."""
    rows: list[dict[str, Any]] = []
    while len(more := await trace_rows(station, len(rows) + 1, within=2.0)) > len(rows):
        rows = more
    return more


async def _attempts(proxies: dict[str, Station]) -> dict[str, dict[str, Any]]:
    """How often each library asked in each case, by the proxies' own records: the model's name tells them apart."""
    arrivals: dict[str, list[float]] = {}
    for station in proxies.values():
        for row in await _all_rows(station):
            if row.get("model"):
                arrivals.setdefault(row["model"], []).append(row["arrived_s"])
    found = {}
    for model, times in arrivals.items():
        times.sort()
        gaps = [round(later - earlier, 2) for earlier, later in itertools.pairwise(times)]
        found[model] = {"attempts": len(times), "gaps_s": gaps}
    return found
