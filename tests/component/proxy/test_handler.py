"""The corridor: what is served, what is refused, and in which words."""

import asyncio
import gzip
import json

import pytest
from clients import chat, request
from conftest import until
from engines import MODELS, chat_answer, gated, healthy, silent

from proxy.policy.outcome import Outcome, Reason


async def test_model_lists_and_other_utilities_pass_without_a_lane(start):
    engine, proxy = await start(healthy)
    client = await proxy.client()
    got = await client.get("/v1/models?x=1")
    assert (got.status, got.body) == (200, MODELS)
    assert engine.requests[0].path == "/v1/models"
    exchange = await proxy.ended()
    assert (exchange.lane, exchange.outcome, exchange.backend) == (None, Outcome.OK, "engine0")


async def test_a_utility_goes_to_the_next_backend_when_one_cannot_be_reached(start):
    first, second, proxy = await start(healthy, healthy)
    first.server.close()
    for peer in list(first.connections):
        peer.transport.abort()
    client = await proxy.client()
    answers = [await client.get("/v1/models") for _ in range(3)]
    assert [got.status for got in answers] == [200, 200, 200]
    assert len(second.requests) == 3


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("GET /metrics", 404),
        ("POST /v1/load_lora_adapter", 404),
        ("GET /v1/../metrics", 404),
        ("GET /v1/%6dodels", 404),
        ("GET /v1/chat/completions", 405),
        ("DELETE /v1/models", 405),
        ("TRACE /v1/models", 405),
        ("HEAD /v1/models", 405),
    ],
)
async def test_what_is_not_in_the_allow_list_reaches_no_engine(start, line, status):
    engine, proxy = await start(healthy)
    client = await proxy.client()
    client.send(f"{line} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    got = await client.head()
    assert got.status == status
    assert engine.requests == []
    exchange = await proxy.ended()
    assert (exchange.outcome, exchange.status) == (Outcome.INVALID, status)


async def test_the_absolute_form_counts_by_its_path_alone(start):
    engine, proxy = await start(healthy)
    client = await proxy.client()
    client.send(b"GET http://169.254.169.254/v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await client.answer()).status == 200
    assert engine.requests[0].line == "GET /v1/models HTTP/1.1"
    assert engine.requests[0].header("host") == f"127.0.0.1:{engine.port}"


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"Content_Type": "text/plain"}, 400),
        ({"Content_Encoding": "br"}, 415),
        ({"Content_Encoding": "gzip"}, 415),
        ({"Upgrade": "websocket", "Connection": "Upgrade"}, 405),
        ({"Host": "x/../y"}, 400),
    ],
)
async def test_what_a_head_may_not_say(start, fields, status):
    engine, proxy = await start(healthy)
    got = await (await proxy.client()).post(gzip.compress(b"{}"), **fields)
    assert got.status == status
    assert got.header("content-type") == "application/json"
    assert engine.requests == []


@pytest.mark.parametrize(
    "head",
    [
        b"POST /v1/chat/completions HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: identity, chunked\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n",
    ],
)
async def test_a_doubtful_transfer_coding_is_refused_and_the_connection_closed(start, head):
    engine, proxy = await start(healthy)
    client = await proxy.client()
    client.send(head + b"Content-Type: application/json\r\n\r\n2\r\n{}\r\n0\r\n\r\n")
    assert (await client.answer()).status == 400
    assert await client.closed() == b""
    assert engine.requests == []


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GARBAGE\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET /v1/models HTTP/2.0\r\nHost: x\r\n\r\n", 505),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 70_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 500 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
    ],
)
async def test_bytes_that_are_no_request_are_answered_and_counted(start, data, status, caplog):
    engine, proxy = await start(healthy)
    client = await proxy.client()
    client.send(data)
    got = await client.answer()
    assert (got.status, got.json["error"]["type"]) == (status, got.json["error"]["type"])
    assert await client.closed() == b""
    assert (await proxy.ended()).outcome is Outcome.INVALID
    assert "Traceback" not in caplog.text
    assert engine.requests == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"5",
        b'{"a":1} x',
        b'{"max_tokens": NaN}',
        b'{"max_tokens": 1e400}',
        b'\xef\xbb\xbf{"a":1}',
        '{"a":1}'.encode("utf-16"),
        b'{"a":"\xff"}',
        b'{"a":"\x01"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"a":' + b"9" * 5000 + b"}",
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_body_that_is_no_json_object_is_a_400_in_its_dialect(start, body, path):
    engine, proxy = await start(healthy)
    client = await proxy.client()
    got = await client.post(body, path)
    assert got.status == 400
    assert got.json["error"]["type"] == "invalid_request_error"
    assert got.header("x-should-retry") == "false"
    assert engine.requests == []
    assert (await client.post(chat())).status == 200, "the connection is still of use"


@pytest.mark.parametrize("field", [{"max_tokens": -1}, {"max_tokens": 5.5}, {"model": "x" * 1_000_000}])
async def test_a_field_that_every_engine_refuses_takes_no_slot(start, field):
    engine, proxy = await start(healthy)
    client = await proxy.client()
    got = await client.post(chat() | field)
    assert (got.status, got.json["error"]["type"]) == (400, "invalid_request_error")
    assert len(got.json["error"]["message"]) < 200
    assert engine.requests == []


async def test_two_authorization_headers_are_refused(start):
    engine, proxy = await start(healthy)
    client = await proxy.client()
    client.send(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\nauthorization: Bearer b\r\n\r\n")
    got = await client.answer()
    assert (got.status, got.header("connection")) == (400, "close")
    assert engine.requests == []


async def test_a_body_over_the_limit_is_refused_before_it_is_read(start):
    _, proxy = await start(healthy, limits={"body": "2000B"})
    client = await proxy.client()
    client.send(
        b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2001\r\n\r\n"
    )
    got = await client.answer()
    assert (got.status, got.json["error"]["type"]) == (413, "request_too_large")


async def test_a_chunked_body_over_the_limit_is_refused_when_it_passes_it(start):
    _, proxy = await start(healthy, limits={"body": "2000B"})
    client = await proxy.client()
    client.send(
        b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    client.send(b"bb8\r\n" + b"x" * 3000 + b"\r\n")
    assert (await client.answer()).status == 413


async def test_a_body_that_does_not_arrive_is_a_408(start):
    engine, proxy = await start(healthy, timeouts={"body": "20ms"})
    client = await proxy.client()
    client.send(request(chat())[:-5])
    got = await client.answer()
    assert (got.status, got.header("connection")) == (408, "close")
    assert (await proxy.ended()).outcome is Outcome.INVALID
    assert engine.requests == []


async def test_a_broken_chunked_body_is_a_400_and_reaches_no_engine(start):
    engine, proxy = await start(healthy)
    client = await proxy.client()
    client.send(
        b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    await asyncio.sleep(0)
    client.send(b"5\r\nhelloXX")
    assert (await client.answer()).status == 400
    assert engine.requests == []


@pytest.mark.parametrize("whole", [1, 3])
async def test_whole_requests_are_served_though_rubbish_follows_them_at_once(start, whole):
    engine, proxy = await start(healthy)
    client = await proxy.client()
    client.send(request(chat()) * whole + b"\0\x01rubbish\r\n\r\n")
    assert [(await client.answer()).status for _ in range(whole + 1)] == [200] * whole + [400]
    assert len(engine.requests) == whole


async def test_a_body_that_breaks_in_the_piece_of_its_head_is_a_400_at_once(start, caplog):
    engine, proxy = await start(healthy)
    client = await proxy.client()
    head, _, _ = request(chat()).partition(b"Content-Length")
    client.send(head + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhelloXX\r\n\r\n")
    assert (await client.answer()).status == 400
    assert await client.reader.read() == b""
    assert engine.requests == []
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("line", [b"GET /v1/models\r\n", b"\r\nGET /v1/models\r\nHost: t\r\n"])
async def test_a_line_without_version_is_refused_at_once(start, line):
    engine, proxy = await start(healthy)
    client = await proxy.client()
    client.send(line)
    assert (await client.answer()).status == 400
    assert await client.reader.read() == b""
    assert engine.requests == []


async def test_a_head_may_come_line_by_line(start):
    _, proxy = await start(healthy)
    client = await proxy.client()
    for _ in range(2):
        for line in request(chat()).splitlines(keepends=True):
            client.send(line)
            await asyncio.sleep(0)
        assert (await client.answer()).status == 200


async def test_chunks_that_are_mostly_extensions_are_refused_and_small_chunks_are_not(start):
    engine, proxy = await start(healthy)
    head, _, body = request(chat()).partition(b"Content-Length")
    body = body.partition(b"\r\n\r\n")[2]
    head += b"Transfer-Encoding: chunked\r\n\r\n"
    client = await proxy.client()
    client.send(head + b"1;" + b"e" * 65536 + b"\r\n" + body[:1] + b"\r\n")
    got = await client.answer()
    assert (got.status, got.header("connection")) == (400, "close")
    client = await proxy.client()
    body += b" " * 8000
    client.send(head + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n")
    assert (await client.answer()).status == 200
    assert [one.body for one in engine.requests] == [body]


async def test_a_client_that_waits_for_100_continue_gets_it(start):
    engine, proxy = await start(healthy)
    client = await proxy.client()
    whole = request(chat(), Expect="100-continue")
    at = whole.index(b"\r\n\r\n") + 4
    client.send(whole[:at])
    assert (await client.head()).status == 100
    client.send(whole[at:])
    assert (await client.answer()).status == 200
    assert engine.requests[0].header("expect") is None


async def test_a_large_body_passes_whole(start):
    engine, proxy = await start(healthy)
    body = json.dumps({**chat("word " * 400_000), "model": "of an unknown context"}).encode()
    assert (await (await proxy.client()).post(body)).status == 200
    assert engine.requests[0].body == body


async def test_a_full_queue_rejects_at_once_in_the_words_of_the_contract(start):
    engine, proxy = await start(silent, scheduling={"concurrency": 1}, lanes={"short": {"queue": {"requests": 1}}})
    for number in range(2):
        (await proxy.client()).send(request(chat(stream=True)))
        await until(lambda number=number: proxy.held()[0] + proxy.held()[2] == number + 1)
    got = await (await proxy.client()).post(chat(stream=True))
    assert got.status == 429
    assert got.json["error"]["code"] == "queue_full"
    assert 1 <= int(got.header("retry-after")) <= 15
    assert int(got.header("retry-after-ms")) > 0
    assert got.header("x-lanewise-reason") == "queue_full"
    assert got.header("x-lanewise-lane") == "short"
    assert got.header("x-lanewise-queue-depth") == "1"
    assert got.header("x-should-retry") is None
    exchange = await proxy.ended()
    assert (exchange.outcome, exchange.reason, exchange.status) == (Outcome.REJECTED, Reason.QUEUE_FULL, 429)
    assert len(engine.requests) == 1


async def test_a_request_that_waits_past_its_deadline_is_refused(start):
    _, proxy = await start(
        silent,
        scheduling={"concurrency": 1, "drop_factor": 1, "deadline_margin": "0s"},
        lanes={"short": {"ttft_slo": "50ms"}},
    )
    (await proxy.client()).send(request(chat(stream=True)))
    await until(lambda: proxy.held()[0] == 1)
    got = await (await proxy.client()).post(chat(stream=True), "/v1/chat/completions")
    assert (got.status, got.json["error"]["code"]) == (429, "queue_timeout")
    exchange = await proxy.ended()
    assert (exchange.outcome, exchange.reason) == (Outcome.EXPIRED, Reason.QUEUE_TIMEOUT)
    assert exchange.queue_s < 1.0


async def test_a_waiting_request_runs_when_the_one_before_it_ends(start):
    gate = asyncio.Event()
    engine, proxy = await start(gated(gate), scheduling={"concurrency": 1})
    first, second = await proxy.client(), await proxy.client()
    first.send(request(chat()))
    await engine.request()
    second.send(request(chat()))
    await until(lambda: proxy.held()[2] == 1)
    gate.set()
    assert (await first.answer()).status == (await second.answer()).status == 200
    assert (await proxy.ended(1)).queue_s > 0
    assert proxy.held() == (0, 0, 0)


async def test_a_prompt_that_fits_no_context_is_a_400_with_the_numbers(start):
    _, proxy = await start(healthy)
    got = await (await proxy.client()).post({"model": "tiny", "prompt": [1] * 20_000}, "/v1/completions")
    assert (got.status, got.json["error"]["code"]) == (400, "too_long")
    assert "20000" in got.json["error"]["message"]
    assert "16384" in got.json["error"]["message"]
    assert got.header("x-should-retry") == "false"
    assert (await proxy.ended()).outcome is Outcome.TOO_LONG


async def test_an_output_cap_that_bites_is_sent_and_told(start):
    engine, proxy = await start(healthy, lanes={"short": {"output": {"ceiling": 100}}})
    client = await proxy.client()
    got = await client.post(chat(max_tokens=5000))
    assert got.header("x-lanewise-max-tokens-clamped") == "5000->100"
    assert engine.requests[0].json["max_tokens"] == 100
    untouched = await client.post(chat(max_tokens=50))
    assert untouched.header("x-lanewise-max-tokens-clamped") is None
    assert engine.requests[1].body == json.dumps(chat(max_tokens=50)).encode()


async def test_a_request_id_is_taken_from_the_client_or_made(start):
    engine, proxy = await start(healthy)
    client = await proxy.client()
    got = await client.post(chat(), X_Request_Id="job-7")
    assert got.header("x-request-id") == engine.requests[0].header("x-request-id") == "job-7"
    made = await client.post(chat(), X_Request_Id="x" * 300)
    assert made.header("x-request-id") == engine.requests[1].header("x-request-id")
    assert len(made.header("x-request-id")) == 16
    refused = await client.get("/nope")
    assert len(refused.header("x-request-id")) == 16


async def test_the_header_of_the_request_id_can_be_named(start):
    _, proxy = await start(healthy, request_id_header="X-Trace-Id")
    got = await (await proxy.client()).post(chat(), X_Trace_Id="t1")
    assert got.header("x-trace-id") == "t1"


async def test_client_headers_that_a_proxy_must_not_pass_do_not_reach_the_engine(start):
    engine, proxy = await start(healthy)
    await (await proxy.client()).post(
        chat(), Authorization="Bearer k", Connection="X-Hop", X_Hop="1", X_Forwarded_For="6.6.6.6", traceparent="00-1"
    )
    seen = engine.requests[0]
    assert seen.header("authorization") == "Bearer k"
    assert seen.header("traceparent") == "00-1"
    assert seen.header("x-hop") is None
    assert seen.header("x-forwarded-for") == "127.0.0.1"


async def test_the_estimate_learns_from_what_the_engine_counts(start):
    _, proxy = await start(healthy)
    client = await proxy.client()
    for _ in range(3):
        await client.post(chat("some words to count " * 20))
    assert proxy.app.classification.estimator.error("tiny") > 0


async def test_a_fault_of_ours_is_a_500_and_leaves_nothing_held(start, monkeypatch, caplog):
    engine, proxy = await start(healthy)
    monkeypatch.setattr("proxy.attempt.headers.upstream_headers", lambda *_, **__: 1 / 0)
    got = await (await proxy.client()).post(chat())
    assert (got.status, got.json["error"]["code"]) == (500, "internal")
    assert "ZeroDivisionError" in caplog.text
    assert proxy.held() == (0, 0, 0)
    monkeypatch.undo()
    assert (await (await proxy.client()).post(chat())).body == chat_answer()
    assert len(engine.requests) == 1
