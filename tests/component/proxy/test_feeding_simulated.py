"""Installments against the simulated engine: its prefix cache, its counters and its answers are what they are for."""

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest
from clients import chat
from conftest import running, until
from engines import PATIENCE_S

from loadgen.sim.nouns import EngineProfile
from loadgen.sim.server import EngineServer, ServerOptions
from loadgen.sim.serving import bind, runner_for
from proxy.policy.installments import Mode
from proxy.settings import Settings
from proxy.wire.vllm import parse_metrics

TINY = EngineProfile(
    name="tiny",
    a=0.004,
    b=0.0003,
    c=0.00015,
    d=0.0,
    e=9.4e-8,
    kv_blocks=1024,
    max_num_seqs=32,
    max_model_len=16384,
)
SPEED = 50.0
WORDS = "the quick brown fox "
"""Five tokens of the simulated engine, about as many as the estimate says."""


class Simulated:
    """One simulated engine on a socket."""

    def __init__(self, runner, url):
        self.runner, self.url = runner, url

    async def kill(self):
        await self.runner.cleanup()


@pytest.fixture
async def sim():
    """Start simulated engines and a proxy in front of them: `engine, proxy = await sim({})`."""
    async with AsyncExitStack() as stack:

        async def begin(*engines, details=True, **sections):
            started = [await stack.enter_async_context(simulated(details, **flags)) for flags in engines]
            document = {
                "listen": "127.0.0.1:0",
                "admin": "127.0.0.1:0",
                "backends": [{"url": engine.url, "name": f"engine{n}"} for n, engine in enumerate(started)],
                "scheduling": {"drop_factor": "never"},
                "probes": {"interval": "1h"},
            } | sections
            proxy = await stack.enter_async_context(running(Settings.model_validate(document)))
            return (*started, proxy)

        yield begin


@asynccontextmanager
async def simulated(details, speed=SPEED, **flags):
    options = ServerOptions(model="tiny", speed=speed, prompt_tokens_details=details)
    runner = runner_for(EngineServer(replace(TINY, **flags), options))
    await runner.setup()
    try:
        yield Simulated(runner, await bind(runner, "127.0.0.1", 0))
    finally:
        await runner.cleanup()


async def counters(engine):
    reader, writer = await asyncio.open_connection("127.0.0.1", int(engine.url.rpartition(":")[2]))
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    async with asyncio.timeout(PATIENCE_S):
        text = (await reader.read()).decode()
    writer.close()
    return parse_metrics(text)


def long_chat(repeats=1000, **fields):
    return chat(WORDS * repeats, max_tokens=20, seed=7, **fields)


def seen(proxy, index=0):
    return proxy.app.admission.snapshot().backends[index]


def anonymous(body):
    """The answer without what differs between any two answers: its id and its time."""
    text = body.decode()
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line and line != "data: [DONE]"]
    documents = [json.loads(line) for line in lines]
    for document in documents:
        assert document.pop("id")
        assert document.pop("created")
    shape = [line[:6] for line in text.splitlines()]
    return documents, shape


@pytest.mark.parametrize("details", [True, False])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"stream": True},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        {"cache_salt": "mine", "add_generation_prompt": False},
    ],
)
async def test_the_client_gets_what_it_would_have_got_without_parts(sim, fields, details):
    answers = []
    for mode in ("off", "on"):
        engine, proxy = await sim({}, details=details, installments=mode)
        got = await (await proxy.client()).post(long_chat(**fields))
        assert got.status == 200
        answers.append(anonymous(got.body))
        exchange = await proxy.ended()
    assert answers[1] == answers[0]
    assert exchange.parts == 4
    read = await counters(engine)
    assert seen(proxy).recomputed_tokens == 0
    assert read.prompt_tokens_total > 2 * exchange.prompt_tokens
    assert read.prefix_hits_total >= read.prompt_tokens_total - exchange.prompt_tokens


async def test_what_the_engine_says_of_its_cache_is_known_before_the_first_request(sim):
    _, proxy = await sim({"block_size": 16})
    assert seen(proxy).installments is Mode.UNKNOWN
    assert seen(proxy).kv_limit == int(0.9 * 16 * TINY.kv_blocks)
    await (await proxy.client()).post(long_chat())
    assert seen(proxy).installments is Mode.ON
    _, proxy = await sim({"prefix_caching": False})
    assert seen(proxy).installments is Mode.OFF
    await (await proxy.client()).post(long_chat())
    assert (await proxy.ended()).parts == 0


async def test_an_engine_that_reports_no_cached_tokens_proves_itself_by_its_counter(sim):
    _, proxy = await sim({}, details=False)
    assert (await (await proxy.client()).post(long_chat())).status == 200
    assert seen(proxy).installments is Mode.ON
    assert {result.value: n for result, n in seen(proxy).parts.items() if n} == {"first": 1, "hit": 3}


async def test_an_engine_without_a_cache_that_does_not_say_so_is_found_out_by_its_counter(sim):
    _, proxy = await sim({"prefix_caching": False}, details=False)
    proxy.app.admission.set_prefix_cache("engine0", enabled=True, granularity=128, trusted=False)
    assert (await (await proxy.client()).post(long_chat())).status == 200
    assert seen(proxy).installments is Mode.OFF
    assert (await proxy.ended()).parts == 2


@pytest.mark.parametrize("block_size", [16, 128, 1024])
async def test_no_token_is_computed_twice_at_any_block_size(sim, block_size):
    _, proxy = await sim({"block_size": block_size, "kv_blocks": 131072 // block_size})
    for repeats in (410, 1024, 1331, 2500):
        got = await (await proxy.client()).post(
            {"model": "tiny", "prompt": WORDS * repeats, "max_tokens": 2}, "/v1/completions", X_Request_Id=f"r{repeats}"
        )
        assert got.status == 200
    assert seen(proxy).recomputed_tokens == 0
    assert seen(proxy).parts["failed"] == 0
    assert seen(proxy).parts["hit"] >= 3


async def test_an_engine_killed_between_parts_hands_the_prompt_to_another(sim):
    first, second, proxy = await sim({"speed": 20.0}, {"speed": 20.0})
    request = asyncio.ensure_future((await proxy.client()).post(long_chat(2000)))
    await until(lambda: any(backend.parts["first"] for backend in proxy.app.admission.snapshot().backends))
    home = next(b.name for b in proxy.app.admission.snapshot().backends if b.parts["first"])
    await (first if home == "engine0" else second).kill()
    got = await request
    assert got.status == 200
    exchange = await proxy.ended()
    assert exchange.backend != home
    assert proxy.held() == (0, 0, 0)
    assert [backend.started for backend in proxy.app.admission.snapshot().backends] == [None, None]
