"""Metrics pages beside a real replay: what lands in the run folder, and what a page that fails leaves behind."""

import pytest

from loadgen.failure import StopError, UsageError
from loadgen.replay import replay_in_loop
from loadgen.report import console, print_summary
from loadgen.summarise import summarise
from loadgen.telemetry.digest import telemetry_of
from loadgen.telemetry.samples import read_samples_file

CARDS = b'npu_chip_info_utilization{id="0"} 80\nnpu_chip_info_hbm_used_memory{id="0"} 900\n'


def page(running, preemptions):
    return (
        f"vllm:num_requests_running 0\nvllm:num_requests_running {running}\nvllm:num_preemptions_total {preemptions}\n"
    )


@pytest.fixture
async def exporter(engine_type):
    made = engine_type()
    made.metrics = CARDS
    await made.start()
    yield made
    await made.stop()


async def test_readings_before_and_after_are_kept_and_digested(engine, exporter, asking, capsys):
    engine.metrics = page(3, 5).encode()
    answer = engine.answer

    async def preempting(request, writer):
        engine.metrics = page(4, 9).encode()
        return await answer(request, writer)

    engine.answer = preempting
    folder = await replay_in_loop(asking(engine.url, card_metrics=(f"{exporter.url}/metrics",)))
    telemetry = telemetry_of(folder)
    assert (telemetry.preemptions, telemetry.engine.running_peak) == (4, 4)
    assert telemetry.engine.kv_peak is None
    assert (telemetry.ai_core_peak, telemetry.hbm_peak_mb) == (0.8, 900)
    assert [source["file"] for source in folder.manifest()["telemetry"]] == ["engine.jsonl", "cards.jsonl"]
    summary = summarise(folder)
    assert summary.to_json()["notes"]["telemetry"]["preemptions"] == 4
    print_summary(summary, console())
    assert "KV cache peak unknown, preemptions 4" in capsys.readouterr().out


async def test_a_target_that_is_no_engine_is_not_read_unasked(engine, asking):
    engine.metrics = b"something_else 1\n"
    folder = await replay_in_loop(asking(engine.url))
    assert folder.manifest()["telemetry"] == []
    assert telemetry_of(folder) is None


async def test_none_reads_nothing(engine, asking):
    engine.metrics = page(1, 1).encode()
    folder = await replay_in_loop(asking(engine.url, engine_metrics=("none",)))
    assert folder.manifest()["telemetry"] == []


@pytest.mark.parametrize("option", ["engine_metrics", "card_metrics"])
async def test_a_named_page_of_something_else_is_refused_before_anything_is_sent(engine, asking, option):
    engine.metrics = b"something_else 1\n"
    with pytest.raises(UsageError, match="has none of"):
        await replay_in_loop(asking(engine.url, **{option: (f"{engine.url}/metrics",)}))
    assert engine.asked == []


async def test_a_named_page_that_does_not_answer_is_refused(engine, asking):
    with pytest.raises(StopError, match="does not answer"):
        await replay_in_loop(asking(engine.url, card_metrics=("http://127.0.0.1:9/metrics",)))
    with pytest.raises(UsageError, match="no address"):
        await replay_in_loop(asking(engine.url, card_metrics=("127.0.0.1:9",)))


async def test_a_page_that_stops_answering_leaves_readings_that_say_so(engine, exporter, asking):
    answer = engine.answer

    async def losing(request, writer):
        await exporter.stop()
        return await answer(request, writer)

    engine.answer = losing
    folder = await replay_in_loop(asking(engine.url, rows=1, card_metrics=(f"{exporter.url}/metrics",)))
    readings = list(read_samples_file(folder.path / "cards.jsonl"))
    assert readings[0].cards
    assert readings[-1].error is not None
    assert telemetry_of(folder).cards_missing >= 1
