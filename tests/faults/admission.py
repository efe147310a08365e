"""The admission cases: full queues, storms of clients that come back, and lanes that must not feel each other."""

import asyncio
import os
import statistics
import time
from itertools import pairwise
from typing import Any

from tests.faults import upstream, wire
from tests.faults.case import case
from tests.faults.lifecycle import FREE, IMPATIENT, ONE_AT_A_TIME, STREAM, outcomes_of, scripted
from tests.faults.station import Station, free_port, start
from tests.faults.upstream import Connection, Seen, piece, service, slow_stream
from tests.faults.wire import chat

SHORT_QUEUE: dict[str, Any] = ONE_AT_A_TIME | {"lanes": {"short": {"queue": {"requests": 1}}}}
_REFUSAL = {
    "status": 429,
    "code": "queue_full",
    "retry_after": {"matches": r"^([1-9]|1[0-5])$"},
    "retry_after_ms": {"matches": r"^\d+$"},
}


def refusal(answer: wire.Answer) -> dict[str, Any]:
    """What a refusal says to its client."""
    return {
        "status": answer.status,
        "code": answer.error.get("code"),
        "type": answer.error.get("type"),
        "retry_after": answer.header("retry-after"),
        "retry_after_ms": answer.header("retry-after-ms"),
        "reason": answer.header("x-lanewise-reason"),
    }


async def fill(station: Station) -> list[wire.Client]:
    """Occupy the one slot and the one place in the queue."""
    first = len(station.upstream.requests)
    running = await station.open(STREAM)
    await station.upstream.arrival(first)
    waiting = await station.open(STREAM)
    await station.waiting(1)
    return [running, waiting]


def by_status(statuses: list[int]) -> dict[str, int]:
    """How often each status came."""
    return {str(status): statuses.count(status) for status in sorted(set(statuses))}


async def leave(station: Station, clients: list[wire.Client]) -> dict[str, float]:
    for client in clients:
        client.reset()
    return await station.settled()


@case(
    "ADM-00",
    "a full queue",
    {
        "answers": {"each": _REFUSAL, "count": 40},
        "median_ms": {"at_most": 5},
        "different_waits": {"at_least": 5},
        "connection_kept": True,
        "held_after": FREE,
    },
    why="429 in less than 5 ms (median of 40 on one connection); not all are to come back at the same time",
    alone=True,
)
async def _full() -> dict[str, Any]:
    async with scripted(upstream.silent, SHORT_QUEUE) as station:
        clients = await fill(station)
        client = await station.connect()
        answers, took = [], []
        for _ in range(40):
            client.talk = wire.Talk()
            client.send(wire.request(chat()))
            talk = await client.read_answer(2.0)
            answers.append(refusal(talk.answer))
            took.append(talk.seconds_to_end * 1000)
        kept = not client.talk.closed
        held = await leave(station, [*clients, client])
    return {
        "answers": answers,
        "median_ms": round(statistics.median(took), 2),
        "worst_ms": round(max(took), 2),
        "different_waits": len({answer["retry_after_ms"] for answer in answers}),
        "connection_kept": kept,
        "held_after": held,
    }


@case(
    "ADM-02",
    "no backend that lives",
    {
        "status": 503,
        "code": "no_backend",
        "reason": "no_backend",
        "retry_after": {"matches": r"^([1-9]|1[0-5])$"},
        "ready": 503,
    },
)
async def _nobody() -> dict[str, Any]:
    async with start(backends=[f"http://127.0.0.1:{free_port()}"]) as station:
        talk = await station.ask(chat())
        return refusal(talk.answer) | {"ready": (await station.page("/readyz")).answer.status}


_SERVICE_S, _SLOTS, _STORM = 0.05, 4, 200


@case(
    "ADM-03",
    f"a storm: {_STORM} clients at once that come back twice, where {_SLOTS} run at a time",
    {
        "capacity_used": {"at_least": 0.7},
        "ok_at_clients_and_engine": True,
        "statuses": {"lacks": "500"},
        "spread_of_waits": {"at_least": 1.3},
        "held_after": FREE,
    },
    why="clients of our own that wait as the OpenAI library does; what is admitted is served at full speed",
    alone=True,
)
async def _storm() -> dict[str, Any]:
    config = {"scheduling": {"concurrency": _SLOTS}, "lanes": {"short": {"queue": {"requests": 20}}}}
    waits: list[int] = []
    statuses: list[int] = []
    finished: list[float] = []
    async with start(config, service(_SERVICE_S)) as station:

        async def insist(number: int) -> None:
            for _ in range(3):
                answer = (await station.ask(chat(user=f"client {number}"), 20.0)).answer
                statuses.append(answer.status)
                if answer.status == 200:
                    finished.append(time.monotonic())
                    return
                wait = int(answer.header("retry-after-ms") or 1000)
                waits.append(wait)
                await asyncio.sleep(wait / 1000)

        await asyncio.gather(*map(insist, range(_STORM)))
        held = await station.settled()
        served = len(station.upstream.requests)
    finished.sort()
    bursts = _busy_seconds(finished)
    return {
        "ok": len(finished),
        "ok_at_clients_and_engine": served == len(finished),
        "capacity_used": round(len(finished) * _SERVICE_S / _SLOTS / bursts, 2),
        "busy_s": round(bursts, 2),
        "statuses": by_status(statuses),
        "spread_of_waits": round(max(waits) / min(waits), 2) if waits else 0,
        "held_after": held,
    }


def _busy_seconds(finished: list[float]) -> float:
    """Time in which something was served: gaps longer than four service times are the clients' own waiting."""
    gaps = [later - sooner for sooner, later in pairwise(finished)]
    return _SERVICE_S + sum(gap for gap in gaps if gap < 4 * _SERVICE_S)


@case(
    "ADM-04",
    "a request of 20 MB that is refused while it is still coming",
    {"refused": _REFUSAL, "reset": False, "complete": True, "held_after": FREE},
    why="its client reads the 429, not a broken pipe",
)
async def _uploading() -> dict[str, Any]:
    async with scripted(upstream.silent, SHORT_QUEUE) as station:
        clients = await fill(station)
        document = chat(messages=[{"role": "user", "content": [{"type": "text", "text": "a " * 10_000_000}]}])
        document["max_tokens"] = 1
        large = await station.connect()
        image = "data:image/png;base64," + "QUJD" * 5_000_000
        document["messages"][0]["content"] = [{"type": "image_url", "image_url": {"url": image}}]
        large.send(wire.request(document))
        talk = await large.read_answer(15.0)
        held = await leave(station, [*clients, large])
    return {
        "refused": refusal(talk.answer),
        "reset": talk.reset,
        "complete": talk.answer.complete,
        "held_after": held,
    }


_BURST, _PLACES = 5000, 200


@case(
    "ADM-06",
    f"a burst of {_BURST} where {_PLACES} may wait",
    {
        "most_waiting": _PLACES,
        "statuses": {"429": _BURST - _PLACES - 1},
        "unanswered": _PLACES + 1,
        "held_after": FREE,
    },
    why="exactly as many wait as are allowed to, never one more; all others hear at once",
    alone=True,
)
async def _burst() -> dict[str, Any]:
    # Those that connect are slow to speak, all 5000 being one process: the deadline of a head is that of production.
    config = ONE_AT_A_TIME | {"lanes": {"short": {"queue": {"requests": _PLACES}}}, "timeouts": {"header": "20s"}}
    async with start(config, upstream.silent) as station:
        clients: list[wire.Client] = []
        answered: list[int] = []

        async def one() -> None:
            client = await station.open(STREAM)
            clients.append(client)
            talk = await client.read_answer(120.0)
            answered.append(talk.answer.status)

        most, until = 0, time.monotonic() + 90
        everyone = asyncio.gather(*(one() for _ in range(_BURST)))
        while len(answered) < _BURST - _PLACES - 1 and time.monotonic() < until:
            most = max(most, int((await station.held())["waiting"]))
            await asyncio.sleep(0.3)
        await asyncio.sleep(0.5)
        most = max(most, int((await station.held())["waiting"]))
        everyone.cancel()
        await asyncio.gather(everyone, return_exceptions=True)
        held = await leave(station, clients)
    return {
        "most_waiting": most,
        "statuses": by_status(answered),
        "unanswered": _BURST - len(answered),
        "held_after": held,
    }


_PREFILL_S = 0.1
_LONG_TEXT = "word " * 6000


class _Engine:
    """Prefill one prompt after the other, as an engine does; then decode beside others."""

    def __init__(self) -> None:
        self.prefill = asyncio.Lock()

    async def __call__(self, seen: Seen, connection: Connection) -> None:
        async with self.prefill:
            await asyncio.sleep(_PREFILL_S if len(seen.body) > 10_000 else 0.005)
        await connection.head()
        await connection.chunk(piece("Hello"))
        for number in range(5):
            await connection.chunk(piece(f" w{number}"))
            await asyncio.sleep(0.01)
        await connection.chunk(piece(None, "stop") + upstream.DONE)
        await connection.send(b"0\r\n\r\n")


async def _short_beside_long(port: int, times: int) -> list[float]:
    """TTFT of some short requests while 12 clients send long ones, each again and again."""
    stop = asyncio.Event()
    long = chat(stream=True, messages=[{"role": "user", "content": _LONG_TEXT}])

    async def load() -> None:
        while not stop.is_set():
            await wire.ask(port, wire.request(long), 20.0)

    running = asyncio.gather(*(load() for _ in range(12)))
    await asyncio.sleep(0.5)
    found = []
    for _ in range(times):
        client = await wire.Client.connect(port)
        client.send(wire.request(STREAM))
        await client.read_until(b"Hello", 10.0)
        found.append(client.talk.seconds_to_end)
        client.reset()
    stop.set()
    await running
    return sorted(found)


@case(
    "ADM-07",
    "short requests while the long lane is full",
    {"through_worst_s": {"at_most": 2.5 * _PREFILL_S}, "direct_median_s": {"at_least": 5 * _PREFILL_S}},
    why="a short prompt waits for the one prefill that runs, not for all that wait; sent direct it waits for them all",
    alone=True,
)
async def _lanes() -> dict[str, Any]:
    async with start(script=_Engine()) as station:
        through = await _short_beside_long(station.port, 20)
        station.upstream.script = _Engine()
        direct = await _short_beside_long(station.upstream.port, 5)
    return {
        "long_prefill_s": _PREFILL_S,
        "through_median_s": round(statistics.median(through), 3),
        "through_worst_s": round(through[-1], 3),
        "direct_median_s": round(statistics.median(direct), 3),
    }


_STREAM_S = float(os.environ.get("FAULTS_STREAM_S", "10"))


@case(
    "ADM-09",
    f"a stream of {_STREAM_S:g} s where every time limit is 1 s",
    {"complete": True, "done_marker": True, "seconds": {"at_least": _STREAM_S}, "outcomes": {"ok": 1}},
    why="no limit is on the whole of an answer; FAULTS_STREAM_S=310 passes the 300 s at which other clients cut",
)
async def _long_stream() -> dict[str, Any]:
    config = IMPATIENT | {"timeouts": IMPATIENT["timeouts"] | {"header": "1s", "body": "1s", "connect": "1s"}}
    async with scripted(slow_stream(int(_STREAM_S * 4), 0.25), config) as station:
        before = await station.outcomes()
        talk = await station.ask(STREAM, _STREAM_S + 10)
        await station.settled()
        outcomes = await outcomes_of(station, before)
    return {
        "complete": talk.answer.complete,
        "done_marker": b"[DONE]" in talk.answer.body,
        "seconds": round(talk.seconds_to_end, 2),
        "outcomes": outcomes,
    }
