"""observe and passthrough through a whole proxy: forwarded at once and untouched, and what is said about it."""

import asyncio
import json

import aiohttp
import pytest
from clients import chat, request
from conftest import running, settings_for, until
from engines import Engine, chat_answer, gated, healthy, wants_usage

from proxy.policy.limits import Mode
from proxy.policy.outcome import Outcome
from proxy.policy.shadow import Decision
from proxy.wire.facts import Endpoint

ONE = {"concurrency": 1, "adaptive": {"enabled": False}}


async def metric(proxy, start):
    url = f"http://{proxy.app.admin_listen}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        lines = [line for line in (await answer.text()).splitlines() if line.startswith(start)]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines) if float(value)}


async def test_observe_forwards_more_than_may_run_and_counts_who_would_have_waited(start):
    gate = asyncio.Event()
    engine, proxy = await start(gated(gate), mode="observe", scheduling=ONE)
    clients = [await proxy.client() for _ in range(3)]
    for client in clients:
        client.send(request(chat()))
    await engine.request(2)
    assert proxy.held()[0] == 3
    assert proxy.held()[2] == 0
    gate.set()
    assert [(await client.answer()).body for client in clients] == [chat_answer()] * 3
    await proxy.ended(2)
    decisions = sorted(exchange.would.decision for exchange in proxy.finished)
    assert decisions == [Decision.QUEUE, Decision.QUEUE, Decision.SEND]
    assert proxy.held() == (0, 0, 0)
    assert proxy.app.admission.paper.shadow.dispatcher.snapshot(0.0).live == 0
    assert await metric(proxy, "lanewise_would_total") == {
        'lanewise_would_total{decision="send",lane="short"}': 1.0,
        'lanewise_would_total{decision="queue",lane="short"}': 2.0,
    }


async def test_observe_counts_who_would_have_expired_while_the_real_request_goes_on(start):
    gate = asyncio.Event()
    lanes = {"short": {"ttft_slo": "60ms"}}
    _engine, proxy = await start(
        gated(gate), mode="observe", scheduling={**ONE, "drop_factor": 1, "deadline_margin": "1ms"}, lanes=lanes
    )
    clients = [await proxy.client() for _ in range(2)]
    for client in clients:
        client.send(request(chat()))
    await until(lambda: sum(lane.dropped for lane in proxy.app.admission.paper.shadow.dispatcher.snapshot(0.0).lanes))
    gate.set()
    assert [(await client.answer()).status for client in clients] == [200, 200]
    await proxy.ended(1)
    assert {exchange.would.decision for exchange in proxy.finished} == {Decision.SEND, Decision.EXPIRE}
    assert {exchange.outcome for exchange in proxy.finished} == {Outcome.OK}


async def test_observe_forwards_the_body_as_it_came_and_says_which_cap_would_have_bitten(start):
    output = {"ceiling": 10}
    engine, proxy = await start(healthy, mode="observe", lanes={"short": {"output": output}})
    body = json.dumps(chat(max_tokens=500, stream=True)).encode()
    got = await (await proxy.client()).post(body)
    assert got.whole
    assert got.header("x-lanewise-max-tokens-clamped") is None
    received = await engine.request()
    assert received.body == body
    assert not wants_usage(received)
    exchange = await proxy.ended()
    assert (exchange.would.cap, exchange.would.cap_rule, exchange.output_cap_sent) == (10, "ceiling", None)
    assert 'lanewise_would_total{decision="cap",lane="short"}' in await metric(proxy, "lanewise_would_total")


@pytest.mark.parametrize("mode", ["observe", "passthrough"])
async def test_what_could_never_fit_is_for_the_engine_to_say(start, mode):
    limits = {"prompt_tokens": "3000"}
    engine, proxy = await start(healthy, mode=mode, limits=limits, lanes={"short": {"max_prompt_tokens": 2048}})
    got = await (await proxy.client()).post(chat("word " * 20_000))
    assert got.status == 200
    assert len(engine.requests) == 1
    exchange = await proxy.ended()
    assert (exchange.would and exchange.would.decision) == (Decision.TOO_LONG if mode == "observe" else None)
    assert exchange.lane == "long"


@pytest.mark.parametrize(("mode", "decision"), [("observe", Decision.INVALID), ("passthrough", None)])
async def test_what_cannot_be_understood_is_for_the_engine_to_say(start, mode, decision):
    async def picky(received, peer):
        peer.answer(b'{"error": "no JSON"}', status=b"400 Bad Request")

    engine, proxy = await start(picky, mode=mode)
    got = await (await proxy.client()).post(b"{not json")
    assert (got.status, got.body) == (400, b'{"error": "no JSON"}')
    assert (await engine.request()).body == b"{not json"
    exchange = await proxy.ended()
    assert (exchange.would and exchange.would.decision) == decision


async def test_under_enforce_the_same_is_refused_here(start):
    engine, proxy = await start(healthy)
    assert (await (await proxy.client()).post(b"{not json")).status == 400
    assert engine.requests == []


async def test_passthrough_holds_nobody_and_decides_nothing(start):
    gate = asyncio.Event()
    engine, proxy = await start(gated(gate), mode="passthrough", scheduling=ONE)
    clients = [await proxy.client() for _ in range(3)]
    for client in clients:
        client.send(request(chat()))
    await engine.request(2)
    gate.set()
    assert [(await client.answer()).status for client in clients] == [200] * 3
    await proxy.ended(2)
    assert [exchange.would for exchange in proxy.finished] == [None] * 3
    assert proxy.app.admission.paper is None
    assert await metric(proxy, "lanewise_would_total") == {}
    seen = await metric(proxy, "lanewise_mode")
    assert seen == {'lanewise_mode{mode="passthrough"}': 1.0}
    assert 'lanewise_request_duration_seconds_count{lane="short",model="other"}' in await metric(
        proxy, "lanewise_request_duration_seconds_count"
    )


@pytest.mark.parametrize("mode", ["observe", "passthrough"])
async def test_without_a_backend_nobody_can_be_let_pass(start, mode):
    engine, proxy = await start(healthy, mode=mode)
    await engine.stop()
    proxy.app.admission.set_backend_up("engine0", up=False)
    got = await (await proxy.client()).post(chat())
    assert (got.status, got.json["error"]["code"]) == (503, "no_backend")
    exchange = await proxy.ended()
    assert exchange.would is None or exchange.would.decision is Decision.REJECT


async def test_a_backend_that_cannot_be_reached_is_passed_over_at_once(start):
    dead, alive, proxy = await start(healthy, healthy, mode="observe", scheduling=ONE)
    await dead.stop()
    client = await proxy.client()
    for number in range(3):
        assert (await client.post(chat())).status == 200
        await proxy.ended(number)
    assert len(alive.requests) == 3
    assert proxy.held() == (0, 0, 0)


async def test_a_trusted_peer_passes_one_request_by_the_queue(start):
    gate = asyncio.Event()
    engine, proxy = await start(gated(gate), scheduling=ONE, trusted_networks="127.0.0.0/8")
    waiting, passing = [await proxy.client() for _ in range(2)], await proxy.client()
    for client in waiting:
        client.send(request(chat()))
    await until(lambda: proxy.held()[2] == 1)
    passing.send(request(chat(), x_lanewise_mode="passthrough"))
    received = await engine.request(1)
    assert received.header("x-lanewise-mode") is None
    gate.set()
    for client in (*waiting, passing):
        assert (await client.answer()).status == 200
    await proxy.ended(2)
    assert sorted(exchange.mode for exchange in proxy.finished) == [Mode.ENFORCE, Mode.ENFORCE, Mode.PASSTHROUGH]
    assert proxy.held() == (0, 0, 0)


async def test_a_trusted_peer_can_ask_to_be_scheduled_while_the_rest_is_observed(start):
    gate = asyncio.Event()
    engine, proxy = await start(gated(gate), mode="observe", scheduling=ONE, trusted_networks="127.0.0.0/8")
    clients = [await proxy.client() for _ in range(2)]
    clients[0].send(request(chat()))
    await engine.request()
    clients[1].send(request(chat(), x_lanewise_mode="enforce"))
    await until(lambda: proxy.held()[2] == 1)
    assert len(engine.requests) == 1
    gate.set()
    for client in clients:
        assert (await client.answer()).status == 200
    await proxy.ended(1)
    assert proxy.held() == (0, 0, 0)


async def test_a_mode_that_does_not_exist_is_answered_in_the_words_of_the_endpoint(start):
    _engine, proxy = await start(healthy, trusted_networks="127.0.0.0/8")
    got = await (await proxy.client()).post(chat(), path="/v1/messages", x_lanewise_mode="dry-run")
    assert (got.status, json.loads(got.body)["type"]) == (400, "error")
    assert (await proxy.ended()).endpoint is Endpoint.MESSAGES


async def test_anybody_else_chooses_nothing(start):
    _engine, proxy = await start(healthy, trusted_networks="10.0.0.0/8")
    got = await (await proxy.client()).post(b"{not json", x_lanewise_mode="passthrough")
    assert got.status == 400
    assert (await proxy.ended()).mode is Mode.ENFORCE


async def test_engine_administration_stays_out_of_reach_in_every_mode(start):
    engine, proxy = await start(healthy, mode="passthrough", trusted_networks="127.0.0.0/8")
    for path in ("/sleep", "/v1/load_lora_adapter", "/metrics"):
        assert (await (await proxy.client()).post(chat(), path)).status == 404
    assert engine.requests == []


async def test_records_say_what_would_have_been_done(tmp_path):
    async with Engine(healthy) as engine:
        recorder = {"enabled": True, "directory": str(tmp_path)}
        async with running(settings_for(engine, mode="observe", recorder=recorder)) as proxy:
            await (await proxy.client()).post(chat())
            await proxy.ended()
            config = proxy.app.in_force.sha
    [file] = tmp_path.glob("trace-*.jsonl")
    [record] = map(json.loads, file.read_text().splitlines())
    assert (record["mode"], record["would"], record["would_wait_s"]) == ("observe", "send", 0.0)
    assert record["config"] == config
