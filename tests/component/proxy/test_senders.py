"""Tenants, classes, length policies, duplicates and early returns through a whole proxy."""

import asyncio
import json
import logging
from hashlib import sha256

import aiohttp
import pytest
from clients import Client, chat, request
from conftest import until
from engines import chat_answer, gated, healthy

from proxy.policy.outcome import Outcome, Reason

KEY = "sk-0123456789-secret"
ONE = {"concurrency": 1, "adaptive": {"enabled": False}}
ACME = {"name": "acme", "keys": [sha256(KEY.encode()).hexdigest()]}


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


async def admin(proxy, path):
    url = f"http://{proxy.app.admin_listen}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return await answer.text()


async def test_a_tenant_over_its_limit_gets_429_and_the_others_wait(start):
    gate = asyncio.Event()
    tenants = {"by": "key", "named": [{**ACME, "waiting_requests": 1}]}
    _engine, proxy = await start(gated(gate), scheduling=ONE, tenants=tenants)
    running, first, second, other = [await proxy.client() for _ in range(4)]
    running.send(request(chat(), **bearer("somebody")))
    await until(lambda: proxy.held()[0] == 1)
    first.send(request(chat(), **bearer(KEY)))
    await until(lambda: proxy.held()[2] == 1)
    got = await second.post(chat(), **bearer(KEY))
    assert (got.status, got.header("x-lanewise-reason")) == (429, "tenant_limit")
    assert 1 <= int(got.header("retry-after")) <= 15
    assert got.json["error"]["code"] == "tenant_limit"
    assert got.json["error"]["message"] == "tenant acme: 1 of its requests wait and at most 1 may"
    other.send(request(chat(), **bearer("somebody else")))
    await until(lambda: proxy.held()[2] == 2)
    gate.set()
    assert [(await one.answer()).status for one in (running, first, other)] == [200, 200, 200]
    await until(lambda: proxy.held() == (0, 0, 0))


async def test_no_key_is_ever_in_metrics_status_logs_or_what_is_kept(start, caplog):
    caplog.set_level(logging.DEBUG)
    _engine, proxy = await start(healthy, tenants={"by": "key", "named": [{**ACME, "tokens_per_minute": 1}]})
    client = await proxy.client()
    await client.post(chat(), **bearer("sk-unknown-key"))
    await client.post(chat(), x_api_key="sk-third-key")
    assert [(await client.post(chat(), **bearer(KEY))).status for _ in range(2)] == [200, 429]
    labels = [(await proxy.ended(n)).tenant for n in range(4)]
    assert labels[2:] == ["acme", "acme"]
    pages = [await admin(proxy, path) for path in ("/metrics", "/status.json", "/", "/config.json", "/explain.json")]
    metrics = pages[0]
    assert 'lanewise_tenant_requests_total{outcome="rejected",tenant="acme"} 1.0' in metrics
    assert f'lanewise_tenant_requests_total{{outcome="ok",tenant="{labels[0]}"}} 1.0' in metrics
    assert '"acme"' in pages[1]
    seen = "".join(pages) + caplog.text + repr(proxy.app) + repr(proxy.app.tenancy) + repr(proxy.app.repeats)
    for key in (KEY, "sk-unknown-key", "sk-third-key"):
        assert key not in seen
        assert sha256(key.encode()).hexdigest() not in seen


async def test_a_higher_class_goes_before_what_came_earlier(start):
    gate = asyncio.Event()
    engine, proxy = await start(gated(gate), scheduling=ONE, priority={"allowed": "anyone"})
    clients = [await proxy.client() for _ in range(4)]
    bodies = [{}, {}, {"priority": 3}, {"priority": -3}]
    for number, (client, more) in enumerate(zip(clients, bodies, strict=True)):
        client.send(request({**chat(), "user": f"u{number}", **more}))
        await until(lambda n=number: sum(proxy.held()[::2]) == n + 1)
    gate.set()
    for client in clients:
        assert (await client.answer()).status == 200
    assert [json.loads(one.body)["user"] for one in engine.requests] == ["u0", "u3", "u1", "u2"]
    assert json.loads(engine.requests[1].body)["priority"] == -3


async def test_a_length_policy_holds_for_its_model_and_tenant_and_says_so(start):
    rules = [
        {"models": ["m"], "output": {"ceiling": 64}},
        {"tenants": ["acme"], "prompt_tokens": 50, "output": {"total": 40}},
    ]
    engine, proxy = await start(healthy, tenants={"by": "key", "named": [ACME]}, length_policies=rules)
    client = await proxy.client()
    body = {**chat(), "model": "m", "max_tokens": 1000, "min_tokens": 500}
    got = await client.post(body)
    assert got.header("x-lanewise-max-tokens-clamped") == "1000->64"
    assert json.loads(engine.requests[0].body) == {**body, "max_tokens": 64, "min_tokens": 64}
    got = await client.post({**body, "n": 4}, **bearer(KEY))
    assert got.header("x-lanewise-max-tokens-clamped") == "1000->10"
    got = await client.post({**body, "messages": [{"role": "user", "content": "long " * 200}]}, **bearer(KEY))
    assert (got.status, got.json["error"]["code"], got.header("x-should-retry")) == (400, "too_long", "false")
    assert "and at most 50 are allowed here" in got.json["error"]["message"]
    assert len(engine.requests) == 2
    metrics = await admin(proxy, "/metrics")
    assert 'lanewise_output_caps_applied_total{lane="short",rule="ceiling"} 1.0' in metrics
    assert 'lanewise_output_caps_applied_total{lane="short",rule="total"} 1.0' in metrics


@pytest.mark.parametrize(
    ("path", "body", "lowered"),
    [
        ("/v1/chat/completions", {"messages": [], "max_completion_tokens": 900}, {"max_completion_tokens": 30}),
        (
            "/v1/chat/completions",
            {"messages": [], "thinking_token_budget": 900},
            {"thinking_token_budget": 29, "max_tokens": 30},
        ),
        ("/v1/completions", {"prompt": "x", "max_tokens": 900, "min_tokens": 90}, {"max_tokens": 30, "min_tokens": 30}),
        ("/v1/responses", {"input": "x", "max_output_tokens": 900}, {"max_output_tokens": 30}),
        (
            "/v1/messages",
            {"messages": [], "max_tokens": 900, "thinking": {"type": "enabled", "budget_tokens": 800}},
            {"max_tokens": 30, "thinking": {"type": "enabled", "budget_tokens": 29}},
        ),
    ],
)
async def test_each_dialect_is_limited_in_its_own_field(start, path, body, lowered):
    engine, proxy = await start(healthy, length_policies=[{"models": ["m"], "output": {"ceiling": 30}}])
    client = await proxy.client()
    document = {"model": "m", **body}
    if "messages" in document:
        document["messages"] = [{"role": "user", "content": "x"}]
    assert (await client.post(document, path)).status == 200
    assert json.loads(engine.requests[0].body) == {**document, **lowered}


# ---------------------------------------------------------------- requests that come twice


async def test_a_duplicate_is_refused_with_the_id_of_the_first_until_that_has_ended(start):
    gate = asyncio.Event()
    engine, proxy = await start(gated(gate), repeats={"duplicates": "reject"})
    first, second, other = [await proxy.client() for _ in range(3)]
    first.send(request(chat(), X_Request_Id="the-first", **bearer(KEY)))
    await engine.request(0)
    got = await second.post(chat(), **bearer(KEY))
    assert (got.status, got.header("x-lanewise-reason"), got.header("x-should-retry")) == (409, "duplicate", "false")
    assert got.header("retry-after") is None
    assert got.json["error"]["message"].startswith(
        "an identical request with the same key is queued or runs as the-first"
    )
    other.send(request(chat(), **bearer("another key")))
    await engine.request(1)
    gate.set()
    assert [(await one.answer()).body for one in (first, other)] == [chat_answer()] * 2
    await proxy.ended(2)
    assert (await second.post(chat(), **bearer(KEY))).status == 200
    refused = proxy.finished[0]
    assert (refused.outcome, refused.reason) == (Outcome.REJECTED, Reason.DUPLICATE)
    metrics = await admin(proxy, "/metrics")
    assert 'lanewise_duplicate_requests_total{action="rejected",lane="short"} 1.0' in metrics


async def test_duplicates_that_carry_the_id_of_the_first_are_refused_as_long_as_it_runs(start):
    """Clients that try again keep their request id."""
    gate = asyncio.Event()
    engine, proxy = await start(gated(gate), repeats={"duplicates": "reject"})
    first, again = await proxy.client(), await proxy.client()
    first.send(request(chat(), X_Request_Id="mine"))
    await engine.request(0)
    assert [(await again.post(chat(), X_Request_Id="mine")).status for _ in range(3)] == [409, 409, 409]
    gate.set()
    assert (await first.answer()).status == 200
    await proxy.ended(3)
    assert (await again.post(chat(), X_Request_Id="mine")).status == 200


async def test_a_client_that_left_is_no_first_any_more(start):
    gate = asyncio.Event()
    engine, proxy = await start(gated(gate), repeats={"duplicates": "reject"})
    first, second = await proxy.client(), await proxy.client()
    first.send(request(chat()))
    await engine.request(0)
    first.leave()
    await proxy.ended()
    gate.set()
    assert (await second.post(chat())).status == 200


@pytest.mark.parametrize(("sections", "counted"), [({"repeats": {"duplicates": "count"}}, 1), ({}, 0)])
async def test_duplicates_pass_where_they_are_only_counted_or_not_looked_for(start, sections, counted):
    gate = asyncio.Event()
    engine, proxy = await start(gated(gate), **sections)
    clients = [await proxy.client() for _ in range(2)]
    for client in clients:
        client.send(request(chat()))
    await engine.request(1)
    gate.set()
    assert [(await client.answer()).status for client in clients] == [200, 200]
    await proxy.ended(1)
    assert [exchange.duplicate for exchange in proxy.finished].count("observed") == counted


async def test_a_client_that_comes_back_too_early_is_told_to_stay_away_longer(start):
    gate = asyncio.Event()
    lanes = {"short": {"queue": {"requests": 1}}}
    engine, proxy = await start(gated(gate), scheduling=ONE, lanes=lanes)
    running, waiting, hasty = [await proxy.client() for _ in range(3)]
    running.send(request(chat()))
    await engine.request(0)
    waiting.send(request(chat()))
    await until(lambda: proxy.held()[2] == 1)
    told = [float((await hasty.post(chat(), **bearer(KEY))).header("retry-after-ms")) / 1000 for _ in range(4)]
    for said, expected in zip(told, (1, 2, 4, 8), strict=True):
        assert 0.75 * expected <= said + 0.001
        assert said <= 1.25 * expected
    sdk = await proxy.client()
    got = await sdk.post({**chat(), "user": "u"}, x_stainless_retry_count="1")
    assert 1.5 <= float(got.header("retry-after-ms")) / 1000 <= 2.5
    gate.set()
    assert [(await one.answer()).status for one in (running, waiting)] == [200, 200]
    assert [exchange.damped for exchange in proxy.finished[:5]] == [False, True, True, True, True]
    assert 'lanewise_early_returns_total{lane="short"} 4.0' in await admin(proxy, "/metrics")


async def test_the_same_request_from_another_address_is_another_client(start):
    gate = asyncio.Event()
    engine, proxy = await start(gated(gate), scheduling=ONE, lanes={"short": {"queue": {"requests": 1}}})
    running, waiting = [await proxy.client() for _ in range(2)]
    running.send(request(chat()))
    await engine.request(0)
    waiting.send(request(chat()))
    await until(lambda: proxy.held()[2] == 1)
    for number in range(1, 6):
        elsewhere = (f"127.0.0.{number}", 0)
        client = Client(*await asyncio.open_connection("127.0.0.1", proxy.port, local_addr=elsewhere))
        got = await client.post(chat(), **bearer(KEY))
        assert (got.status, float(got.header("retry-after-ms")) <= 1250) == (429, True)
        await client.close()
    gate.set()
    assert [(await one.answer()).status for one in (running, waiting)] == [200, 200]
    assert not any(exchange.damped for exchange in proxy.finished)


async def test_the_recorder_says_how_much_of_the_prompts_repeats(start, tmp_path):
    recorder = {"enabled": True, "directory": str(tmp_path), "block_tokens": 16}
    _engine, proxy = await start(healthy, recorder=recorder)
    client = await proxy.client()
    for end in ("a", "b"):
        words = "the same long beginning of a prompt " * 8 + end
        await client.post({"model": "m", "messages": [{"role": "user", "content": words}]})
    await proxy.ended(1)
    reuse = proxy.app._recorder.reuse
    await until(lambda: reuse.repeated + reuse.new >= 10)
    assert (reuse.repeated, reuse.new) == (4, 6)
    metrics = await admin(proxy, "/metrics")
    assert 'lanewise_prefix_blocks_total{result="repeated"} 4.0' in metrics
