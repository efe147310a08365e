"""Long prompts in parts through a real prefix cache: the same answers, nothing computed twice, and no request that
fails because of a part."""

import asyncio

import pytest

from tests.engine.drive import fresh_prompt
from tests.engine.server import KV_BLOCK
from tests.faults import wire
from tests.faults.station import eventually

pytestmark = pytest.mark.real_engine

PARTS = {"mode": "auto", "part_tokens": 512, "pause": 0.0}
WITHIN_S = 180.0


def completion(ids, **more):
    body = {"model": "tiny", "prompt": ids, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    return wire.request(body | more, path="/v1/completions")


def chat(words):
    body = {"model": "tiny", "messages": [{"role": "user", "content": words}], "max_tokens": 12, "temperature": 0}
    return wire.request(body | {"ignore_eos": True})


async def asked(port, request):
    talk = await wire.ask(port, request, WITHIN_S)
    assert talk.answer.status == 200, talk.answer.body
    return talk.answer.document


async def reset_cache(engine):
    told = await wire.ask(engine.port, wire.request(path="/reset_prefix_cache"), 30.0)
    assert told.answer.status == 200


async def parts(proxy):
    names = ("first", "hit", "miss", "unknown", "failed", "aborted")
    return {name: await proxy.total("installments_total", f'outcome="{name}"') for name in names}


async def mode(proxy):
    return {name for name in ("unknown", "on", "off") if await proxy.total("installment_mode", f'mode="{name}"')}


async def test_a_prompt_in_parts_is_answered_as_the_whole_one_and_computed_once(engine, in_front_of):
    prompts = [fresh_prompt(tokens) for tokens in (2100, 3333, 4096)]
    plain = [(await asked(engine.port, completion(ids)))["choices"] for ids in prompts]
    await reset_cache(engine)
    async with in_front_of(engine, installments=PARTS) as proxy:
        before = await engine.computed_tokens()
        answers = [await asked(proxy.port, completion(ids)) for ids in prompts]
        computed = await engine.computed_tokens() - before
        sent, now_in = await parts(proxy), await mode(proxy)
    assert [answer["choices"] for answer in answers] == plain
    assert [answer["usage"]["prompt_tokens"] for answer in answers] == [2100, 3333, 4096]
    assert [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers] == [0, 0, 0]
    assert computed == sum(map(len, prompts))
    assert sent["first"] == 3
    assert sent["hit"] >= 9
    assert sent["miss"] == sent["failed"] == sent["unknown"] == 0
    assert now_in == {"on"}


async def test_a_long_chat_in_parts_is_answered_as_the_whole_one(engine, in_front_of):
    words = " ".join(f"line {number}: the queue is drained in order of work." for number in range(260))
    plain = await asked(engine.port, chat(words))
    assert plain["usage"]["prompt_tokens"] > 3000
    await reset_cache(engine)
    async with in_front_of(engine, installments=PARTS) as proxy:
        before = await engine.computed_tokens()
        answer = await asked(proxy.port, chat(words))
        computed = await engine.computed_tokens() - before
        sent = await parts(proxy)
    assert answer["choices"] == plain["choices"]
    assert answer["usage"] == plain["usage"]
    assert computed == plain["usage"]["prompt_tokens"]
    assert sent["hit"] >= 4


async def test_a_part_size_that_is_no_multiple_of_the_block_is_rounded_up_to_one(engine, in_front_of):
    ids = fresh_prompt(4000)
    async with in_front_of(engine, installments=PARTS | {"part_tokens": 1000}) as proxy:
        before = await engine.computed_tokens()
        await asked(proxy.port, completion(ids))
        computed = await engine.computed_tokens() - before
        sent = await parts(proxy)
    assert 1000 % KV_BLOCK
    assert computed == len(ids)
    assert sent["hit"] >= 2


async def test_a_salt_is_repeated_in_every_part(engine, in_front_of):
    ids = fresh_prompt(3000)
    async with in_front_of(engine, installments=PARTS) as proxy:
        before = await engine.computed_tokens()
        await asked(proxy.port, completion(ids, cache_salt="a tenant"))
        assert await engine.computed_tokens() - before == len(ids)
        assert (await parts(proxy))["hit"] >= 3


async def test_a_request_that_asks_for_the_prompts_probabilities_goes_whole(engine, in_front_of):
    async with in_front_of(engine, installments=PARTS) as proxy:
        answer = await asked(proxy.port, completion(fresh_prompt(2500), prompt_logprobs=0, max_tokens=1))
        assert len(answer["choices"][0]["prompt_logprobs"]) == 2500
        assert sum((await parts(proxy)).values()) == 0


async def test_a_prompt_that_does_not_fit_is_refused_by_the_engine_before_a_part_is_computed(engine, in_front_of):
    async with in_front_of(engine, installments=PARTS) as proxy:
        before = await engine.computed_tokens()
        told = await wire.ask(proxy.port, completion(fresh_prompt(17_000)), WITHIN_S)
        assert told.answer.status == 400
        assert await engine.computed_tokens() == before


async def test_a_cache_that_is_emptied_between_two_parts_costs_time_and_no_request(engine, in_front_of):
    ids = fresh_prompt(6000)
    plain = (await asked(engine.port, completion(ids)))["choices"]
    await reset_cache(engine)
    async with in_front_of(engine, installments=PARTS) as proxy:
        await asked(proxy.port, completion(fresh_prompt(3000)))
        first = sum((await parts(proxy)).values())
        client = await wire.Client.connect(proxy.port)
        client.send(completion(ids))
        assert await eventually(lambda: proxy.total("installments_total"), lambda sent: sent >= first + 2, 60.0)
        for _ in range(40):  # it succeeds only while no request holds a block
            await wire.ask(engine.port, wire.request(path="/reset_prefix_cache"), 30.0)
        talk = await client.read_answer(WITHIN_S)
        assert talk.answer.status == 200, talk.answer.body
        assert talk.answer.document["choices"] == plain
        assert not any((await proxy.settled()).values())


async def test_without_prefix_caching_long_prompts_go_whole_and_the_mode_says_off(own_engine, in_front_of):
    async with own_engine("--no-enable-prefix-caching") as engine, in_front_of(engine, installments=PARTS) as proxy:
        assert await eventually(lambda: mode(proxy), lambda found: found == {"off"}, 10.0) == {"off"}
        before = await engine.computed_tokens()
        ids = fresh_prompt(3000)
        answer = await asked(proxy.port, completion(ids))
        assert answer["usage"]["completion_tokens"] == 12
        assert await engine.computed_tokens() - before == len(ids)
        assert sum((await parts(proxy)).values()) == 0


async def test_with_hardly_any_kv_no_request_fails_because_of_a_part(own_engine, in_front_of):
    async with (
        own_engine("--num-gpu-blocks-override", "80", "--max-model-len", "8192") as engine,
        in_front_of(engine, installments=PARTS) as proxy,
    ):
        long = [completion(fresh_prompt(6000)) for _ in range(3)]
        between = [completion(fresh_prompt(1500)) for _ in range(6)]
        answers = await asyncio.gather(*(asked(proxy.port, request) for request in [*long, *between]))
        assert [answer["usage"]["completion_tokens"] for answer in answers] == [12] * 9
        assert (await parts(proxy))["failed"] == 0
        assert not any((await proxy.settled()).values())


async def test_an_engine_that_dies_between_two_parts_is_begun_anew_on_another(engine, own_engine, in_front_of):
    ids = fresh_prompt(8000)
    plain = (await asked(engine.port, completion(ids)))["choices"]
    async with own_engine() as one, own_engine() as other, in_front_of(one, other, installments=PARTS) as proxy:
        client = await wire.Client.connect(proxy.port)
        client.send(completion(ids))
        assert await eventually(lambda: proxy.total("installments_total"), lambda sent: sent >= 2, 90.0) >= 2
        on_one = await proxy.total("installments_total", f'backend="{one.port}"')
        (one if on_one else other).kill_core()
        talk = await client.read_answer(WITHIN_S)
        assert talk.answer.status == 200, talk.answer.body
        assert talk.answer.document["choices"] == plain
        assert await proxy.total("installments_total", f'backend="{other.port if on_one else one.port}"') >= 2
        await client.close()
        assert not any((await proxy.settled(20.0)).values())
