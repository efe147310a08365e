"""Several worker processes: one plan, one start, one journal."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from loadgen.failure import UsageError
from loadgen.replay import replay_in_loop
from loadgen.summarise import summarise


def by_index(run):
    return sorted(run.results(), key=lambda result: result.index)


async def test_together_they_send_every_request_once_at_its_time_into_one_journal(engine, asking):
    run = await replay_in_loop(asking(engine.url, rows=30, gap=0.02, workers=3))
    found = by_index(run)
    assert [result.index for result in found] == list(range(30))
    assert {result.outcome for result in found} == {"ok"}
    assert all(result.started >= result.due for result in found)
    numbers = sorted(int(request.headers["x-request-id"].rpartition("-")[2]) for request in engine.asked)
    assert numbers == list(range(30))
    manifest = run.manifest()
    told = [manifest[key] for key in ("complete", "workers", "sent")]
    assert told == [True, 3, 30]
    assert manifest["loop_lag_max_s"] > 0


async def test_the_quantiles_are_those_of_all_requests(engine, asking):
    run = await replay_in_loop(asking(engine.url, rows=20, gap=0.01, workers=2))
    ttft = sorted(result.first - result.due for result in run.results())
    assert summarise(run).lanes["all"].ttft.p50 == pytest.approx(ttft[9])


async def test_one_process_and_several_send_the_same_prompts(engine, asking):
    await replay_in_loop(asking(engine.url, rows=6, name="one", salt="same"))
    await replay_in_loop(asking(engine.url, rows=6, name="two", salt="same", workers=2))

    def prompts(requests):
        return {request.headers["x-request-id"]: request.body["prompt"] for request in requests}

    assert prompts(engine.asked[:6]) == prompts(engine.asked[6:])


async def test_ctrl_c_stops_them_all_and_no_shot_is_missing(engine, asking):
    replaying = asyncio.ensure_future(replay_in_loop(asking(engine.url, rows=400, gap=0.05, workers=2)))
    await engine.asked_for(4)
    os.kill(os.getpid(), signal.SIGINT)
    run = await replaying
    found = by_index(run)
    assert [result.index for result in found] == list(range(400))
    assert run.manifest()["interrupted"] == "stopped by a signal"
    assert summarise(run).lanes["all"].unsent > 300


@pytest.mark.parametrize(
    ("more", "said"), [({"workers": 0}, "1 or more"), ({"workers": 2, "closed_loop": 4}, "kept by one process")]
)
async def test_a_wrong_number_of_workers_sends_nothing(engine, asking, more, said):
    with pytest.raises(UsageError, match=said):
        await replay_in_loop(asking(engine.url, **more))
    assert engine.asked == []


async def test_a_worker_that_is_killed_is_told_and_the_rest_is_kept(engine, asking):
    replaying = asyncio.ensure_future(replay_in_loop(asking(engine.url, rows=400, gap=0.05, workers=2)))
    await engine.asked_for(8)
    os.kill(await a_worker(), signal.SIGKILL)
    run = await replaying
    manifest = run.manifest()
    assert manifest["complete"] is False
    assert "ended with code -9, its part is cut" in manifest["interrupted"]
    assert any(result.outcome == "ok" for result in run.results())


async def a_worker():
    """Process id of one of our workers."""

    def look():
        children = [file.read_text().split() for file in Path("/proc/self/task").glob("*/children")]
        pids = [int(pid) for some in children for pid in some]
        return next(pid for pid in pids if b"loadgen.worker" in Path(f"/proc/{pid}/cmdline").read_bytes())

    return await asyncio.to_thread(look)
