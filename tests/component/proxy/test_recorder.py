"""The recorder with its real thread and real files."""

import asyncio
import os
import threading

import pytest

from proxy import recorder
from proxy.exchange import Exchange
from proxy.policy.outcome import Outcome
from proxy.recorder import Dropped, FileLimits, Recorder, TraceFiles
from proxy.settings import Settings
from proxy.wire import trace
from proxy.wire.facts import Endpoint, Facts

LIMITS = FileLimits(rotate_bytes=2**20, rotate_s=3600.0, keep_files=10, keep_bytes=2**30)
PATIENCE_S = 5.0


def settings(directory, **more):
    return Settings.model_validate(
        {"backends": ["http://a:1"], "recorder": {"enabled": True, "directory": str(directory), **more}}
    )


def exchange(number, *texts, body=b'{"secret": "words"}', **facts):
    return Exchange(
        f"id-{number}",
        1.0,
        1_790_000_000.0,
        facts=Facts(Endpoint.CHAT, model="qwen", blocks=texts, **facts),
        endpoint=Endpoint.CHAT,
        lane="short",
        body=body,
        outcome=Outcome.OK,
        ended=2.0,
    )


def records(directory):
    lines = [line for path in sorted(directory.glob("trace-*.jsonl")) for line in path.read_bytes().splitlines()]
    return [trace.decode(line) for line in lines]


async def until(condition):
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_each_finished_request_is_one_line(tmp_path):
    running = recorder.start(settings(tmp_path))
    for number in range(100):
        running.observe(exchange(number))
    await running.close()
    assert [of.request_id for of in records(tmp_path)] == [f"id-{number}" for number in range(100)]
    assert running.counts.written == 100
    assert records(tmp_path)[0].config == settings(tmp_path).hash


async def test_text_is_recorded_only_when_asked_for(tmp_path):
    for directory, more in ((tmp_path / "plain", {}), (tmp_path / "text", {"text": True})):
        running = recorder.start(settings(directory, **more))
        running.observe(exchange(1, "secret words"))
        await running.close()
    assert b"secret" not in next((tmp_path / "plain").glob("trace-*")).read_bytes()
    assert records(tmp_path / "text")[0].text == '{"secret": "words"}'


async def test_equal_prefixes_have_equal_ids_within_one_installation(tmp_path):
    common, rest = "a" * 4096, "b" * 4096
    chains = []
    for directory in (tmp_path / "one", tmp_path / "one", tmp_path / "other"):
        running = recorder.start(settings(directory))
        running.observe(exchange(1, common + rest))
        running.observe(exchange(2, common + "c"))
        await running.close()
        chains.append([of.hash_ids for of in records(directory)][-2:])
    first, second = chains[0]
    assert len(first) == 4
    assert first[:2] == second[:2]
    assert first[2] != second[2]
    assert chains[0] == chains[1]
    assert not set(chains[0][0]) & set(chains[2][0])


async def test_a_salt_from_the_configuration_is_shared_between_installations(tmp_path):
    chains = []
    for directory in (tmp_path / "one", tmp_path / "other"):
        running = recorder.start(settings(directory, salt="grain"))
        running.observe(exchange(1, "words"))
        await running.close()
        chains.append(records(directory)[0].hash_ids)
        assert not (directory / "salt").exists()
    assert chains[0] == chains[1]


async def test_another_cache_salt_is_another_prefix(tmp_path):
    running = recorder.start(settings(tmp_path))
    running.observe(exchange(1, "words"))
    running.observe(exchange(2, "words", cache_salt="tenant"))
    await running.close()
    first, second = records(tmp_path)
    assert first.hash_ids != second.hash_ids


class StuckDisk:
    """Takes nothing until it is released."""

    def __init__(self):
        self.entered = threading.Event()
        self.released = threading.Event()

    def write(self, file, data):
        self.entered.set()
        assert self.released.wait(PATIENCE_S)
        return os.write(file, data)


async def test_a_stuck_disk_costs_records_and_never_a_request(tmp_path):
    disk = StuckDisk()
    files = TraceFiles(tmp_path, LIMITS, disk.write)
    running = Recorder(settings(tmp_path, queue_records=2), files, b"salt", flush_every_s=0.0)
    running.observe(exchange(0))
    assert await asyncio.to_thread(disk.entered.wait, PATIENCE_S)
    for number in range(1, 6):
        running.observe(exchange(number))
    assert running.counts.dropped[Dropped.QUEUE_FULL] == 3
    assert running.waiting == 2
    disk.released.set()
    await running.close()
    assert [of.request_id for of in records(tmp_path)] == ["id-0", "id-1", "id-2"]


async def test_prompt_text_that_waits_for_its_hashes_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "QUEUE_BYTES", 1000)
    disk = StuckDisk()
    running = Recorder(settings(tmp_path), TraceFiles(tmp_path, LIMITS, disk.write), b"salt", flush_every_s=0.0)
    running.observe(exchange(0))
    assert await asyncio.to_thread(disk.entered.wait, PATIENCE_S)
    running.observe(exchange(1, "x" * 600))
    running.observe(exchange(2, "x" * 600))
    assert running.counts.dropped[Dropped.QUEUE_FULL] == 1
    disk.released.set()
    await running.close()
    assert running.counts.written == 2


async def test_the_prompt_of_a_stream_is_hashed_at_its_beginning_and_let_go(tmp_path):
    running = recorder.start(settings(tmp_path, salt="grain"))
    long, short = exchange(0, "a" * 4096, "b"), exchange(1, "a" * 4096, "b")
    running.take_prompt(long)
    assert long.facts.blocks == ()
    await until(lambda: long.hash_ids is not None)
    running.observe(long)
    running.observe(short)
    await running.close()
    at_beginning, at_end = records(tmp_path)
    assert at_beginning.hash_ids == at_end.hash_ids
    assert len(at_end.hash_ids) == 3
    assert at_beginning.block_tokens == at_end.block_tokens == 512


async def test_a_prompt_for_which_there_is_no_room_comes_with_its_record(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "QUEUE_BYTES", 1000)
    running = recorder.start(settings(tmp_path))
    large = exchange(0, "x" * 2000)
    running.take_prompt(large)
    assert large.facts.blocks == ("x" * 2000,)
    await running.close()


async def test_a_full_disk_costs_records_until_there_is_room_again(tmp_path, caplog):
    full = threading.Event()
    full.set()

    def write(file, data):
        if full.is_set():
            raise OSError(28, "No space left on device")
        return os.write(file, data)

    running = Recorder(settings(tmp_path), TraceFiles(tmp_path, LIMITS, write), b"salt", flush_every_s=0.0)
    for number in range(3):
        running.observe(exchange(number))
    await until(lambda: running.counts.dropped[Dropped.DISK_ERROR] == 3)
    full.clear()
    running.observe(exchange(9))
    await running.close()
    assert [of.request_id for of in records(tmp_path)] == ["id-9"]
    complaints = [record for record in caplog.records if "cannot be written" in record.message]
    assert len(complaints) == 1


async def test_what_was_flushed_survives_a_crash(tmp_path):
    running = Recorder(settings(tmp_path), TraceFiles(tmp_path, LIMITS), b"salt", flush_every_s=0.0)
    running.observe(exchange(1))
    await until(lambda: running.counts.written == 1)
    assert [of.request_id for of in records(tmp_path)] == ["id-1"]
    await running.close()


@pytest.mark.parametrize("texts", [("lone \ud800 surrogate",), ("",), ("1,2,3",)])
async def test_strange_text_is_no_reason_to_lose_a_record(tmp_path, texts):
    running = recorder.start(settings(tmp_path))
    running.observe(exchange(1, *texts))
    await running.close()
    assert running.counts.written == 1


async def test_a_record_that_cannot_be_made_is_counted_and_the_writer_goes_on(tmp_path, caplog):
    running = Recorder(settings(tmp_path), TraceFiles(tmp_path, LIMITS), b"salt", flush_every_s=0.0)
    broken = exchange(1)
    broken.hash_ids = 7  # no chain
    running.observe(broken)
    running.observe(exchange(2))
    await running.close()
    assert [of.request_id for of in records(tmp_path)] == ["id-2"]
    assert running.counts.dropped[Dropped.FAULT] == 1
    assert "the record of request id-1 cannot be made" in caplog.text
