"""The rejection contract, row by row, through a whole proxy and in both dialects (docs/rejections.md)."""

import asyncio
import json

import pytest
from clients import Got, chat, request
from conftest import until
from engines import chat_chunk, healthy, silent

ONE = {"concurrency": 1, "adaptive": {"enabled": False}}
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
OPENAI = {400: "invalid_request_error", 409: "invalid_request_error", 413: "invalid_request_error"} | {
    429: "rate_limit_error",
    503: "service_unavailable",
}
ANTHROPIC = {400: "invalid_request_error", 409: "invalid_request_error", 413: "request_too_large"} | {
    429: "rate_limit_error",
    503: "overloaded_error",
}


def body(path, text="hi", **fields):
    """A request that the endpoint takes."""
    words = {"/v1/completions": {"prompt": text}, "/v1/responses": {"input": text}}
    plain = words.get(path) or {"messages": [{"role": "user", "content": text}], "max_tokens": 9}
    return {"model": "tiny", "stream": True, **plain, **fields}


async def full(start, path):
    """The lane is full."""
    _, proxy = await start(silent, scheduling=ONE, lanes={"short": {"queue": {"requests": 1}}})
    for number in range(2):
        (await proxy.client()).send(request(chat()))
        await until(lambda number=number: proxy.held()[0] + proxy.held()[2] == number + 1)
    return await (await proxy.client()).post(body(path), path)


async def full_of_tokens(start, path):
    """The lane holds as many prompt tokens as it may."""
    queue = {"queue": {"tokens": 300}, "max_prompt_tokens": 200}
    _, proxy = await start(silent, scheduling=ONE, lanes={"short": queue})
    for number in range(2):
        (await proxy.client()).send(request(chat("word " * 150)))
        await until(lambda number=number: proxy.held()[0] + proxy.held()[2] == number + 1)
    return await (await proxy.client()).post(body(path, "word " * 150), path)


async def late(start, path):
    """It waited, and can no longer meet its deadline."""
    _, proxy = await start(
        silent, scheduling={**ONE, "drop_factor": 1, "deadline_margin": "0s"}, lanes={"short": {"ttft_slo": "40ms"}}
    )
    (await proxy.client()).send(request(chat(stream=True)))
    await until(lambda: proxy.held()[0] == 1)
    return await (await proxy.client()).post(body(path), path)


async def nobody(start, path):
    """No backend is up."""
    _, proxy = await start(healthy)
    proxy.app.admission.set_backend_up("engine0", up=False)
    return await (await proxy.client()).post(body(path), path)


async def lost_while_waiting(start, path):
    """The last backend went down while it waited, and no deadline would take it."""
    _, proxy = await start(silent, scheduling=ONE)
    (await proxy.client()).send(request(chat()))
    await until(lambda: proxy.held()[0] == 1)
    client = await proxy.client()
    client.send(request(body(path), path))
    await until(lambda: proxy.held()[2] == 1)
    proxy.app.admission.set_backend_up("engine0", up=False)
    return await client.answer()


async def draining(start, path):
    """The proxy is shutting down."""
    _, proxy = await start(healthy)
    client = await proxy.client()
    proxy.app.corridor.draining = True
    return await client.post(body(path), path)


async def too_long(start, path):
    """The prompt fits no lane."""
    _, proxy = await start(healthy, limits={"prompt_tokens": 4000})
    return await (await proxy.client()).post(body(path, "word " * 9000), path)


async def over_a_cap(start, path):
    """The output asked for is over a ceiling whose action is reject."""
    _, proxy = await start(healthy, lanes={"short": {"output": {"ceiling": 100, "action": "reject"}}})
    field = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    return await (await proxy.client()).post(body(path, **{field: 5000}), path)


async def no_object(start, path):
    """The body is no JSON object."""
    _, proxy = await start(healthy)
    return await (await proxy.client()).post(b"[1, 2]", path)


async def too_large(start, path):
    """The body is over the limit."""
    _, proxy = await start(healthy, limits={"body": "1KiB"})
    return await (await proxy.client()).post(body(path, "x" * 2000), path)


async def twice(start, path):
    """An identical request is in flight, and duplicates are rejected."""
    _, proxy = await start(silent, repeats={"duplicates": "reject"})
    (await proxy.client()).send(request(body(path), path, Authorization="Bearer a"))
    await until(lambda: proxy.held()[0] == 1)
    return await (await proxy.client()).post(body(path), path, Authorization="Bearer a")


CONTRACT = [
    (full, 429, "queue_full", "queue_full", True),
    (full_of_tokens, 429, "queue_full", "queue_full", True),
    (late, 429, "queue_timeout", "queue_timeout", True),
    (nobody, 503, "no_backend", "no_backend", True),
    (lost_while_waiting, 503, "no_backend", "no_backend", True),
    (draining, 503, "draining", "draining", False),
    (too_long, 400, "too_long", "too_long", False),
    (over_a_cap, 400, "too_long", "too_long", False),
    (no_object, 400, "invalid", "invalid", False),
    (too_large, 413, "too_large", "invalid", False),
    (twice, 409, "duplicate", "duplicate", True),
]


def check_headers(got: Got, status: int, reason: str, lane: bool) -> None:
    assert got.status == status
    assert got.header("content-type") == "application/json"
    assert got.whole
    assert got.header("x-lanewise-reason") == reason
    assert (got.header("x-lanewise-lane") is not None) is lane
    assert got.header("x-request-id")
    if status in {429, 503}:
        assert got.header("retry-after").isdecimal()
        assert 1 <= int(got.header("retry-after")) <= 15
        assert 0 < int(got.header("retry-after-ms")) <= 1000 * int(got.header("retry-after"))
        assert got.header("x-should-retry") is None
    else:
        assert got.header("retry-after") is None
        assert got.header("x-should-retry") == "false"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize("row", CONTRACT, ids=lambda row: row[0].__name__)
async def test_each_situation_is_answered_as_the_contract_says(start, row, path):
    situation, status, code, reason, lane = row
    got = await situation(start, path)
    check_headers(got, status, reason, lane)
    document = got.json
    if path == "/v1/messages":
        assert document == {
            "type": "error",
            "error": {"type": ANTHROPIC[status], "message": document["error"]["message"]},
        }
    else:
        error = document["error"]
        assert (error["type"], error["code"], error["param"]) == (OPENAI[status], code, None)
    assert len(document["error"]["message"]) > 10


@pytest.mark.parametrize("path", PATHS)
async def test_every_endpoint_refuses_before_it_commits_a_status(start, path):
    """Never 200 for a request that waits: the head comes with the decision."""
    got = await late(start, path)
    assert (got.status, got.header("transfer-encoding")) == (429, None)


async def test_refusals_of_one_moment_do_not_all_come_back_in_one(start):
    _, proxy = await start(silent, scheduling=ONE, lanes={"short": {"queue": {"requests": 1}}})
    for number in range(2):
        (await proxy.client()).send(request(chat()))
        await until(lambda number=number: proxy.held()[0] + proxy.held()[2] == number + 1)
    client = await proxy.client()
    waits = {(await client.post(chat())).header("retry-after-ms") for _ in range(12)}
    assert len(waits) > 3


async def broken(_request, peer):
    """An engine whose stream ends without its end."""
    peer.stream_head()
    peer.chunk(chat_chunk("Hello"))
    peer.close()


@pytest.mark.parametrize("path", PATHS)
async def test_after_the_first_byte_an_error_event_and_an_unclean_close(start, path):
    _, proxy = await start(broken)
    client = await proxy.client()
    got = await client.post(body(path), path)
    assert (got.status, got.whole) == (200, False)
    assert b"[DONE]" not in got.body
    last = got.body.rstrip().rsplit(b"\n\n", 1)[-1]
    named, _, data = last.rpartition(b"data: ")
    document = json.loads(data)
    if path == "/v1/messages":
        assert (named, document["type"], document["error"]["type"]) == (b"event: error\n", "error", "api_error")
    else:
        assert document["error"]["code"] == "truncated"
    async with asyncio.timeout(5):
        assert await client.closed() == b""
