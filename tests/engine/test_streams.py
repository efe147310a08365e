"""Clients that leave, and an engine that dies in the middle: what the engine is left with, and what the client sees."""

import asyncio
import contextlib

import pytest

from tests.engine.drive import fresh_prompt
from tests.faults import wire
from tests.faults.station import eventually

pytestmark = pytest.mark.real_engine

FREE_WITHIN_S = 3.0
"""An abort takes effect between two steps of the engine, 0.1 s after it came at most where it decodes; read off its
metrics, on a machine that does other things."""


def long_answer(stream):
    body = {"model": "tiny", "prompt": fresh_prompt(32), "max_tokens": 3000, "ignore_eos": True, "stream": stream}
    return wire.request(body, path="/v1/completions")


async def running(engine, at_least):
    found = await eventually(
        lambda: engine.total("vllm:num_requests_running"), lambda running: running >= at_least, 30.0
    )
    assert found >= at_least


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
async def test_a_client_that_leaves_while_its_answer_is_made_frees_the_engine(engine, in_front_of, stream, how):
    await engine.idle(within=30.0)
    async with in_front_of(engine) as proxy:
        client = await wire.Client.connect(proxy.port)
        client.send(long_answer(stream))
        await running(engine, 1)
        if how == "reset":
            client.reset()
        else:
            await client.close()
        await engine.idle(within=FREE_WITHIN_S)
        assert not any((await proxy.settled()).values())


async def test_a_client_that_leaves_during_the_prefill_of_its_prompt_frees_the_engine(engine, in_front_of):
    await engine.idle(within=30.0)
    async with in_front_of(engine, installments={"mode": "off"}) as proxy:
        client = await wire.Client.connect(proxy.port)
        body = {"model": "tiny", "prompt": fresh_prompt(8000), "max_tokens": 100, "ignore_eos": True, "stream": True}
        client.send(wire.request(body, path="/v1/completions"))
        await running(engine, 1)
        client.reset()
        await engine.idle(within=10.0)  # the step in flight, 2048 tokens, cannot be cut
        assert not any((await proxy.settled()).values())


async def test_a_client_that_leaves_between_parts_frees_the_engine_and_the_next_long_prompt_is_fed(engine, in_front_of):
    await engine.idle(within=30.0)
    async with in_front_of(engine, installments={"mode": "auto", "part_tokens": 512}) as proxy:
        client = await wire.Client.connect(proxy.port)
        body = {"model": "tiny", "prompt": fresh_prompt(4000), "max_tokens": 4, "ignore_eos": True}
        client.send(wire.request(body, path="/v1/completions"))
        assert await eventually(lambda: proxy.total("installments_total"), lambda sent: sent >= 1, 60.0) >= 1
        client.reset()
        await engine.idle(within=10.0)
        assert not any((await proxy.settled()).values())
        after = await wire.ask(
            proxy.port, wire.request(body | {"prompt": fresh_prompt(4000)}, path="/v1/completions"), 60.0
        )
        assert after.answer.status == 200
        assert await proxy.total("installments_total", 'outcome="hit"') > 0


DIALECTS = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3000}),
    "completions": ("/v1/completions", {"prompt": "hi", "max_tokens": 3000}),
    "responses": ("/v1/responses", {"input": "hi", "max_output_tokens": 3000}),
    "messages": ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3000}),
}
BOTH = (True, False)
ENDLESS = {"model": "tiny", "ignore_eos": True, "logit_bias": {"2": -100}}


@contextlib.asynccontextmanager
async def answering(own_engine, in_front_of):
    """An engine in the middle of an answer in every dialect, streamed and not; yields it, the proxy and the clients."""
    async with own_engine() as engine, in_front_of(engine) as proxy:
        clients = {(dialect, stream): await wire.Client.connect(proxy.port) for dialect in DIALECTS for stream in BOTH}
        try:
            for (dialect, stream), client in clients.items():
                path, body = DIALECTS[dialect]
                more = {} if dialect in {"responses", "messages"} else ENDLESS
                client.send(wire.request(body | {"model": "tiny", "stream": stream} | more, path=path))
            await running(engine, 4)
            for dialect in ("chat", "completions"):
                assert await clients[dialect, True].read_until(b"data: {", 60.0)
            yield engine, proxy, clients
        finally:
            for client in clients.values():
                await client.close()


async def ends(clients):
    """What each client has when nothing more comes."""
    read = (one.read_quiet(10.0, 60.0) for one in clients.values())
    return dict(zip(clients, await asyncio.gather(*read), strict=True))


def assert_failed_whole(talks):
    for dialect in ("chat", "completions"):
        whole = talks[dialect, False].answer
        assert whole.status in {500, 502}, (dialect, whole)
        assert whole.error, (dialect, whole.body)


async def assert_counted_as_failed(proxy):
    """Chat and completions, streamed and not: none of the four is counted as served, and nothing stays held."""
    assert not any((await proxy.settled(20.0)).values())
    outcomes = await proxy.outcomes()
    assert outcomes.get("backend_error", 0) + outcomes.get("truncated", 0) >= 4, outcomes


async def test_an_engine_whose_core_dies_says_so_in_the_stream_and_that_is_relayed_and_counted(own_engine, in_front_of):
    """vLLM's own server outlives its core: it sends an error event and `[DONE]`, and ends the stream cleanly."""
    async with answering(own_engine, in_front_of) as (engine, proxy, clients):
        engine.kill_core()
        talks = await ends(clients)
        await assert_counted_as_failed(proxy)
    assert_failed_whole(talks)
    for dialect in ("chat", "completions"):
        answer = talks[dialect, True].answer
        assert answer.status == 200
        assert b'"error"' in answer.body, (dialect, answer.body[-300:])
        assert b'"finish_reason":"length"' not in answer.body


async def test_an_engine_that_is_killed_in_mid_answer_never_looks_like_success(own_engine, in_front_of):
    async with answering(own_engine, in_front_of) as (engine, proxy, clients):
        engine.kill()
        talks = await ends(clients)
        await assert_counted_as_failed(proxy)
    assert_failed_whole(talks)
    for dialect in ("chat", "completions"):
        stream = talks[dialect, True]
        assert stream.answer.status == 200
        assert b'"error"' in stream.answer.body, (dialect, stream.answer.body[-300:])
        assert b"[DONE]" not in stream.answer.body
        assert not stream.answer.complete, f"{dialect}: the stream ended as if all were well"
        assert stream.closed
