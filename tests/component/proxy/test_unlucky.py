"""Clients that leave at the worst moment, with everything switched on that holds something for them."""

import asyncio
import json

import pytest
from clients import chat, request
from conftest import until
from engines import chat_answer, healthy

from proxy.backends import State

KEY = {"Authorization": "Bearer sk-somebody"}
EVERYTHING = {
    "scheduling": {"concurrency": 1, "adaptive": {"enabled": False}},
    "tenants": {"by": "key", "others": {"sequences": 1, "waiting_requests": 2, "tokens_per_minute": "1m"}},
    "priority": {"allowed": "anyone"},
    "repeats": {"duplicates": "reject"},
    "estimate": {"tokenize": "border", "near": 1.0, "timeout": "5s"},
    "lanes": {"short": {"max_prompt_tokens": 100}},
    "explain": {"header": "all"},
}
WORDS = "word " * 70


class Stage:
    """An engine that stops at one place, and goes on when told."""

    def __init__(self, place):
        self.place = place
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()

    async def stop(self, place):
        if place == self.place:
            self.reached.set()
            await self.go_on.wait()

    async def script(self, received, peer):
        if received.path == "/tokenize":
            await self.stop("tokenize")
            peer.answer(json.dumps({"count": 90, "max_model_len": 9999, "tokens": [5] * 90}).encode())
            return
        await self.stop("prefill")
        if self.place != "decode":
            await healthy(received, peer)
            return
        peer.stream_head()
        peer.chunk(b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n')
        await self.stop("decode")
        peer.chunk(b"data: [DONE]\n\n")
        peer.send(b"0\r\n\r\n")


def tenants(proxy):
    return [(one.waiting_requests, one.waiting_tokens, one.running) for one in proxy.app.admission.snapshot().tenants]


def nothing_held(proxy):
    app = proxy.app
    return (
        proxy.held() == (0, 0, 0)
        and all(held == (0, 0, 0) for held in tenants(proxy))
        and len(app.repeats._in_flight) == 0
        and app.exact._running == 0
        and app.admission.live == 0
        and app.corridor.active == 0
    )


@pytest.mark.parametrize("place", ["tokenize", "prefill", "decode"])
async def test_a_client_that_leaves_while_an_engine_is_asked_leaves_nothing_behind(start, place):
    stage = Stage(place)
    _engine, proxy = await start(stage.script, **EVERYTHING)
    client, again = await proxy.client(), await proxy.client()
    body = {**chat(WORDS), "stream": place == "decode"}
    client.send(request(body, X_Request_Id="same", **KEY))
    await stage.reached.wait()
    refused = await again.post(body, X_Request_Id="same", **KEY)
    assert refused.status == 409
    client.leave()
    await until(lambda: nothing_held(proxy))
    stage.place = "nowhere"
    stage.go_on.set()
    got = await again.post({**body, "stream": False}, X_Request_Id="same", x_lanewise_explain="1", **KEY)
    assert (got.status, got.body) == (200, chat_answer())
    await until(lambda: nothing_held(proxy))


async def test_a_client_that_leaves_while_it_waits_leaves_nothing_behind(start):
    stage = Stage("prefill")
    _engine, proxy = await start(stage.script, **EVERYTHING)
    clients = [await proxy.client() for _ in range(3)]
    for number, client in enumerate(clients):
        client.send(request({**chat(WORDS), "user": f"u{number}"}, **KEY))
        await until(lambda n=number: sum(proxy.held()[::2]) == n + 1)
    assert tenants(proxy) == [(2, 180, 1)]
    over = await (await proxy.client()).post({**chat(WORDS), "user": "one more"}, **KEY)
    assert (over.status, over.header("x-lanewise-reason")) == (429, "tenant_limit")
    for client in clients:
        client.leave()
    stage.place = "nowhere"
    stage.go_on.set()
    await until(lambda: nothing_held(proxy))
    assert (await (await proxy.client()).post(chat(WORDS), **KEY)).status == 200


async def test_a_body_that_never_ends_holds_nothing_of_its_sender(start):
    _engine, proxy = await start(healthy, **EVERYTHING)
    client = await proxy.client()
    client.send(request(chat(WORDS), **KEY)[:-5])
    await until(lambda: proxy.app.corridor.active == 1)
    assert tenants(proxy) == []
    client.leave()
    await until(lambda: nothing_held(proxy))


async def test_a_trial_whose_client_leaves_makes_room_for_the_next(start):
    """A backend in doubt gets one request at a time; one that ends without a word about it must not be the last."""
    asked = []

    async def script(received, peer):
        asked.append(peer)
        if len(asked) == 1:
            peer.answer(b"{}", status=b"500 Oops")
        elif len(asked) > 2:
            await healthy(received, peer)

    health = {"trip_after": 1, "trip_time": "1ms", "trip_time_at_most": "1ms", "slow_start": "1h"}
    _engine, proxy = await start(script, health=health, **{**EVERYTHING, "estimate": {}})
    first, trial, waiting = [await proxy.client() for _ in range(3)]
    assert (await first.post(chat(), **KEY)).status == 500
    state = lambda: proxy.app.backends.views()[0].state  # noqa: E731
    await until(lambda: state() is State.HALF_OPEN)
    trial.send(request(chat("trial"), **KEY))
    await until(lambda: len(asked) == 2)
    waiting.send(request(chat("next"), Authorization="Bearer sk-another"))
    await until(lambda: proxy.held()[2] == 1)
    trial.leave()
    assert (await waiting.answer()).status == 200
    assert state() is State.SLOW_START
    await until(lambda: nothing_held(proxy))
