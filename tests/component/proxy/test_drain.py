"""One backend is taken out of service by order: nothing new goes there, what runs finishes, and it can serve again."""

import asyncio
import json

import aiohttp
import pytest
from clients import chat
from conftest import settings_for, until
from engines import gated, healthy

from proxy.control import give
from proxy.policy.outcome import Reason

SECTIONS = {"installments": "off"}


async def order(proxy, do, **what):
    return await asyncio.to_thread(give, proxy.app.admin_listen.port, {"do": do, **what}, 5.0)


async def seen(proxy, where):
    url = f"http://{proxy.app.admin_listen}{where}"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, await answer.text()


async def ask(proxy, **fields):
    return await (await proxy.client()).post(chat(**fields))


async def test_a_drained_backend_finishes_what_runs_and_gets_nothing_new(start):
    gate = asyncio.Event()
    first, second, proxy = await start(gated(gate), healthy, **SECTIONS)
    running = asyncio.ensure_future(ask(proxy, stream=True))
    await first.request()
    reply = await order(proxy, "drain_backend", backend="engine0")
    assert (reply["done"], reply["warnings"]) == (True, [])
    assert reply["sentences"] == ["backend engine0 gets nothing new; 1 request to finish there"]
    assert [(await ask(proxy)).status for _ in range(3)] == [200] * 3
    assert (len(first.requests), len(second.requests)) == (1, 3)
    gate.set()
    assert (await running).whole
    assert proxy.held() == (0, 0, 0)


async def test_a_drained_backend_is_shown_as_such_everywhere_until_it_serves_again(start):
    _, _, proxy = await start(healthy, healthy, **SECTIONS)
    await order(proxy, "drain_backend", backend="engine0")
    backend = json.loads((await seen(proxy, "/status.json"))[1])["backends"][0]
    assert (backend["state"], backend["drained"], backend["up"]) == ("drained", True, False)
    metrics = (await seen(proxy, "/metrics"))[1]
    assert 'lanewise_backend_state{backend="engine0",state="draining"} 1.0' in metrics
    assert 'lanewise_backend_up{backend="engine0"} 1.0' in metrics, "its probes still pass"
    listed = await order(proxy, "list_backends")
    assert listed["sentences"] == ["engine0: drained, 0/32 in flight", "engine1: up, 0/32 in flight"]
    assert [line["drained"] for line in listed["backends"]] == [True, False]
    assert (await order(proxy, "drain_backend", backend="engine0"))["sentences"] == [
        "backend engine0 is drained already"
    ]
    assert (await order(proxy, "resume_backend", backend="engine0"))["sentences"] == ["backend engine0 serves again"]
    assert (await order(proxy, "resume_backend", backend="engine0"))["sentences"] == ["backend engine0 is not drained"]
    assert 'lanewise_backend_state{backend="engine0",state="closed"} 1.0' in (await seen(proxy, "/metrics"))[1]


async def test_when_the_only_backend_is_drained_nobody_is_served_and_that_is_said(start):
    engine, proxy = await start(healthy, **SECTIONS)
    reply = await order(proxy, "drain_backend", backend="engine0")
    assert reply["warnings"] == ["every backend that could serve is drained: requests wait or are refused"]
    status, body = await seen(proxy, "/readyz")
    assert (status, json.loads(body)["reason"]) == (503, "every backend that could serve is drained")
    got = await ask(proxy)
    assert (got.status, got.json["error"]["code"], len(engine.requests)) == (503, Reason.NO_BACKEND.value, 0)
    assert (await (await proxy.client()).get("/v1/models")).status == 503
    await order(proxy, "resume_backend", backend="engine0")
    assert (await ask(proxy)).status == 200


async def test_a_probe_that_passes_does_not_end_the_order(start):
    _, proxy = await start(healthy, **SECTIONS)
    await order(proxy, "drain_backend", backend="engine0")
    await proxy.app.backends.probe("engine0")
    assert (await ask(proxy)).status == 503


async def test_the_order_survives_another_configuration_and_ends_with_its_backend(start):
    first, second, proxy = await start(healthy, healthy, **SECTIONS)
    await order(proxy, "drain_backend", backend="engine0")
    await proxy.app.change_to(settings_for(first, second, **SECTIONS, scheduling={"concurrency": 3}))
    assert [(await ask(proxy)).status for _ in range(3)] == [200] * 3
    assert len(first.requests) == 0
    await proxy.app.change_to(settings_for(second, first, **SECTIONS))
    assert [view.drained for view in proxy.app.backends.views()] == [True, False], "it is an order about the name"
    await ask(proxy)
    assert (len(first.requests), len(second.requests)) == (1, 3)


@pytest.mark.parametrize("verb", ["drain_backend", "resume_backend"])
async def test_a_backend_that_is_not_there_is_refused_with_the_names_there_are(start, verb):
    _, proxy = await start(healthy, **SECTIONS)
    reply = await order(proxy, verb, backend="engine9")
    assert (reply["done"], reply["sentences"]) == (False, ['no backend is called "engine9"; there are engine0'])


async def test_under_observe_a_drained_backend_gets_nothing_on_paper_either(start):
    first, _, proxy = await start(healthy, healthy, mode="observe", **SECTIONS)
    await order(proxy, "drain_backend", backend="engine0")
    assert (await ask(proxy)).status == 200
    assert len(first.requests) == 0
    await order(proxy, "drain_backend", backend="engine1")
    got = await ask(proxy)
    await until(lambda: len(proxy.finished) == 2)
    assert (got.status, proxy.finished[1].would.reason) == (503, Reason.NO_BACKEND)
