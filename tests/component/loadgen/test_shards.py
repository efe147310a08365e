"""Several load generators that share one plan: they meet at a real Redis, start together, and become one run."""

import asyncio
import socket
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from redisserver import RedisServer

from loadgen.failure import StopError, UsageError
from loadgen.replay import replay_in_loop
from loadgen.shards import barrier as at_the_barrier
from loadgen.shards.barrier import Barrier
from loadgen.shards.meeting import Meeting
from loadgen.shards.merge import merge
from loadgen.shards.nouns import Shard
from loadgen.shards.options import ShardOptions
from loadgen.summarise import summarise


@pytest.fixture
async def store():
    """Address of a real Redis of this test's own."""
    async with RedisServer() as server:
        yield server.url


@pytest.fixture
def shard(asking, engine, store):
    """Options of one shard."""

    def options(index, of=2, name="run", **more):
        shards = ShardOptions(shard=f"{index}/{of}", barrier=store, **{"barrier_wait_s": 20.0} | more.pop("shards", {}))
        return asking(engine.url, name=f"{name}-{index}", shards=shards, **{"rows": 20} | more)

    return options


async def test_they_send_every_request_once_together_and_merge_into_one_run(shard, engine, tmp_path):
    runs = await asyncio.gather(*(replay_in_loop(shard(index, 3)) for index in range(3)))
    assert [sorted(result.index for result in run.results()) for run in runs] == [
        list(range(index, 20, 3)) for index in range(3)
    ]
    manifests = [run.manifest() for run in runs]
    assert len({manifest["salt"] for manifest in manifests}) == 1
    assert len({manifest["start"]["at"] for manifest in manifests}) == 1
    for manifest in manifests:
        assert manifest["complete"]
        assert [set(reading) for reading in manifest["start"]["clock"]] == [{"offset_s", "within_s"}] * 2
    whole = merge(runs, tmp_path / "whole")
    assert [result.index for result in sorted(whole.results(), key=lambda one: one.index)] == list(range(20))
    assert summarise(whole).complete
    assert len(engine.asked) == 20


async def test_on_one_machine_their_starts_agree_to_what_the_readings_allow(shard):
    runs = await asyncio.gather(*(replay_in_loop(shard(index)) for index in range(2)))
    clocks = [run.manifest()["start"]["clock"] for run in runs]
    for reading in (reading for clock in clocks for reading in clock):
        assert abs(reading["offset_s"]) <= reading["within_s"] + 0.01, "the store is on this machine"


async def test_shards_and_workers_together_send_every_request_once(shard, engine):
    await asyncio.gather(*(replay_in_loop(shard(index, workers=2)) for index in range(2)))
    numbers = sorted(int(request.headers["x-request-id"].rpartition("-")[2]) for request in engine.asked)
    assert numbers == list(range(20))


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_shard_whose_fellows_do_not_come_sends_nothing_and_leaves_nothing_behind(shard, engine, workers):
    options = shard(0, shards={"barrier_wait_s": 0.1}, workers=workers)
    with pytest.raises(StopError, match="only 1 of 2 shards were ready"):
        await replay_in_loop(options)
    assert engine.asked == []
    assert not options.out.exists(), "the next attempt may use the name"


async def test_another_plan_another_count_and_a_taken_place_are_refused(store):
    def place(index, of=2, plan="p", name="refused"):
        options = ShardOptions(shard=f"{index}/{of}", barrier=store, barrier_name=name)
        return Barrier(options, Shard(index, of), plan, "salt")

    first = place(0)
    await first.enter()
    for other, said in (
        (place(1, plan="q"), "send plan p, this one has q"),
        (place(1, of=3), "shards of 2, this one is of 3"),
        (place(0), "another process waits there as shard 0/2"),
    ):
        with pytest.raises(UsageError, match=said):
            await other.enter()
        await other.close()
    elsewhere = place(0, plan="q", name="other")
    assert (await elsewhere.enter()).present == 1, "another name is another barrier"
    await elsewhere.close()
    await first.close()


async def test_the_place_of_one_that_went_away_can_be_taken_and_a_later_run_begins_anew(store, monkeypatch):
    def place(index, salt):
        options = ShardOptions(shard=f"{index}/2", barrier=store, barrier_name="again")
        return Barrier(options, Shard(index, 2), "p", salt)

    monkeypatch.setattr(at_the_barrier, "GONE_S", 0.0)
    gone, back = place(0, "a"), place(0, "b")
    await gone.enter()
    assert (await back.enter()).salt == "b", "nobody else is there, so this begins anew"
    monkeypatch.setattr(at_the_barrier, "GONE_S", 30.0)
    monkeypatch.setattr(at_the_barrier, "LEAD_S", 0.0)
    fellow = place(1, "c")
    await fellow.enter()
    with pytest.raises(StopError, match="after it had passed"):
        await asyncio.gather(back.start(lambda: False, "b"), fellow.start(lambda: False, "b"))
    later = place(1, "d")
    assert (await later.enter()).salt == "d", "that start has passed, so this is another run"
    for one in (gone, back, fellow, later):
        await one.close()


async def test_a_store_that_does_not_answer_is_named_and_nothing_is_sent(asking, engine):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        shards = ShardOptions(shard="0/2", barrier=f"redis://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(StopError, match=r"the barrier at 127\.0\.0\.1 does not answer"):
            await replay_in_loop(asking(engine.url, shards=shards))
    assert engine.asked == []


async def test_ctrl_c_at_the_barrier_ends_the_wait(shard, engine):
    lone = Barrier(shard(0).shards, Shard(0, 2), "p", "salt")
    with pytest.raises(StopError, match="stopped while it waited"):
        await lone.start(lambda: True, "salt")
    await lone.close()
    assert engine.asked == []


async def test_a_start_time_needs_a_common_salt_and_lies_ahead(asking, engine, tmp_path):
    with pytest.raises(UsageError, match="same --salt"):
        await replay_in_loop(asking(engine.url, shards=ShardOptions(shard="0/2", start_at=time.time() + 60)))
    with pytest.raises(UsageError, match="has passed"):
        await replay_in_loop(asking(engine.url, salt="s", shards=ShardOptions(shard="0/2", start_at=1e9)))
    passing = Meeting(ShardOptions(shard="0/2", start_at=time.time() + 0.05), "p", "s")
    with pytest.raises(StopError, match="passed while the run was prepared"):
        await passing.start_ns(lambda: False)  # less than the sender needs ahead of it
    start = time.time() + 1.0
    runs = await asyncio.gather(
        *(
            replay_in_loop(
                asking(
                    engine.url, name=f"at-{index}", salt="s", shards=ShardOptions(shard=f"{index}/2", start_at=start)
                )
            )
            for index in range(2)
        )
    )
    assert [run.manifest()["start"] for run in runs] == [{"at": start, "clock": "not compared"}] * 2
    assert summarise(merge(runs, tmp_path / "both")).complete
