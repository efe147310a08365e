"""Prompt lengths in a whole proxy: what was learned survives a restart, and near the border an engine is asked."""

import asyncio
import json

import pytest
from clients import chat
from conftest import Running, running, settings_for, until
from engines import Engine, chat_answer, healthy

from proxy.lengths import SCHEMA, LengthMemory, read_lengths
from proxy.policy.length import LengthEstimator
from proxy.wire.facts import TextCensus

NEAR = {"tokenize": "border", "near": 0.5}
LANES = {"short": {"max_prompt_tokens": 100}}
WORDS = "word " * 70  # about 93 tokens


def answering(count, *, asked=None):
    """An engine whose `/tokenize` says `count` ids; None: it has none. `asked` holds its answer back."""

    async def script(request, peer):
        if request.path != "/tokenize":
            await healthy(request, peer)
            return
        if asked is not None:
            await asked.wait()
        status = "404 Not Found" if count is None else "200 OK"
        body = json.dumps({"count": count, "max_model_len": 9999, "tokens": [5] * (count or 0)}).encode()
        peer.send(b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status.encode(), len(body), body))

    return script


@pytest.mark.parametrize(
    ("count", "lane", "result"), [(90, "short", "exact"), (140, "long", "moved"), (None, "short", "refused")]
)
async def test_near_the_border_the_engines_own_count_decides(start, count, lane, result):
    engine, proxy = await start(answering(count), estimate=NEAR, lanes=LANES, installments="off")
    got = await (await proxy.client()).post(chat(WORDS))
    ended = await proxy.ended()
    assert (got.status, ended.lane) == (200, lane)
    assert ended.ticket.prompt_tokens == (count or ended.prompt_tokens_estimated)
    assert proxy.app.exact.asked == {result: 1}
    assert [request.path for request in engine.requests] == ["/tokenize", "/v1/chat/completions"]
    assert "messages" in engine.requests[0].json
    assert ended.tokenize_s > 0
    assert proxy.held() == (0, 0, 0)


@pytest.mark.parametrize(
    ("estimate", "document"),
    [
        ({"tokenize": "off"}, chat(WORDS)),
        ({"tokenize": "border", "near": 0.01}, chat(WORDS * 3)),
        (NEAR, chat("short")),
        (NEAR, {**chat(WORDS), "kv_transfer_params": {"do_remote_decode": True}}),
    ],
)
async def test_whom_it_does_not_matter_for_nobody_is_asked(start, estimate, document):
    engine, proxy = await start(answering(90), estimate=estimate, lanes=LANES, installments="off")
    await (await proxy.client()).post(document)
    await proxy.ended()
    assert [request.path for request in engine.requests] == ["/v1/chat/completions"]
    assert proxy.app.exact.asked == {}


async def test_an_engine_that_is_too_slow_leaves_the_estimate(start):
    held = asyncio.Event()
    estimate = {**NEAR, "timeout": "20ms"}
    _engine, proxy = await start(answering(140, asked=held), estimate=estimate, lanes=LANES, installments="off")
    got = await (await proxy.client()).post(chat(WORDS))
    assert (got.status, (await proxy.ended()).lane) == (200, "short")
    assert proxy.app.exact.asked == {"timeout": 1}
    held.set()


async def test_more_at_once_than_allowed_keep_their_estimate(start):
    held = asyncio.Event()
    estimate = {**NEAR, "at_once": 1, "timeout": "5s"}
    engine, proxy = await start(answering(140, asked=held), estimate=estimate, lanes=LANES, installments="off")
    first, second = await proxy.client(), await proxy.client()
    asking = asyncio.ensure_future(first.post(chat(WORDS)))
    await engine.request()
    await second.post(chat(WORDS))
    assert (await proxy.ended(0)).lane == "short"
    held.set()
    await asking
    assert (await proxy.ended(1)).lane == "long"
    assert proxy.app.exact.asked == {"busy": 1, "moved": 1}


async def test_a_prompt_that_goes_in_parts_is_not_asked_for_twice(start):
    engine, proxy = await start(answering(120), estimate=NEAR, lanes=LANES, installments={"part_tokens": 16})
    proxy.app.admission.set_prefix_cache("engine0", enabled=True, granularity=16, trusted=True)
    await (await proxy.client()).post(chat("word " * 90))
    assert (await proxy.ended()).parts
    assert [request.path for request in engine.requests].count("/tokenize") == 1
    assert proxy.app.exact.asked == {}


async def taught(proxy: Running, times: int):
    client = await proxy.client()
    for _ in range(times):
        await client.post(chat("x" * 4000, model="m"))
    await until(lambda: len(proxy.finished) == times)


async def test_what_was_learned_is_there_after_a_restart(tmp_path, caplog):
    async def counts(request, peer):
        body = chat_answer(prompt=2000)
        peer.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )

    async with Engine(counts) as engine:
        settings = settings_for(engine, state_dir=str(tmp_path))
        async with running(settings) as proxy:
            port = proxy.app.admin_listen.port
            await taught(proxy, 8)
            learned = proxy.app.classification.estimator.state()
        (file,) = tmp_path.glob("lengths-*.json")
        assert file.stat().st_mode & 0o777 == 0o600
        again = settings.model_copy(update={"admin": settings.admin.__class__("127.0.0.1", port)})
        async with running(again) as proxy:
            assert proxy.app.classification.estimator.state() == learned
            assert proxy.app.classification.estimator.observations("m") == 8


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema": "lanewise.lengths/9", "models": {}}', f'{{"schema": "{SCHEMA}"}}', "[" * 9999]
)
async def test_a_file_that_cannot_be_used_is_said_and_learning_begins_anew(tmp_path, caplog, text):
    path = tmp_path / "lengths.json"
    path.write_text(text)
    estimator = LengthEstimator()
    memory = LengthMemory(estimator, path)
    await memory.begin()
    assert estimator.state() == {}
    assert f"cannot be read from {path}" in caplog.text
    estimator.learn("m", TextCensus(latin=4000), 1000, 2000)
    await memory.close()
    assert read_lengths(path) == estimator.state()


async def test_nothing_is_written_where_nothing_was_learned_or_nothing_is_to_be_kept(tmp_path):
    path = tmp_path / "lengths.json"
    memory = LengthMemory(LengthEstimator(), path)
    await memory.begin()
    await memory.close()
    assert not path.exists()
    estimator = LengthEstimator()
    nowhere = LengthMemory(estimator, None)
    await nowhere.begin()
    estimator.learn("m", TextCensus(latin=4000), 1000, 2000)
    await nowhere.write()
    assert list(tmp_path.iterdir()) == []


async def test_a_directory_that_cannot_be_written_is_said_once(tmp_path, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("")
    estimator = LengthEstimator()
    memory = LengthMemory(estimator, blocked / "lengths.json")
    estimator.learn("m", TextCensus(latin=4000), 1000, 2000)
    await memory.write()
    await memory.write()
    assert caplog.text.count("prompt lengths cannot be written") == 1


async def test_the_metrics_tell_how_good_the_estimate_is(start):
    _engine, proxy = await start(healthy, metrics={"models": ["m"]})
    await taught(proxy, 1)
    told = {
        (sample.name, *sample.labels.values()): sample.value
        for family in proxy.app.metrics.families()
        if family.name.startswith("lanewise_prompt_tokens_")
        for sample in family.samples
    }
    assert told["lanewise_prompt_tokens_asked_total", "timeout"] == 0
    assert told["lanewise_prompt_tokens_estimate_observations", "m"] == 1
    assert told["lanewise_prompt_tokens_estimate_error_ratio", "m"] > 0
