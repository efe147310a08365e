"""The lifecycle cases of odd answers: what is not HTTP, what is none of our business, and streams cut anywhere."""

import asyncio
import gzip
import random
from typing import Any

from tests.faults import upstream, wire
from tests.faults.bodies import RECORDED
from tests.faults.case import case
from tests.faults.lifecycle import FREE, STREAM, scripted, shown, streamed
from tests.faults.station import POOL, trace_rows
from tests.faults.upstream import DONE, Connection, Script, Seen, chat_events, piece
from tests.faults.wire import chat


def passed_whole(identity: str, given: str, script: Script, wanted: dict[str, Any], document: Any = STREAM) -> None:
    """Add a case of an odd answer that is the client's business."""

    async def observe() -> dict[str, Any]:
        return shown(await streamed(script, document=document))

    case(identity, given, {"complete": True, "held_after": FREE, "traceback": False} | wanted)(observe)


async def _html(seen: Seen, connection: Connection) -> None:
    await connection.answer(b"<html>hello</html>", content_type="text/html")


async def _json_error(seen: Seen, connection: Connection) -> None:
    await connection.answer(b'{"error":{"message":"too long","code":400}}', "400 Bad Request")


async def _sse(seen: Seen, connection: Connection) -> None:
    await connection.head()
    for item in chat_events():
        await connection.chunk(item)
    await connection.send(b"0\r\n\r\n")


async def _hints(seen: Seen, connection: Connection) -> None:
    await connection.send(b"HTTP/1.1 103 Early Hints\r\nlink: </style.css>; rel=preload\r\n\r\n")
    await upstream.healthy(seen, connection)


passed_whole(
    "LIFE-20", "an HTML page with status 200", _html, {"status": 200, "type": "text/html", "body": "<html>hello</html>"}
)
passed_whole(
    "LIFE-21",
    "a JSON error where a stream was asked for",
    _json_error,
    {"status": 400, "type": "application/json", "body": {"contains": "too long"}},
)
passed_whole(
    "LIFE-22",
    "a stream where none was asked for",
    _sse,
    {"status": 200, "type": {"contains": "event-stream"}, "done_marker": True},
    chat(),
)
passed_whole("LIFE-23", "103 before 200", _hints, {"status": 200, "done_marker": True})

_MARK = b"bytes-of-the-engine"
_BODY = b'{"mark":"bytes-of-the-engine"}'
_NONSENSE = {
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 30\r\n\r\n" + _BODY,
    "a length and chunks": b"HTTP/1.1 200 OK\r\ncontent-length: 30\r\ntransfer-encoding: chunked\r\n\r\n1e\r\n"
    + _BODY
    + b"\r\n0\r\n\r\n",
    "garbage": _MARK + b" \x00\x01\x02 this is no HTTP\r\n\r\n",
    "CR in a header": b"HTTP/1.1 200 OK\r\nx-a: b\rc\r\ncontent-length: 30\r\n\r\n" + _BODY,
    "a header of 20 kB": b"HTTP/1.1 200 OK\r\nx-a: " + b"a" * 20_000 + b"\r\ncontent-length: 30\r\n\r\n" + _BODY,
}


@case(
    "LIFE-24",
    "answers that are no HTTP: " + ", ".join(_NONSENSE),
    {name: {"status": 502, "complete": True, "echoed": False, "held_after": FREE} for name in _NONSENSE},
    why="502 with words of our own; not a byte of the engine's",
)
async def _nonsense() -> dict[str, Any]:
    found = {}
    for name, data in _NONSENSE.items():
        got = await streamed(upstream.raw(data), document=chat())
        echoed = _MARK in got["raw_body"]
        found[name] = {key: got[key] for key in ("status", "complete", "held_after", "outcomes")} | {"echoed": echoed}
    return found


async def _answer_with(extra: bytes, body: bytes = b'{"a":1}') -> wire.Answer:
    async def script(seen: Seen, connection: Connection) -> None:
        await connection.answer(body, extra=extra)

    async with scripted(script) as station:
        return (await station.ask(chat())).answer


@case("LIFE-25", "a compressed answer", {"status": 200, "coding_fits_body": True})
async def _compressed() -> dict[str, Any]:
    answer = await _answer_with(b"content-encoding: gzip\r\n", gzip.compress(b'{"a":1}'))
    packed = answer.header("content-encoding") == "gzip"
    plain = gzip.decompress(answer.body) if packed else answer.body
    return {"status": answer.status, "still_packed": packed, "coding_fits_body": plain == b'{"a":1}'}


@case("LIFE-26", "Set-Cookie twice", {"cookies": ["a=1; Path=/", "b=2"]})
async def _cookies() -> dict[str, Any]:
    answer = await _answer_with(b"set-cookie: a=1; Path=/\r\nset-cookie: b=2\r\n")
    return {"cookies": answer.all("set-cookie")}


@case("LIFE-27", "a field that Connection names", {"x_foo": None, "x_bar": "2", "connection": None})
async def _named() -> dict[str, Any]:
    answer = await _answer_with(b"connection: X-Foo\r\nx-foo: 1\r\nx-bar: 2\r\n")
    return {name.replace("-", "_"): answer.header(name) for name in ("x-foo", "x-bar", "connection")}


def _script_of(data: list[bytes], gap_s: float = 0.0) -> Script:
    async def script(seen: Seen, connection: Connection) -> None:
        await connection.head()
        for part in data:
            await connection.chunk(part)
            await asyncio.sleep(gap_s)
        await connection.send(b"0\r\n\r\n")

    return script


async def recorded_stream(parts: list[bytes], script: Script | None = None) -> dict[str, Any]:
    """Relay a stream; say whether its bytes are the same, and what the trace recorded of it."""
    async with scripted(script or _script_of(parts), RECORDED) as station:
        before = len(await trace_rows(station, 0))
        talk = await station.ask(STREAM)
        rows = (await trace_rows(station, before + 1))[before:]
        held = await station.settled()
        logged = station.log
    row = rows[0] if rows else {}
    keys = (
        "outcome",
        "prompt_tokens",
        "output_tokens",
        "output_source",
        "first_token_s",
        "last_token_s",
        "finish_reason",
    )
    return {
        "status": talk.answer.status,
        "complete": talk.answer.complete,
        "bytes_equal": talk.answer.body == b"".join(parts),
        "held_after": held,
        "traceback": "Traceback" in logged,
        "trace": {key: row.get(key) for key in keys},
    }


_SAME = {"status": 200, "complete": True, "bytes_equal": True, "held_after": FREE, "traceback": False}
_OK = {"outcome": "ok"}


def relayed(identity: str, given: str, parts: list[bytes], trace: dict[str, Any], why: str = "") -> None:
    """Add a case of an odd stream that must arrive byte for byte."""

    async def observe() -> dict[str, Any]:
        return await recorded_stream(parts)

    case(identity, given, _SAME | {"trace": trace}, why=why)(observe)


@case(
    "LIFE-28",
    "events of 300 kB and of 3 MB",
    {"each_size": {"each": _SAME | {"trace": _OK}, "count": 2}, "memory_grew_mb": {"at_most": 40}},
)
async def _long_event() -> dict[str, Any]:
    async with POOL.borrow(RECORDED) as station:
        memory = station.process.rss_mb
    streams = ([piece("x" * size), piece(None, "stop"), DONE] for size in (300_000, 3_000_000))
    found = [await recorded_stream(parts) for parts in streams]
    async with POOL.borrow(RECORDED) as station:
        return {"each_size": found, "memory_grew_mb": round(station.process.rss_mb - memory, 1)}


@case(
    "LIFE-29",
    "a stream cut into segments at 20 seeded random positions, its first token 0.2 s after its first event",
    {"each_cut": {"each": _SAME, "count": 6}, "first_token_s": {"each": {"at_least": 0.2, "at_most": 1.0}}},
)
async def _segments() -> dict[str, Any]:
    parts = [piece(None, role=True), *chat_events(8)[1:]]
    wire_bytes = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    role_ends = len(b"%x\r\n%b\r\n" % (len(parts[0]), parts[0]))
    found = []
    for seed in range(6):
        dice = random.Random(seed)
        places = sorted({role_ends, *(dice.randrange(1, len(wire_bytes)) for _ in range(20))})

        async def script(seen: Seen, connection: Connection, places: list[int] = places) -> None:
            await connection.head()
            for left, right in zip([0, *places], [*places, len(wire_bytes)], strict=True):
                await connection.send(wire_bytes[left:right])
                await asyncio.sleep(0.2 if right == role_ends else 0.002)

        found.append(await recorded_stream(parts, script))
    return {"each_cut": found, "first_token_s": [one["trace"]["first_token_s"] for one in found]}


_ODD = [
    b": ping\n\n",
    b"event: message\nid: 7\nretry: 1000\n" + piece("Hello"),
    b": another\r\n\r\n",
    piece(" you").replace(b', "choices"', b',\ndata: "choices"'),
    piece(" all"),
    piece(None, "stop"),
    DONE,
]
relayed(
    "LIFE-31",
    "comments, data in two lines, event, id and retry fields",
    _ODD,
    _OK | {"output_tokens": 3},
    "the bytes arrive as they are, and three events carried output",
)
relayed(
    "LIFE-32",
    "50 events in one segment",
    [b"".join([piece(None, role=True), *(piece(f" w{i}") for i in range(50)), piece(None, "stop"), DONE])],
    _OK | {"output_tokens": 50},
    "each counts, though all have one time",
)
relayed(
    "LIFE-33",
    "a usage event without choices",
    chat_events(3, usage=True),
    _OK | {"prompt_tokens": 7, "output_tokens": 3, "output_source": "usage"},
)
relayed(
    "LIFE-34",
    "an error event inside a stream that began with 200",
    [piece("Hello"), b'data: {"error":{"message":"out of memory","code":500}}\n\n', DONE],
    {"outcome": "backend_error"},
    "passed as it came, and counted as what it is",
)
