"""The lifecycle cases: clients that leave, and engines that fall silent, cut their answers or send nonsense.

Time limits of 60 to 900 s in production are one second here (`IMPATIENT`).
"""

import asyncio
import contextlib
import os
import random
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

from tests.faults import upstream, wire
from tests.faults.case import case
from tests.faults.station import POOL, Station, eventually, start
from tests.faults.upstream import Connection, Script, Seen, piece, slow_stream
from tests.faults.wire import chat

IMPATIENT: dict[str, Any] = {
    "timeouts": {"idle_stream": "1s", "answer": "1s"},
    "lanes": {"short": {"first_byte_timeout": "1s", "ttft_slo": "1s"}},
}
ONE_AT_A_TIME: dict[str, Any] = {"scheduling": {"concurrency": 1}}
FREE = {"waiting": 0, "waiting_tokens": 0, "waiting_bytes": 0, "in_flight": 0, "prefill_tokens": 0}
STREAM = chat(stream=True, stream_options={"include_usage": True})
"""A stream whose client asks for usage itself, so that nothing is taken out."""
CUT = {
    "status": 200,
    "complete": False,
    "closed": True,
    "error_event": True,
    "done_marker": False,
    "held_after": FREE,
}
"""A stream that ended early, said so, and looks whole to nobody."""
ABORTS = int(os.environ.get("FAULTS_ABORTS", "1500"))


@contextlib.asynccontextmanager
async def scripted(script: Script, config: dict[str, Any] | None = None) -> AsyncIterator[Station]:
    """Lend a station whose upstream does that."""
    async with POOL.borrow(config) as station:
        station.upstream.script = script
        yield station


async def outcomes_of(station: Station, before: dict[str, float]) -> dict[str, int]:
    """Which outcomes were counted since then."""
    after = await station.outcomes()
    return {name: int(after[name] - before.get(name, 0)) for name in after if after[name] != before.get(name, 0)}


async def streamed(script: Script, config: dict[str, Any] | None = None, document: Any = STREAM) -> dict[str, Any]:
    """Ask once; say what the client got, what was counted, and whether all was given back."""
    async with scripted(script, config) as station:
        before, logged, first = await station.outcomes(), len(station.log), len(station.upstream.requests)
        client = await station.open(document)
        talk = await client.read_answer(8.0)
        client.reset()
        held = await station.settled()
        got = talk.as_row() | {
            "held_after": held,
            "outcomes": await outcomes_of(station, before),
            "upstream": len(station.upstream.requests) - first,
            "traceback": "Traceback" in station.log[logged:],
        }
    body = talk.answer.body
    return got | {
        "type": talk.answer.header("content-type"),
        "raw_body": body,
        "error_event": b'"error"' in body,
        "done_marker": b"[DONE]" in body,
    }


def shown(got: dict[str, Any]) -> dict[str, Any]:
    """Leave out what does not belong into a table."""
    return {key: value for key, value in got.items() if key != "raw_body"}


def cut(identity: str, given: str, script: Script, outcome: str, *, config: Any = None, why: str = "") -> None:
    """Add a case of a stream that ends early."""

    async def observe() -> dict[str, Any]:
        return shown(await streamed(script, config or IMPATIENT))

    case(identity, given, CUT | {"outcomes": {outcome: 1}}, why=why)(observe)


@case(
    "LIFE-00",
    "a client that leaves while it waits in the queue",
    {
        "waited": 1,
        "freed_s": {"at_most": 0.2},
        "held": {"waiting": 0, "in_flight": 1},
        "upstream": 1,
        "outcomes": {"client_gone": 1},
    },
    why="its place is free at once and the engine never hears of it",
)
async def _leaves_queue() -> dict[str, Any]:
    async with scripted(upstream.silent, ONE_AT_A_TIME) as station:
        before, first = await station.outcomes(), len(station.upstream.requests)
        running = await station.open(STREAM)
        await station.upstream.arrival(first)
        waiting = await station.open(STREAM)
        waited = await station.waiting(1)
        left = time.monotonic()
        waiting.reset()
        held = await eventually(station.held, lambda held: not held["waiting"], 3.0)
        freed = time.monotonic() - left
        outcomes = await outcomes_of(station, before)
        seen = len(station.upstream.requests) - first
        running.reset()
        await station.settled()
    return {"waited": waited, "freed_s": round(freed, 3), "held": held, "upstream": seen, "outcomes": outcomes}


@case(
    "LIFE-02",
    "a client that leaves in the middle of its stream",
    {"upstream_closed_s": {"at_most": 0.1}, "held_after": FREE, "outcomes": {"client_gone": 1}},
    why="the engine is told within 0.1 s",
    alone=True,
)
async def _leaves_stream() -> dict[str, Any]:
    async with scripted(slow_stream(1000, 0.02)) as station:
        before = await station.outcomes()
        client = await station.open(STREAM)
        await client.read_until(b"w3")
        connection = station.upstream.connections[-1]
        client.reset()
        closed = await connection.left(3.0)
        return {
            "upstream_closed_s": closed and round(closed, 3),
            "held_after": await station.settled(),
            "outcomes": await outcomes_of(station, before),
        }


@case(
    "LIFE-03",
    f"{ABORTS} clients that leave at random moments",
    {"sent": ABORTS, "accounted": ABORTS, "held_after": FREE, "status": 200, "traceback": False},
    why="10,000 in the long run (FAULTS_ABORTS=10000); seeded; every request is counted once and all is given back",
    alone=True,
)
async def _leave_anywhere() -> dict[str, Any]:
    dice = random.Random(3)
    async with start(ONE_AT_A_TIME | {"scheduling": {"concurrency": 16}}, slow_stream(5, 0.004, 0.004)) as station:
        slots = asyncio.Semaphore(60)

        async def abort(after_s: float) -> None:
            async with slots:
                client = await station.open(STREAM)
                await client.read_some(after_s)
                await asyncio.sleep(after_s / 3)
                client.reset()

        await asyncio.gather(*(abort(dice.random() ** 2 * 0.12) for _ in range(ABORTS)))
        held = await station.settled(10.0)
        accounted = await eventually(station.outcomes, lambda found: sum(found.values()) >= ABORTS, 5.0)
        after = await station.ask(chat(stream=True))
        return {
            "sent": ABORTS,
            "accounted": int(sum(accounted.values())),
            "outcomes": accounted,
            "held_after": held,
            "status": after.answer.status,
            "traceback": "Traceback" in station.log,
        }


@case(
    "LIFE-04",
    "a client that closes its half of the connection after the request",
    {
        "any_of": [
            {"outcomes": {"client_gone": 1}, "upstream_closed": True},
            {"outcomes": {"ok": 1}, "complete": True},
        ],
        "held_after": FREE,
    },
    why="taken for leaving: the slot is free and the engine is told; an answer that is whole would do as well",
)
async def _half_close() -> dict[str, Any]:
    async with scripted(slow_stream(30, 0.02)) as station:
        before = await station.outcomes()
        client = await station.open(STREAM)
        client.half_close()
        talk = await client.read_answer(3.0)
        held = await station.settled()
        gone = station.upstream.connections[-1].gone.is_set()
        outcomes = await outcomes_of(station, before)
    complete = b"[DONE]" in talk.received and talk.answer.complete
    return {"held_after": held, "upstream_closed": gone, "complete": complete, "outcomes": outcomes}


async def _cut_in_chunk(seen: Seen, connection: Connection) -> None:
    await connection.head()
    await connection.chunk(piece("Hello"))
    await connection.send(b"ff\r\ndata: {")
    connection.close()


async def _close_delimited(seen: Seen, connection: Connection) -> None:
    await connection.send(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + piece("Hello")
    )
    connection.close()


async def _head_then_silence(seen: Seen, connection: Connection) -> None:
    await connection.head()
    await connection.gone.wait()


async def _trickle(seen: Seen, connection: Connection) -> None:
    """One byte in a sixth of the idle limit: 10 s of 60 s."""
    await connection.head()
    await connection.chunk(piece("Hello"))
    await connection.send(b"ffff\r\ndata: {")
    while not connection.gone.is_set():
        await connection.send(b" ")
        await asyncio.sleep(1 / 6)


cut("LIFE-06", "an engine that closes inside a chunk of a stream", _cut_in_chunk, "truncated")
cut(
    "LIFE-10",
    "an engine whose stream ends with its connection, without [DONE]",
    _close_delimited,
    "truncated",
    why="HTTP sees a clean end; the reader beside the stream does not",
)
cut("LIFE-14", "an engine that sends its head and falls silent", _head_then_silence, "backend_timeout")
cut(
    "LIFE-35",
    "an engine that sends one byte in each sixth of the idle limit, and never an event",
    _trickle,
    "backend_timeout",
    why="10 s of 60 s, scaled to 1/6 s of 1 s; the stream ends within 8 idle limits",
)


@case("LIFE-11", "an answer shorter than its Content-Length", {"status": 502, "complete": True, "held_after": FREE})
async def _short() -> dict[str, Any]:
    body = upstream.chat_answer()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (len(body) + 50)
    return shown(await streamed(upstream.raw(head + body), document=chat()))


async def _closes_second(seen: Seen, connection: Connection) -> None:
    if seen.nth:
        connection.close()
    else:
        await upstream.healthy(seen, connection)


async def _one_byte(seen: Seen, connection: Connection) -> None:
    if seen.nth:
        await connection.send(b"H")
        connection.close()
    else:
        await upstream.healthy(seen, connection)


async def _twice(script: Script) -> dict[str, Any]:
    async with start(script=script) as station:
        talks = [await station.ask(chat()) for _ in range(2)]
        return {
            "statuses": [one.answer.status for one in talks],
            "upstream": len(station.upstream.requests),
            "retries": await station.total("retries_total"),
        }


@case(
    "LIFE-12",
    "an engine that closes a kept connection just as the next request is sent on it",
    {
        "no_byte_came": {"statuses": [200, 200], "upstream": 3, "retries": 1},
        "one_byte_came": {"statuses": [200, 502], "upstream": 2, "retries": 0},
        "fresh_connection": {"status": 502, "upstream": 1},
    },
    why="sent once more only when the connection had served before and no byte of the answer came; counted",
)
async def _stale() -> dict[str, Any]:
    fresh = await streamed(upstream.raw(b""), document=chat())
    return {
        "no_byte_came": await _twice(_closes_second),
        "one_byte_came": await _twice(_one_byte),
        "fresh_connection": shown(fresh),
    }


@case(
    "LIFE-13",
    "an engine that accepts and never answers",
    {
        "status": 504,
        "seconds": {"at_least": 0.9, "at_most": 2.0},
        "held_after": FREE,
        "outcomes": {"backend_timeout": 1},
        "reported_failures": {"at_least": 1},
    },
    why="the first-byte limit of the lane (1 s here) gives 504, frees the slot, and counts against the backend",
)
async def _never_answers() -> dict[str, Any]:
    async with start(IMPATIENT, upstream.silent) as station:
        talk = await station.ask(STREAM)
        held, outcomes, status = await station.settled(), await station.outcomes(), await station.status()
    failures = status["backends"][0]["reported_failures"]
    return talk.as_row() | {"held_after": held, "outcomes": outcomes, "reported_failures": failures}


@case(
    "LIFE-15",
    "a backend that refuses connections: beside a good one, and alone",
    {
        "beside": {"each": 200, "count": 10},
        "alone": {"status": 503, "retry_after": {"matches": r"^\d+$"}, "seconds": {"at_most": 0.1}},
    },
    why="the other backend serves; without one 503 with Retry-After, in under 100 ms",
    alone=True,
)
async def _refuses() -> dict[str, Any]:
    async with upstream.Upstream() as second, start(backends=["", second.url]) as station:
        await second.stop()
        beside = [(await station.ask(chat())).answer.status for _ in range(10)]
    async with start() as station:
        await station.upstream.stop()
        talks = [await station.ask(chat()) for _ in range(5)]
    quickest = min(talks, key=lambda talk: talk.seconds_to_end)
    statuses = [talk.answer.status for talk in talks]
    alone = talks[0].as_row() | {"retry_after": talks[0].answer.header("retry-after")}
    return {"beside": beside, "alone": alone | {"seconds": round(quickest.seconds_to_end, 4), "statuses": statuses}}


@contextlib.contextmanager
def _full_backlog(port: int) -> Any:
    """A listening socket that answers no SYN, because its backlog is full."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind((wire.HOST, port))
    listening.listen(0)
    filling = [socket.socket() for _ in range(4)]
    for one in filling:
        one.setblocking(False)
        one.connect_ex((wire.HOST, port))
    try:
        yield
    finally:
        for one in [*filling, listening]:
            one.close()


@case(
    "LIFE-16",
    "a backend that answers no SYN",
    {"status": {"one_of": [502, 503, 504]}, "attempts_s": {"at_most": 2.3}, "held_after": FREE},
    why="a connection is given up after 2 s; the ticket goes back once",
)
async def _blackhole() -> dict[str, Any]:
    async with start() as station:
        await station.upstream.stop()
        with _full_backlog(station.upstream.port):
            talk = await station.ask(chat(), 15.0)
            failures = (await station.status())["backends"][0]["reported_failures"]
        held = await station.settled()
    attempts = max(1, failures)
    return talk.as_row() | {
        "attempts": attempts,
        "attempts_s": round(talk.seconds_to_end / attempts, 2),
        "held_after": held,
    }


async def _five_hundred(seen: Seen, connection: Connection) -> None:
    await connection.answer(b'{"error":{"message":"broken"}}', "500 Internal Server Error")


@case(
    "LIFE-19",
    "an engine that answers 500 ten times, then is well again",
    {"first_status": 500, "opened": True, "refused": 503, "tried_again": True, "served_after": 200},
    why="the backend is left alone for a while, tried again, and used again",
)
async def _breaker() -> dict[str, Any]:
    config = {"probes": {"interval": "200ms", "scrape_metrics": False}}
    async with start(config, _five_hundred) as station:
        station.upstream.probes = None
        statuses = [(await station.ask(chat())).answer.status for _ in range(10)]
        state = (await station.status())["backends"][0]["up"]
        refused = await station.ask(chat())
        count = len(station.upstream.requests)
        station.upstream.script = upstream.healthy

        async def look() -> int:
            return (await station.ask(chat())).answer.status

        served = await eventually(look, lambda status: status == 200, 5.0)
        tried = len(station.upstream.requests) > count
    return {
        "first_status": statuses[0],
        "statuses": statuses,
        "opened": not state,
        "refused": refused.answer.status,
        "tried_again": tried,
        "served_after": served,
    }
