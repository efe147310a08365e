"""Two proxies that share their limits in a real Redis, between scripted engines and clients that speak bytes."""

import asyncio
import json
import logging
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from clients import chat, request
from conftest import running as started
from conftest import settings_for
from engines import PATIENCE_S, Engine, gated, healthy
from redisserver import RedisServer

from proxy.app import StartError, build
from proxy.metrics.exposition import render_at_once
from proxy.policy.leases.member import State
from proxy.settings import Settings
from proxy.statuspage import page

LOOPS = {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def server():
    async with RedisServer() as one:
        yield one


@pytest.fixture
async def begin(server):
    """Start one engine and some proxies in front of it: `engine, *proxies = await begin(2, script, **sections)`."""
    async with AsyncExitStack() as stack:

        async def start(count, script=healthy, **sections):
            engine = await stack.enter_async_context(Engine(script))
            settings = settings_for(engine, **shared(server), **sections)
            return (engine, *[await stack.enter_async_context(started(settings)) for _ in range(count)])

        yield start


def shared(server, **more):
    return {
        "share": "1/2",
        "sharing": {"store": server.url, "lease": "600ms", "timeout": "100ms", "recovery": "0s"} | more,
        "scheduling": {"drop_factor": "never", "concurrency": 4, "adaptive": {"enabled": False}},
        "installments": "off",
    }


async def until(condition):
    async with asyncio.timeout(2 * PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


def in_state(state, *proxies):
    return lambda: all(one.app.keeper.member.state is state for one in proxies)


async def ask(running, times):
    clients = [await running.client() for _ in range(times)]
    for client in clients:
        client.send(request(chat(stream=True)))
    return clients


async def test_one_proxy_uses_what_the_other_does_not(server, begin):
    gate = asyncio.Event()
    one, first, second = await begin(2, gated(gate))
    await until(in_state(State.JOINED, first, second))
    clients = await ask(first, 6)
    await until(lambda: first.held()[0] == 4)
    clients += await ask(second, 1)
    await until(lambda: second.held()[2] == 1)
    assert len(one.requests) == 4
    gate.set()
    for client in clients:
        assert (await client.answer()).status == 200
    assert len(one.requests) == 7
    await until(lambda: first.held() == second.held() == (0, 0, 0))


async def test_without_the_store_it_keeps_to_its_share_and_says_so(server, begin, caplog):
    caplog.set_level(logging.INFO, "lanewise")
    gate = asyncio.Event()
    _, running = await begin(1, gated(gate))
    await until(in_state(State.JOINED, running))
    server.freeze()
    await until(in_state(State.DEGRADED, running))
    clients = await ask(running, 4)
    await until(lambda: running.held() == (2, running.held()[1], 2))
    sharing = json.loads(json.dumps(running.app.status.document()["sharing"]))
    assert (sharing["state"], sharing["share"]) == ("degraded", "1/2")
    assert "degraded, 1/2" in page(running.app.status.document(), "en", 1.0)
    assert "the store is lost" in caplog.text
    text = render_at_once(running.app.metrics.families()).decode()
    assert "lanewise_shared_state_up 0.0" in text
    assert "lanewise_shared_state_fallback_total 1.0" in text
    server.thaw()
    await until(in_state(State.JOINED, running))
    await until(lambda: running.held()[0] == 4)
    gate.set()
    for client in clients:
        assert (await client.answer()).status == 200


async def test_it_starts_with_its_share_where_there_is_no_store(server, begin):
    server.kill()
    gate = asyncio.Event()
    _, running = await begin(1, gated(gate))
    assert running.app.keeper.member.state is State.DEGRADED
    clients = await ask(running, 3)
    await until(lambda: running.held()[0] == 2)
    await server.start()
    await until(lambda: running.held()[0] == 3)
    gate.set()
    for client in clients:
        assert (await client.answer()).status == 200


async def test_the_store_is_asked_for_far_less_than_every_request(server, begin):
    _, running = await begin(1)
    await until(in_state(State.JOINED, running))
    [client] = await ask(running, 1)
    await client.answer()
    before = running.app.keeper.requests
    for _ in range(100):
        assert (await client.post(chat(stream=True))).status == 200
    assert running.app.keeper.requests - before < 50


async def test_a_tenants_sequences_are_shared_too(server, begin):
    gate = asyncio.Event()
    tenants = {
        "trusted_networks": ["127.0.0.0/8"],
        "tenants": {"by": "header", "named": [{"name": "acme", "sequences": 1}]},
    }
    _, first, second = await begin(2, gated(gate), **tenants)
    await until(in_state(State.JOINED, first, second))
    clients = [await first.client(), await second.client()]
    for client in clients:
        client.send(request(chat(stream=True), **{"x-tenant-id": "acme"}))
    await until(lambda: first.held()[0] + second.held()[0] == 1 and first.held()[2] + second.held()[2] == 1)
    gate.set()
    for client in clients:
        assert (await client.answer()).status == 200


async def test_a_proxy_that_stops_gives_back_what_it_held(server, begin):
    _, first, second = await begin(2)
    await until(in_state(State.JOINED, first, second))
    await until(lambda: second.app.keeper.member.members == 2)
    await first.app.keeper.close()
    await until(lambda: second.app.keeper.member.members == 1)
    assert second.app.keeper.member.state is State.JOINED


def test_a_store_without_its_client_is_refused_at_the_start(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    settings = Settings.model_validate(
        {"backends": ["http://127.0.0.1:1"], "share": "1/2", "sharing": {"store": "redis://127.0.0.1:1/0"}}
    )
    with pytest.raises(StartError, match=r"pip install 'lanewise\[redis\]'"):
        build(settings)


async def test_an_answer_that_nobody_can_read_counts_as_none_and_the_proxy_asks_on(begin, monkeypatch):
    async def nonsense(_request):
        return {"hello": "stranger"}

    _, running = await begin(1)
    await until(in_state(State.JOINED, running))
    store = running.app.keeper._store
    with monkeypatch.context() as patched:
        patched.setattr(store, "sync", nonsense)
        await until(in_state(State.DEGRADED, running))
        assert "cannot be read" in running.app.keeper.error
    await until(in_state(State.JOINED, running))
    assert running.app.keeper.error == ""
