import asyncio
import json
import os
import resource
import shutil
import signal
import ssl
import subprocess
from zlib import crc32

import pytest

from loadgen.failure import StopError, UsageError
from loadgen.journal import RunFolder
from loadgen.options import Endpoint
from loadgen.replay import replay_in_loop
from loadgen.summarise import summarise


async def results(options, **more):
    run = await replay_in_loop(options, **more)
    return run, sorted(run.results(), key=lambda result: result.index)


async def only(options):
    _, found = await results(options)
    assert len(found) == 1
    return found[0]


async def test_every_row_is_sent_once_with_its_lengths_and_recorded_once(engine, asking):
    run, found = await results(asking(engine.url, rows=20, prompt=700, output=6))
    assert [result.outcome for result in found] == ["ok"] * 20
    assert [result.row for result in found] == list(range(2, 22))
    assert {len(request.body["prompt"]) for request in engine.asked} == {700}
    assert {request.body["max_tokens"] for request in engine.asked} == {6}
    assert {result.tokens for result in found} == {6}
    assert all(result.due <= result.sent <= result.first <= result.last <= result.end for result in found)
    assert run.manifest()["complete"] is True
    assert run.manifest()["outcomes"]["ok"] == 20


async def test_size_and_checksum_of_what_arrived_are_recorded(engine, asking, wire):
    body = wire.chunk() + wire.chunk(finish="length") + b"data: [DONE]\n\n"

    async def answer(request, writer):
        writer.write(wire.head + wire.framed(body[:40]) + wire.framed(body[40:]) + b"0\r\n\r\n")
        return True

    engine.answer = answer
    found = await only(asking(engine.url, rows=1))
    assert (found.body_bytes, found.body_crc32) == (len(body), crc32(body))


async def test_requests_go_out_when_they_are_due_and_never_before(engine, asking):
    _, found = await results(asking(engine.url, rows=10, gap=0.03))
    assert [result.due for result in found] == pytest.approx([at * 0.03 for at in range(10)], abs=1e-6)
    assert all(result.started >= result.due for result in found)


async def test_a_request_is_not_held_back_by_the_ones_before_it(engine, asking):
    """The engine answers nobody until all have come: a sender with any limit on connections would hang."""

    async def wait_for_all(request, writer):
        await engine.asked_for(150)
        return await engine.whole_stream(request, writer)

    engine.answer = wait_for_all
    run, found = await results(asking(engine.url, rows=150, gap=0.0001))
    assert {result.outcome for result in found} == {"ok"}
    assert run.manifest()["most_in_flight"] == 150


async def test_connections_are_kept_and_reused(engine, asking):
    run, _ = await results(asking(engine.url, rows=10, gap=0.02))
    assert run.manifest()["connections"] < 10
    run, _ = await results(asking(engine.url, rows=10, gap=0.02, name="fresh", fresh_connections=True))
    assert run.manifest()["connections"] == 10


async def test_a_kept_connection_that_was_closed_is_replaced_without_losing_the_request(engine, asking, wire):
    """The engine answers the first request of a connection and closes it when the second one comes."""
    seen = set()

    async def once_each(request, writer):
        if writer in seen:
            return False
        seen.add(writer)
        return await engine.whole_stream(request, writer)

    engine.answer = once_each
    _, found = await results(asking(engine.url, rows=4, gap=0.05))
    assert {result.outcome for result in found} == {"ok"}
    assert sum(result.reconnects for result in found) > 0


async def test_two_passes_of_one_plan_never_share_a_prompt(engine, asking):
    a, _ = await results(asking(engine.url, rows=3))
    b, _ = await results(asking(engine.url, rows=3, name="again"))
    heads = {tuple(request.body["prompt"][:6]) for request in engine.asked}
    assert len(heads) == 6
    assert a.manifest()["plan"]["hash"] == b.manifest()["plan"]["hash"]
    assert a.manifest()["salt"] != b.manifest()["salt"]


async def test_a_given_salt_repeats_the_prompts(engine, asking):
    await results(asking(engine.url, rows=1, salt="x"))
    await results(asking(engine.url, rows=1, salt="x", name="again"))
    assert engine.asked[0].body == engine.asked[1].body


async def test_a_rejection_is_its_own_outcome_with_its_reason_and_wait(engine, asking, wire):
    async def reject(request, writer):
        body = json.dumps({"error": {"message": "queue is full", "type": "rate_limit_error", "code": "queue_full"}})
        writer.write(wire.plain(429, body.encode(), "Retry-After: 7", "retry-after-ms: 6500"))
        return True

    engine.answer = reject
    result = await only(asking(engine.url, rows=1))
    assert (result.outcome, result.status, result.reason, result.detail) == (
        "rejected",
        429,
        "queue_full",
        "queue is full",
    )
    assert result.retry_after == 6.5
    assert result.first is None


async def test_any_other_status_is_an_error(engine, asking, wire):
    async def refuse(request, writer):
        writer.write(wire.plain(500, b"oops"))
        return True

    engine.answer = refuse
    result = await only(asking(engine.url, rows=1))
    assert (result.outcome, result.status, result.reason, result.detail) == ("error", 500, "http_500", "oops")


async def test_an_answer_without_a_stream_is_an_error(engine, asking, wire):
    async def whole(request, writer):
        writer.write(wire.plain(200, b"{}", "Content-Type: application/json"))
        return True

    engine.answer = whole
    result = await only(asking(engine.url, rows=1))
    assert (result.outcome, result.reason) == ("error", "no_stream")


async def test_a_stream_that_ends_without_a_finish_is_truncated(engine, asking, wire):
    async def short(request, writer):
        writer.write(wire.head + wire.framed(wire.chunk()) + b"0\r\n\r\n")
        return True

    engine.answer = short
    result = await only(asking(engine.url, rows=1))
    assert (result.outcome, result.chunks, result.tokens_from) == ("truncated", 1, "chunks")


async def test_a_stream_that_is_cut_is_truncated(engine, asking, wire):
    async def cut(request, writer):
        writer.write(wire.head + wire.framed(wire.chunk()))
        return False

    engine.answer = cut
    result = await only(asking(engine.url, rows=1))
    assert (result.outcome, result.reason) == ("truncated", "connection")


async def test_an_error_inside_the_stream_is_an_error(engine, asking, wire):
    async def fail(request, writer):
        frame = b'data: {"error": {"message": "EngineCore died", "type": "InternalServerError", "code": 500}}\n\n'
        writer.write(wire.head + wire.framed(wire.chunk()) + wire.framed(frame) + b"0\r\n\r\n")
        return True

    engine.answer = fail
    result = await only(asking(engine.url, rows=1))
    assert (result.outcome, result.reason, result.detail) == ("error", "500", "EngineCore died")


async def test_what_is_not_http_is_an_error(engine, asking):
    async def babble(request, writer):
        writer.write(b"NOT HTTP AT ALL\r\n\r\n")
        return True

    engine.answer = babble
    result = await only(asking(engine.url, rows=1))
    assert (result.outcome, result.reason) == ("error", "protocol")


async def test_a_client_without_a_first_token_leaves_when_its_patience_is_over(engine, asking):
    gone = asyncio.Event()

    async def never(request, writer):
        await writer.wait_closed()
        gone.set()
        return False

    engine.answer = never
    result = await only(asking(engine.url, rows=1, patience_short_s=0.05))
    assert (result.outcome, result.reason, result.first) == ("cancelled", "patience", None)
    assert 0.05 <= result.end < 1


async def test_patience_ends_with_the_first_token(engine, asking, wire):
    """The first answer goes on only when the second request has come, well after the patience of the first."""

    async def first_is_slow(request, writer):
        if request.number:
            return await engine.whole_stream(request, writer)
        writer.write(wire.head + wire.framed(wire.chunk()))
        await engine.asked_for(2)
        writer.write(wire.framed(wire.chunk(finish="length")) + b"0\r\n\r\n")
        return True

    engine.answer = first_is_slow
    _, found = await results(asking(engine.url, rows=2, gap=0.2, patience_short_s=0.1))
    assert [result.outcome for result in found] == ["ok", "ok"]
    assert found[0].last - found[0].first >= 0.1


async def test_silence_after_the_first_token_is_a_stall(engine, asking, wire):
    async def stall(request, writer):
        writer.write(wire.head + wire.framed(wire.chunk()))
        await writer.wait_closed()
        return False

    engine.answer = stall
    result = await only(asking(engine.url, rows=1, stall_timeout_s=0.05))
    assert (result.outcome, result.chunks) == ("stalled", 1)


async def test_a_request_that_takes_too_long_is_a_timeout(engine, asking):
    async def never(request, writer):
        await writer.wait_closed()
        return False

    engine.answer = never
    result = await only(asking(engine.url, rows=1, timeout_s=0.05))
    assert (result.outcome, result.reason) == ("timeout", "total")


async def test_compressed_time_is_multiplied_back(engine, asking):
    run, found = await results(asking(engine.url, rows=5, gap=1.0, speed=50.0))
    assert [result.due for result in found] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert found[-1].sent >= 4.0
    assert found[-1].sent < 4.0 + 50 * 0.1
    assert run.manifest()["speed"] == 50.0


async def test_the_engine_and_its_cache_are_in_the_manifest(engine, asking):
    engine.metrics = (
        b'vllm:cache_config_info{block_size="16",enable_prefix_caching="True"} 1.0\n'
        b'vllm:prefix_cache_queries_total{model_name="m"} 30.0\nvllm:prefix_cache_hits_total{model_name="m"} 8.0\n'
    )
    run, _ = await results(asking(engine.url, rows=1, parameters=(("cap", "32"),), label="mine"))
    manifest = run.manifest()
    assert manifest["engine"]["version"] == "0.32.0"
    assert manifest["engine"]["cache_config"]["block_size"] == "16"
    assert manifest["prefix_cache"] == {"queries": 0.0, "hits": 0.0}
    assert manifest["model"] == "tiny"
    assert (manifest["label"], manifest["parameters"]) == ("mine", {"cap": "32"})


async def test_the_api_key_is_sent_and_written_nowhere(engine, asking, tmp_path):
    key = tmp_path / "key"
    key.write_text("sk-very-secret\n")
    run, _ = await results(asking(engine.url, rows=1, api_key_file=key))
    assert engine.asked[0].headers["authorization"] == "bearer sk-very-secret"
    assert all(b"very-secret" not in path.read_bytes() for path in run.path.iterdir())


async def test_the_chat_endpoint_is_asked_in_its_own_way(engine, asking, wire):
    async def chat(request, writer):
        delta = b'data: {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "length"}]}\n\n'
        writer.write(wire.head + wire.framed(delta + wire.usage(10, 4)) + b"0\r\n\r\n")
        return True

    engine.answer = chat
    run, found = await results(asking(engine.url, rows=1, endpoint=Endpoint.CHAT))
    chat_request = next(request for request in engine.asked if request.path == "/v1/chat/completions")
    assert len(chat_request.body["messages"][0]["content"].split()) == 10
    assert found[0].outcome == "ok"
    assert run.manifest()["calibration"]["source"] == "assumed"


async def test_chat_lengths_are_measured_where_the_engine_can_tokenize(engine, asking, wire):
    engine.tokenizes = True
    run, _ = await results(asking(engine.url, rows=1, prompt=317, endpoint=Endpoint.CHAT))
    calibration = run.manifest()["calibration"]
    line = {"source": "tokenize", "tokens_per_word": 1.5, "template_tokens": 17.0}
    assert calibration == line | {"worst_error_tokens": 1}
    assert len(engine.asked[0].body["messages"][0]["content"].split()) == 200


async def test_progress_is_told_to_the_end(engine, asking):
    seen = []
    await results(asking(engine.url, rows=30, gap=0.02), on_progress=seen.append)
    assert len(seen) >= 2
    assert (seen[-1].sent, seen[-1].ok, seen[-1].in_flight, seen[-1].planned) == (30, 30, 0, 30)
    assert [progress.sent for progress in seen] == sorted(progress.sent for progress in seen)


@pytest.mark.parametrize("signals", [1, 2])
async def test_ctrl_c_leaves_a_result_in_which_no_shot_is_missing(engine, asking, signals):
    async def never(request, writer):
        await writer.wait_closed()
        return False

    engine.answer = never
    options = asking(engine.url, rows=100, gap=0.05, drain_s=0.1 if signals == 1 else 60.0)
    replaying = asyncio.ensure_future(replay_in_loop(options))
    await engine.asked_for(2)
    for _ in range(signals):
        os.kill(os.getpid(), signal.SIGINT)
    run = await replaying
    found = sorted(run.results(), key=lambda result: result.index)
    assert [result.index for result in found] == list(range(100))
    assert {result.outcome for result in found} == {"cancelled"}
    assert {result.reason for result in found} == {"stopped", "unsent"}
    manifest = run.manifest()
    assert (manifest["complete"], manifest["interrupted"]) == (False, "stopped by a signal")
    assert "incomplete" in {caution.code for caution in summarise(run).warnings}


async def test_nothing_is_written_when_the_target_does_not_answer(asking, unused_tcp_port):
    options = asking(f"http://127.0.0.1:{unused_tcp_port}")
    with pytest.raises(StopError, match="does not answer") as stopped:
        await replay_in_loop(options)
    assert stopped.value.code == 1
    assert not options.out.exists()


async def test_a_target_elsewhere_has_to_be_allowed(asking):
    with pytest.raises(UsageError, match=r"--allow-target 192\.0\.2\.1"):
        await replay_in_loop(asking("http://192.0.2.1:8000"))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"speed": 0.0}, "--speed 0"),
        ({"patience_short_s": -1.0}, "--patience-short -1"),
        ({"source": {"scale": 2.0, "rate": 1.0}}, "--scale and --rate"),
        ({"source": {"start_s": 99.0}}, "window holds no request"),
        ({"source": {"workload": "chat"}}, "one of the two"),
    ],
)
async def test_a_wrong_option_sends_and_writes_nothing(engine, asking, more, said):
    options = asking(engine.url, **more)
    with pytest.raises(UsageError, match=said):
        await replay_in_loop(options)
    assert engine.asked == []
    assert not options.out.exists()


async def test_a_bad_trace_line_sends_and_writes_nothing(engine, asking):
    options = asking(engine.url)
    with options.source.traces[0].open("a") as trace:
        trace.write("oops\n")
    with pytest.raises(UsageError, match=r"trace\.csv:5: "):
        await replay_in_loop(options)
    assert engine.asked == []
    assert not options.out.exists()


async def test_a_used_folder_is_refused_before_anything_is_sent(engine, asking):
    options = asking(engine.url)
    options.out.mkdir()
    (options.out / "shots.jsonl").write_text("precious")
    with pytest.raises(UsageError, match="not empty"):
        await replay_in_loop(options)
    assert engine.asked == []
    assert (options.out / "shots.jsonl").read_text() == "precious"


async def test_a_full_disk_stops_the_run_with_one_sentence(engine, asking):
    options = asking(engine.url, rows=3000, gap=0.005)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, before[1]))
    try:
        with pytest.raises(StopError, match="cannot be written"):
            await replay_in_loop(options)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert 0 < len(engine.asked) < 3000
    assert list(RunFolder(options.out).results())


@pytest.fixture
def unsigned(tmp_path):
    """The server side of TLS with a certificate that nobody signed."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the program openssl, to make a certificate")
    files = ("-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem"))
    asked = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    subprocess.run([*asked, "-days", "2", "-subj", "/CN=nobody", *files], check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    return tls


@pytest.fixture
async def secured(engine, unsigned):
    await engine.stop()
    await engine.start(unsigned)
    return engine


async def test_a_certificate_that_nobody_trusts_is_told_as_such(secured, asking):
    with pytest.raises(StopError, match=r"its certificate is not trusted: self.signed certificate.*--insecure"):
        await replay_in_loop(asking(secured.url))
    assert secured.asked == []


async def test_insecure_takes_any_certificate_and_is_recorded(secured, asking):
    run, found = await results(asking(secured.url, insecure=True))
    assert [result.outcome for result in found] == ["ok"] * 3
    assert run.manifest()["insecure"] is True
