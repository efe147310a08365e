"""The store on a real Redis: the Lua text does what the model does, and a server that fails is given up in time."""

import json
import random
import sys
import time
from pathlib import Path

import pytest
import uvloop
from redis.asyncio import Redis

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from redisserver import RedisServer

from proxy.leases.store import RedisStore, StoreError
from proxy.policy.leases.book import Book
from proxy.settings.sharing import Sharing

LOOPS = {"uvloop": uvloop.new_event_loop}
KEY = "lanewise:{lanewise}:leases"


@pytest.fixture
async def server():
    async with RedisServer() as one:
        yield one


def sharing(server, **more):
    return Sharing(store=server.url, **{"timeout": "2s", "lease": "30s"} | more)


def request(name, number, places=None, version=0, lease_ms=60_000):
    return {"m": name, "q": number, "t": lease_ms, "n": 3, "v": version, "p": places or {}}


def row(chance):
    limits = chance.choice(([8, 2048, -1], [8, 2048, 5000], [chance.randint(4, 12), 1024, -1]))
    kept = [chance.randint(0, 4), chance.randint(0, 600), chance.randint(0, 900)]
    asked = {
        "l": limits,
        "k": kept,
        "f": [chance.randint(0, 5), chance.randint(0, 900), kept[2]],
        "w": [chance.randint(0, 8), chance.randint(0, 2048), 0],
        "o": chance.randint(0, 1),
        "a": chance.randint(0, 1),
    }
    if chance.random() < 0.6:
        asked["d"] = [kept[0] + chance.randint(0, 3), kept[1] + chance.randint(0, 1500), kept[2]]
    return asked


@pytest.mark.parametrize("seed", range(4))
async def test_the_lua_text_does_what_the_model_does(server, seed):
    """Both see the same requests; the model is given the server's clock, which moves only a little meanwhile."""
    chance, book, versions = random.Random(seed), Book(), {}
    store, redis = RedisStore(sharing(server)), Redis(port=server.port)
    numbers = dict.fromkeys(("aa", "bb", "cc", "dd"), 0)
    for turn in range(250):
        name = chance.choice(tuple(numbers))
        numbers[name] += chance.choice((1, 1, 1, 0))
        names = chance.sample(("b/x", "b/y"), chance.randint(1, 2))
        asked = request(name, numbers[name], {place: row(chance) for place in names}, versions.get(name, 0))
        if turn == 30:  # the calm of the beginning is over for both
            await _end_the_calm(redis, book)
        if chance.random() < 0.03:
            asked = {"m": name, "q": numbers[name], "x": 1}
        seconds, micros = await redis.time()
        expected = book.sync(seconds * 1000 + micros // 1000, asked)
        got = await store.sync(asked)
        if "s" not in expected:
            assert abs(got.pop("c") - expected.pop("c")) < 5000
            versions[name] = expected["v"]
        assert got == expected
    assert turn == 249
    await store.close()
    await redis.aclose()


async def _end_the_calm(redis, book):
    group = json.loads(await redis.hget(KEY, ""))
    await redis.hset(KEY, "", json.dumps(group | {"c": 0}))
    book._calm_until = 0


async def test_leases_run_out_on_the_servers_clock(server):
    store = RedisStore(sharing(server))
    held = {"b/x": {"l": [4], "k": [4], "f": [4], "w": [4], "o": 0, "a": 0}}
    wants = {"b/x": {"l": [4], "k": [0], "f": [0], "w": [4], "d": [1], "o": 0, "a": 0}}
    await store.sync(request("aa", 1, held, lease_ms=150))
    number, until = 0, time.monotonic() + 10
    while True:
        number += 1
        answer = await store.sync(request("bb", number, wants, lease_ms=150))
        if answer["n"] == 1 and not answer["c"] and answer["p"]["b/x"]["h"] == [4]:
            break
        assert time.monotonic() < until
    await store.close()


async def test_a_frozen_server_is_given_up_after_the_time_out(server):
    store = RedisStore(sharing(server, timeout="50ms"))
    await store.sync(request("aa", 1))
    server.freeze()
    began = time.monotonic()
    with pytest.raises(StoreError, match="no answer within 50 ms"):
        await store.sync(request("aa", 2))
    assert time.monotonic() - began < 2  # the client as it comes tries eleven times, for more than three seconds
    server.thaw()
    assert (await _again(store))["k"] == 1
    await store.close()


async def test_a_server_that_came_back_empty_gets_the_script_anew(server):
    store = RedisStore(sharing(server))
    await store.sync(request("aa", 1))
    server.kill()
    with pytest.raises(StoreError):
        await store.sync(request("aa", 2))
    await server.start()
    assert (await _again(store))["k"] == 0
    await store.close()


async def _again(store):
    for number in range(3, 200):
        try:
            return await store.sync(request("aa", number))
        except StoreError:
            continue
    raise AssertionError("the store did not come back")


async def test_an_answer_that_is_no_document_is_no_answer(server):
    redis = Redis(port=server.port)
    await redis.set(KEY, "somebody else's")
    store = RedisStore(sharing(server))
    with pytest.raises(StoreError, match="WRONGTYPE"):
        await store.sync(request("aa", 1))
    await redis.aclose()
    await store.close()
