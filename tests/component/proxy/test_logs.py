"""Whatever happens to a request, nothing of its text and no key is found anywhere but on its own way."""

import asyncio
import json

import aiohttp
import pytest
from clients import chat
from engines import chat_chunk, gated, healthy, raw, silent

from proxy.policy.outcome import Outcome

LOOPS = ("uvloop",)
SECRET = "canary7f3a9"
KEYS = {"Authorization": f"Bearer {SECRET}", "X_Api_Key": SECRET, "Api_Key": SECRET, "Cookie": f"s={SECRET}"}
PLACES = ("/metrics", "/status.json", "/history.json", "/config.json", "/", "/?lang=zh", "/explain.json?id=")
ERROR = json.dumps({"error": {"message": f"cannot take '{SECRET}'", "type": "x", "code": 400}}).encode()


def secret_chat(**more):
    return chat(f"say {SECRET}", stream=True, user=SECRET, **more)


def answer(status):
    return raw(
        b"HTTP/1.1 %d x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(ERROR)) + ERROR
    )


async def quoting_stream(request, peer):
    """Begin a stream, quote the prompt in it, and end it with an error frame that quotes it too."""
    peer.stream_head()
    peer.chunk(chat_chunk(SECRET))
    peer.chunk(b"data: " + ERROR + b"\n\n")
    peer.send(b"0\r\n\r\n")


async def cut_stream(request, peer):
    peer.stream_head()
    peer.chunk(chat_chunk(SECRET))
    peer.close()


SCRIPTS = {
    "ok": (healthy, Outcome.OK),
    "engine 400": (answer(400), Outcome.INVALID),
    "engine 500": (answer(500), Outcome.BACKEND_ERROR),
    "error frame": (quoting_stream, Outcome.BACKEND_ERROR),
    "cut": (cut_stream, Outcome.TRUNCATED),
    "garbage": (raw(f"{SECRET}\r\n\r\n".encode(), close=True), Outcome.BACKEND_ERROR),
    "bad head": (raw(f"HTTP/1.1 200 OK\r\n{SECRET}\x01 bad\r\n\r\n".encode(), close=True), Outcome.BACKEND_ERROR),
    "silent": (silent, Outcome.BACKEND_TIMEOUT),
}


async def everywhere(proxy, log):
    """All texts in which a secret must not be found, by place."""
    found = {}
    async with aiohttp.ClientSession(f"http://{proxy.app.admin_listen}") as session:
        for place in PLACES:
            address = place + proxy.finished[-1].request_id if place.endswith("=") else place
            async with session.get(address) as got:
                assert got.status == 200 or place.endswith("=")  # what has no lane is not kept for explanations
                found[place] = await got.text()
    return {**found, "log": log()}


@pytest.mark.parametrize("name", SCRIPTS)
async def test_an_engine_s_answer_brings_no_secret_into_log_or_pages(start, log, name):
    script, outcome = SCRIPTS[name]
    lanes = {"short": {"ttft_slo": "100ms", "first_byte_timeout": "200ms"}} if script is silent else {}
    engine, proxy = await start(script, access_log=True, lanes=lanes, retries={"ratio": 0.0, "floor": 0})
    client = await proxy.client()
    await client.post(secret_chat(), **KEYS)
    exchange = await proxy.ended()
    assert exchange.outcome is outcome
    assert SECRET in (await engine.request()).raw.decode("latin-1")  # it did reach the engine
    texts = await everywhere(proxy, log)
    assert [place for place, text in texts.items() if SECRET in text] == []
    line = next(line for line in texts["log"].splitlines() if "request ended" in line)
    assert exchange.request_id in line
    assert outcome.value in line
    assert "short" in line


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (secret_chat(max_tokens=SECRET), "/v1/chat/completions"),
        (f'{{"messages": "{SECRET}', "/v1/chat/completions"),
        (secret_chat(), f"/v1/{SECRET}"),
        (secret_chat(), f"/nowhere?key={SECRET}"),
        ({"model": "tiny", "messages": [{"role": SECRET, "content": [SECRET]}]}, "/v1/chat/completions"),
        (chat(f"{SECRET} " * 5000, stream=True), "/v1/chat/completions"),
    ],
)
async def test_what_is_refused_for_itself_brings_no_secret_into_log_or_pages(start, log, body, path):
    _engine, proxy = await start(healthy, access_log=True, limits={"prompt_tokens": 4096})
    client = await proxy.client()
    await client.post(body if isinstance(body, dict) else body.encode(), path, **KEYS)
    await proxy.ended()
    texts = await everywhere(proxy, log)
    if SECRET in path.partition("?")[0]:
        del texts["/explain.json?id="]  # tells which path it was that is not served
    assert [place for place, text in texts.items() if SECRET in text] == []
    assert "request ended" in texts["log"]


async def test_full_gone_expired_and_draining_bring_no_secret_into_log_or_pages(start, log):
    gate = asyncio.Event()
    lanes = {"short": {"queue": {"requests": 1}}}
    _engine, proxy = await start(gated(gate), access_log=True, scheduling={"concurrency": 1}, lanes=lanes)
    runs, waits, full = [await proxy.client() for _ in range(3)]
    sending = [asyncio.ensure_future(runs.post(secret_chat(), **KEYS))]
    async with asyncio.timeout(5):
        while proxy.held()[0] != 1:  # noqa: ASYNC110
            await asyncio.sleep(0)
        sending.append(asyncio.ensure_future(waits.post(secret_chat(), **KEYS)))
        while proxy.held()[2] != 1:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert (await full.post(secret_chat(), **KEYS)).status == 429
    waits.leave()
    await proxy.ended(1)
    proxy.app.corridor.draining = True
    assert (await full.post(secret_chat(), **KEYS)).status == 503
    gate.set()
    await sending[0]
    await asyncio.gather(*sending, return_exceptions=True)
    await proxy.ended(3)
    assert {one.outcome.value for one in proxy.finished} == {"ok", "rejected", "client_gone", "draining"}
    texts = await everywhere(proxy, log)
    assert [place for place, text in texts.items() if SECRET in text] == []
    assert all(word in texts["log"] for word in ("rejected", "client_gone", "draining", "queue_full"))


async def test_a_fault_of_ours_brings_no_secret_into_the_log(start, log, monkeypatch):
    _engine, proxy = await start(healthy)

    def broken(*_):
        raise ValueError(SECRET)

    monkeypatch.setattr(proxy.app.classification, "enter", broken)
    client = await proxy.client()
    assert (await client.post(secret_chat(), **KEYS)).status == 500
    text = log()
    assert SECRET not in text
    assert "ValueError" in text
    assert (await proxy.ended()).request_id in text


async def test_nothing_is_said_of_requests_that_went_well_unless_asked_for(start, log):
    _engine, proxy = await start(healthy)
    client = await proxy.client()
    assert (await client.post(secret_chat(), **KEYS)).status == 200
    assert (await proxy.ended()).request_id not in log()
