"""The head-of-line experiment: short and long prompts at one engine, open loop, and what was seen of each."""

import asyncio
import json
import random
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import aiohttp

from tests.engine.server import NAME, Engine

SHORT: Final = (64, 32)
LONG: Final = (4096, 32)
"""(prompt, output) tokens."""
FIRST_ID, LAST_ID = 300, 8_000
"""Token ids that prompts are drawn from: ordinary ones of the tiny model."""


@dataclass(frozen=True)
class Mix:
    """How much of what is sent. The default is 108 short and 12 long at 3 requests a second."""

    short: int = 108
    long: int = 12
    rate: float = 3.0
    """Requests a second in all, Poisson."""


@dataclass(frozen=True)
class Planned:
    """One request to come."""

    at: float
    lane: str
    prompt_tokens: int
    output_tokens: int


@dataclass
class Seen:
    """What one request met. Seconds, all counted from the scheduled arrival."""

    lane: str
    at: float
    late: float = 0.0
    """From schedule to send: the client's own fault."""
    ttft: float | None = None
    e2e: float = 0.0
    worst_gap: float = 0.0
    """Longest silence between two tokens."""
    status: int = 0
    error: str | None = None


@dataclass
class Pass:
    """One pass of the mix."""

    seen: list[Seen] = field(default_factory=list)
    needed_tokens: int = 0
    computed_tokens: float = 0.0
    waiting_most: float = 0.0
    """Most requests that waited inside the engine at any look."""
    running_most: float = 0.0
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def plan(mix: Mix, seed: int) -> list[Planned]:
    """Lay out the arrivals: the same for the same mix and seed."""
    chance = random.Random(seed)
    lanes = ["short"] * mix.short + ["long"] * mix.long
    chance.shuffle(lanes)
    at, planned = 0.0, []
    for lane in lanes:
        planned.append(Planned(at, lane, *(SHORT if lane == "short" else LONG)))
        at += chance.expovariate(mix.rate)
    return planned


def fresh_prompt(tokens: int) -> list[int]:
    """Token ids that no pass has sent before, so that no cache can have them."""
    chance = random.SystemRandom()
    return [chance.randrange(FIRST_ID, LAST_ID) for _ in range(tokens)]


async def drive(url: str, engine: Engine, mix: Mix, seed: int) -> Pass:
    """Send the mix to that address and watch the engine meanwhile.

    Args:
        url: the engine, or a proxy in front of it.
        engine: whose metrics are read.
        mix: what is sent.
        seed: of the arrivals.
    """
    planned = plan(mix, seed)
    prompts = [fresh_prompt(one.prompt_tokens) for one in planned]
    done = Pass(needed_tokens=sum(one.prompt_tokens for one in planned))
    before = await engine.computed_tokens()
    timeout = aiohttp.ClientTimeout(total=None, sock_read=300.0)
    # The engine closes idle connections after 5 s: a client that keeps them longer meets closed ones.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        began = time.monotonic() + 0.3
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(_watch(engine, done))
            sent = [
                group.create_task(_send(session, url, began, one, ids))
                for one, ids in zip(planned, prompts, strict=True)
            ]
            done.seen = [await one for one in sent]
            done.seconds = time.monotonic() - began
            watcher.cancel()
    await engine.idle(within=60.0)
    done.computed_tokens = await engine.computed_tokens() - before
    return done


async def _watch(engine: Engine, done: Pass) -> None:
    while True:
        metrics = await engine.metrics()
        waiting = sum(value for key, value in metrics.items() if key.startswith("vllm:num_requests_waiting{"))
        running = sum(value for key, value in metrics.items() if key.startswith("vllm:num_requests_running{"))
        done.waiting_most, done.running_most = max(done.waiting_most, waiting), max(done.running_most, running)
        await asyncio.sleep(0.5)


async def _send(session: aiohttp.ClientSession, url: str, began: float, one: Planned, ids: list[int]) -> Seen:
    seen = Seen(one.lane, one.at)
    due = began + one.at
    body = {
        "model": NAME,
        "prompt": ids,
        "max_tokens": one.output_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
    }
    await asyncio.sleep(max(0.0, due - time.monotonic()))
    seen.late = time.monotonic() - due
    try:
        async with session.post(f"{url}/v1/completions", json=body) as answer:
            seen.status = answer.status
            if answer.status == 200:
                await _read(answer, seen, due)
            else:
                seen.error = (await answer.text())[:200]
    except (aiohttp.ClientError, TimeoutError) as fault:
        seen.error = repr(fault)
    seen.e2e = time.monotonic() - due
    return seen


async def _read(answer: aiohttp.ClientResponse, seen: Seen, due: float) -> None:
    last = None
    ended = False
    async for line in answer.content:
        if not line.startswith(b"data: "):
            continue
        now = time.monotonic() - due
        if line.startswith(b"data: [DONE]"):
            ended = True
        elif "error" in (event := json.loads(line[6:])):
            seen.error = str(event["error"])[:200]
        else:
            seen.ttft = now if seen.ttft is None else seen.ttft
            seen.worst_gap = seen.worst_gap if last is None else max(seen.worst_gap, now - last)
            last = now
    if not ended and seen.error is None:
        seen.error = "the stream ended without [DONE]"
