"""Senders that wait for answers, and recorded bodies, on real sockets."""

import asyncio
import json
from dataclasses import replace

import pytest

from loadgen.failure import UsageError
from loadgen.options import Bodies, Endpoint, Turns
from loadgen.replay import replay_in_loop
from loadgen.summarise import summarise


async def replayed(options):
    run = await replay_in_loop(options)
    return run, sorted(run.results(), key=lambda result: result.index)


def from_file(options, path, **source):
    return replace(options, source=replace(options.source, traces=(path,), **source))


class Gate:
    """Answers each request only when the test says so."""

    def __init__(self, engine):
        self._engine, self._answer = engine, engine.answer
        self.may = [asyncio.Event() for _ in range(20)]
        self.open = self.most = 0
        engine.answer = self.hold

    async def hold(self, request, writer):
        self.open += 1
        self.most = max(self.most, self.open)
        await self.may[request.number].wait()
        self.open -= 1
        return await self._engine.whole_stream(request, writer)


async def test_a_closed_loop_keeps_so_many_in_flight_and_is_labelled(engine, asking):
    gate = Gate(engine)
    run = asyncio.ensure_future(replayed(asking(engine.url, rows=8, gap=0.0, closed_loop=3)))
    await engine.asked_for(3)
    gate.may[1].set()
    await engine.asked_for(4)
    for may in gate.may:
        may.set()
    folder, found = await run
    assert [result.outcome for result in found] == ["ok"] * 8
    assert gate.most == 3
    assert all(result.due <= result.started for result in found)
    assert folder.manifest()["closed_loop"] == {"concurrency": 3}
    assert "closed_loop" in {caution.code for caution in summarise(folder).warnings}


async def test_a_closed_loop_drains_when_the_last_one_was_sent_and_not_before(engine, asking):
    seen = []
    await replay_in_loop(asking(engine.url, rows=8, gap=0.0, closed_loop=3), on_progress=seen.append)
    assert {progress.span_s for progress in seen} == {None}
    assert all(progress.draining == (progress.sent == 8) for progress in seen)
    assert seen[-1].draining


@pytest.mark.parametrize("more", [{"closed_loop": 0}, {"closed_loop": 2, "source": {"turns": Turns.AFTER_ANSWER}}])
async def test_a_closed_loop_that_makes_no_sense_sends_nothing(engine, asking, more):
    with pytest.raises(UsageError, match="--closed-loop"):
        await replay_in_loop(asking(engine.url, **more))
    assert engine.asked == []


@pytest.fixture
def talk(tmp_path):
    """Three turns of one conversation and a stranger, all due within 20 ms."""
    path = tmp_path / "talk.jsonl"
    rows = [(1, -1, 0.0, 20), (2, 1, 0.005, 40), (3, 2, 0.01, 60), (9, -1, 0.02, 80)]
    lines = [
        {"chat_id": chat, "parent_chat_id": parent, "timestamp": t, "input_length": i, "output_length": 2}
        | {"type": "text", "turn": 1, "hash_ids": list(range(-(-i // 16)))}
        for chat, parent, t, i in rows
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


async def test_a_turn_waits_for_the_answer_before_it_and_is_due_then(engine, asking, talk):
    gate = Gate(engine)
    options = from_file(asking(engine.url), talk, turns=Turns.AFTER_ANSWER)
    run = asyncio.ensure_future(replayed(options))
    await engine.asked_for(2)
    assert [len(request.body["prompt"]) for request in engine.asked] == [20, 80]
    gate.may[0].set()
    await engine.asked_for(3)
    gate.may[2].set()
    await engine.asked_for(4)
    for may in gate.may:
        may.set()
    folder, (first, second, third, stranger) = await run
    assert [len(request.body["prompt"]) for request in engine.asked] == [20, 80, 40, 60]
    assert first.end <= second.due <= second.end <= third.due
    assert stranger.due == pytest.approx(0.02)
    assert folder.manifest()["plan"]["turns"] == "after-answer"


async def test_a_turn_at_its_time_waits_for_nobody(engine, asking, talk):
    gate = Gate(engine)
    run = asyncio.ensure_future(replayed(from_file(asking(engine.url, name="open"), talk)))
    await engine.asked_for(4)
    assert gate.most == 4
    for may in gate.may:
        may.set()
    _, found = await run
    assert [result.due for result in found] == [0.0, 0.005, 0.01, 0.02]


async def test_the_two_ways_are_two_plans(engine, asking, talk):
    hashes = [
        (await replayed(from_file(asking(engine.url, name=turns), talk, turns=turns)))[0].manifest()["plan"]["hash"]
        for turns in Turns
    ]
    assert hashes[0] != hashes[1]


BODY = '{"model": "tiny",  "max_tokens":2, "stream": true, "prompt": [1,2,3], "user":"é"}'


@pytest.fixture
def recording(tmp_path):
    path = tmp_path / "recorded.jsonl"
    record = {"schema": "lanewise.trace/1", "arrived_s": 5.0, "request_id": "r", "endpoint": "completions"}
    record |= {"outcome": "ok", "stream": True, "prompt_tokens": 3, "output_tokens": 2, "text": BODY}
    path.write_text(json.dumps(record) + "\n")
    return path


async def test_a_recorded_body_arrives_as_it_was_recorded(engine, asking, recording):
    _, (found,) = await replayed(from_file(asking(engine.url), recording, bodies=Bodies.RECORDED))
    (asked,) = engine.asked
    assert asked.body == json.loads(BODY)
    assert asked.headers["content-length"] == str(len(BODY.encode()))
    assert found.outcome == "ok"


async def test_a_salted_body_differs_from_pass_to_pass_and_only_in_its_salt(engine, asking, recording):
    for name in ("one", "two"):
        await replayed(from_file(asking(engine.url, name=name), recording, bodies=Bodies.SALTED))
    salts = [request.body.pop("cache_salt") for request in engine.asked]
    assert salts[0] != salts[1]
    assert [request.body for request in engine.asked] == [json.loads(BODY)] * 2


@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.COMPLETIONS])
async def test_bodies_that_cannot_be_sent_are_named(engine, asking, recording, endpoint):
    line = json.loads(recording.read_text())
    if endpoint is Endpoint.COMPLETIONS:
        line.pop("text")
    recording.write_text(json.dumps(line) + "\n")
    options = from_file(asking(engine.url, endpoint=endpoint), recording, bodies=Bodies.RECORDED)
    with pytest.raises(UsageError, match=r"recorded\.jsonl:1: (is a request to completions|has no text)"):
        await replay_in_loop(options)
    assert engine.asked == []
