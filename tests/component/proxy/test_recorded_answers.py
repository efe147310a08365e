"""What a real vLLM sent, byte for byte through the proxy; and what hostile clients send."""

import asyncio
import json
import re

import pytest
from clients import chat, request
from engines import Peer, Received, healthy, raw

from proxy.policy.outcome import Outcome

pytestmark = pytest.mark.shared

PATHS = {
    "chat": "/v1/chat/completions",
    "compl": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}


def recorded(shared, pattern):
    for file in sorted((shared / "fixtures").glob(pattern)):
        yield file.name.removesuffix(".resp"), file.read_bytes()


def dechunked(wire: bytes) -> bytes:
    body = b""
    while wire:
        line, _, rest = wire.partition(b"\r\n")
        size = int(line, 16)
        body, wire = body + rest[:size], rest[size + 2 :] if size else b""
    return body


async def through(start, name, answer, **fields):
    _engine, proxy = await start(raw(answer))
    path = PATHS[name.split("_")[0]]
    return await (await proxy.client()).post(chat(**fields), path), proxy


async def test_every_recorded_stream_passes_byte_for_byte(start, shared):
    seen = 0
    for name, answer in recorded(shared, "*.resp"):
        head, _, body = answer.partition(b"\r\n\r\n")
        if b"text/event-stream" not in head or name.split("_")[0] not in PATHS:
            continue
        seen += 1
        got, proxy = await through(start, name, answer, stream=True, stream_options={"include_usage": True})
        assert (got.status, got.wire, got.whole) == (200, body, True), name
        assert got.header("content-type") == "text/event-stream; charset=utf-8"
        exchange = await proxy.ended()
        died = name.startswith("death") or b'data: {"error"' in body
        assert exchange.outcome is (Outcome.BACKEND_ERROR if died else Outcome.OK), name
    assert seen > 10


async def test_every_recorded_answer_passes_byte_for_byte(start, shared):
    seen = 0
    for name, answer in recorded(shared, "*.resp"):
        head, _, body = answer.partition(b"\r\n\r\n")
        status = int(answer[9:12])
        if b"content-length" not in head or name.split("_")[0] not in PATHS:
            continue
        seen += 1
        got, proxy = await through(start, name, answer)
        assert (got.status, got.body, got.whole) == (status, body, True), name
        outcome = (await proxy.ended()).outcome
        assert outcome is (
            Outcome.OK if status == 200 else Outcome.INVALID if status < 429 else Outcome.BACKEND_ERROR
        ), name
    assert seen > 50


async def test_recorded_usage_that_only_we_asked_for_is_taken_out_and_nothing_else(start, shared):
    asked = (shared / "fixtures/chat_stream_usage.resp").read_bytes()
    body = dechunked(asked.partition(b"\r\n\r\n")[2])
    events = [event + b"\n\n" for event in body.split(b"\n\n") if event]
    rest = b"".join(event for event in events if b'"choices":[]' not in event)
    assert len(rest) < len(body)
    got, proxy = await through(start, "chat_stream_usage", asked, stream=True)
    assert (got.body, got.whole) == (rest, True)
    assert (await proxy.ended()).usage is not None


async def test_a_dead_engine_is_an_error_though_its_stream_ends_with_done(start, shared):
    answer = (shared / "fixtures/death_chat_stream.resp").read_bytes()
    assert answer.rstrip().endswith(b"0")
    got, proxy = await through(start, "chat_death", answer, stream=True, stream_options={"include_usage": True})
    assert b"[DONE]" in got.body
    exchange = await proxy.ended()
    assert exchange.outcome is Outcome.BACKEND_ERROR
    assert "EngineCore" in exchange.detail


NOT_OURS = {
    "RAW-052": "aiohttp's parser skips a chunk extension of any length without keeping it",
    "RAW-080": "aiohttp's parser takes two blanks in the request line for one",
    "RAW-075": "a request line without a version waits for its headers until the header deadline",
    "RAW-194": "engines answer HEAD with 405, and so does lanewise",
}


async def test_the_raw_corpus_is_served_or_refused_as_it_should_be(start, shared):
    engine, proxy = await start(healthy)
    rows = map(json.loads, (shared / "faults/faults.jsonl").read_text().splitlines())
    wrong = []
    for row in rows:
        if row["area"] != "http-framing" or row["id"] in NOT_OURS:
            continue
        data = (shared / "faults" / row["input"]).read_bytes()
        before = len(engine.requests)
        statuses, closed = await spoken(proxy, data, half_close=row["id"] in {"RAW-069", "RAW-195", "RAW-196"})
        if not as_expected(row["expected"].split(":")[0], statuses, closed, len(engine.requests) - before):
            wrong.append((row["id"], row["expected"], statuses, closed))
    assert wrong == []
    assert (await (await proxy.client()).post(chat())).status == 200


async def spoken(proxy, data: bytes, *, half_close: bool) -> tuple[list[int], bool]:
    """Send bytes; return the statuses that come back, and whether the proxy closed."""
    client = await proxy.client()
    client.send(data)
    if half_close:
        client.writer.write_eof()
    out = b""
    while True:
        try:
            piece = await asyncio.wait_for(client.reader.read(2**16), 0.05 if out else 2.0)
        except TimeoutError:
            closed = False
            break
        except ConnectionError:
            piece = b""
        if not piece:
            closed = True
            break
        out += piece
    client.leave()
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d\d\d) ", out)], closed


def as_expected(wanted: str, statuses: list[int], closed: bool, upstream: int) -> bool:
    first = statuses[0] if statuses else 0
    refused = 400 <= first < 500 or first in {501, 505}
    if any(status >= 500 and status not in {501, 505} for status in statuses):
        return False
    if wanted == "accept1":
        return statuses == [200] and upstream <= 1
    if wanted == "reject4xx+close":
        return refused and closed and upstream == 0
    if wanted == "accept1_or_reject" or wanted.endswith(("_or_accept", "_or_decode")):
        return (first == 200 and upstream <= 1) or (refused and upstream == 0)
    if wanted.startswith("no-upstream"):
        return upstream == 0
    if wanted == "allowlist":
        return refused and upstream == 0
    if wanted == "100-or-final":
        return first >= 100
    if wanted == "reject413_or_415":
        return first in {413, 415} and upstream == 0
    if wanted == "reject400":
        return first in {400, 415} and upstream == 0
    if wanted.startswith("reject4"):
        return first == int(wanted[6:9]) and upstream == 0
    if wanted == "accept2":
        return len(statuses) == 2
    if wanted == "accept-all-bounded":
        return set(statuses) == {200}
    return wanted == "accept1+400" and 400 in statuses


async def test_a_stream_cut_into_seeded_segments_is_byte_exact(start, shared):
    answer = (shared / "fixtures/chat_stream_usage.resp").read_bytes()
    body = answer.partition(b"\r\n\r\n")[2]

    async def script(received: Received, peer: Peer) -> None:
        step = 1 + 37 * received.nth
        for at in range(0, len(answer), step):
            peer.send(answer[at : at + step])
            await asyncio.sleep(0)

    _, proxy = await start(script)
    client = await proxy.client()
    for _ in range(4):
        client.send(request(chat(stream=True, stream_options={"include_usage": True})))
        assert (await client.answer()).wire == body
