"""Spans as a real OTLP/HTTP receiver gets them, and the trace context as the engine gets it."""

import asyncio
import gzip
import subprocess
import sys

import pytest
from aiohttp import web
from clients import chat
from conftest import running, settings_for
from engines import Engine, gated, healthy, raw
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Sent
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from proxy import app, tracing
from proxy.settings import Settings

LOOPS = ("uvloop",)
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
SECRET = "canary7f3a9"


class Receiver:
    """An OTLP/HTTP collector on a real socket."""

    def __init__(self):
        self.spans, self.resources, self.raw = [], [], b""
        self.answers = asyncio.Event()
        self.answers.set()

    async def take(self, request):
        body = await request.read()
        await self.answers.wait()
        body = gzip.decompress(body) if request.headers.get("Content-Encoding") == "gzip" else body
        self.raw += body
        message = ExportTraceServiceRequest.FromString(body)
        for one in message.resource_spans:
            self.resources.append(plain(one.resource.attributes))
            for scope in one.scope_spans:
                self.spans += scope.spans
        return web.Response(body=b"", content_type="application/x-protobuf")


def plain(attributes):
    """Attributes as a dict."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@pytest.fixture
async def receiver():
    """A started collector."""
    made = Receiver()
    application = web.Application()
    application.router.add_post("/v1/traces", made.take)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


async def traced(start, receiver, script=healthy, *, sample=1.0, body=None, **headers):
    """Send one request through a traced proxy; return what the engine got, the answer and all spans."""
    engine, proxy = await start(script, tracing={"endpoint": receiver.url, "sample": sample})
    client = await proxy.client()
    got = await client.post(chat(f"say {SECRET}", stream=True) if body is None else body, **headers)
    await proxy.ended()
    await proxy.app.spans.flush()
    return engine, proxy, got


def identity(field):
    """Trace id and span id of a `traceparent`, and whether it is recorded."""
    version, trace, span, flags = field.split("-")
    assert version == "00"
    return trace, span, bool(int(flags, 16) & 1)


async def test_a_request_is_one_span_with_its_phases_in_order(start, receiver):
    _engine, proxy, got = await traced(start, receiver)
    assert got.status == 200
    (span,) = receiver.spans
    assert (span.name, span.kind) == ("POST /v1/chat/completions", Sent.SPAN_KIND_SERVER)
    assert [event.name for event in span.events] == ["queue", "prefill", "decode"]
    moments = [event.time_unix_nano for event in span.events]
    assert [span.start_time_unix_nano, *moments, span.end_time_unix_nano] == sorted(
        [span.start_time_unix_nano, *moments, span.end_time_unix_nano]
    )
    exchange = proxy.finished[0]
    assert span.end_time_unix_nano - span.start_time_unix_nano == pytest.approx(exchange.total_s * 1e9, abs=2000)
    assert plain(span.events[1].attributes)["seconds"] == pytest.approx(exchange.upstream_ttft_s, abs=1e-5)
    said = plain(span.attributes)
    assert said["lanewise.request_id"] == exchange.request_id
    expected = {"lanewise.lane": "short", "lanewise.outcome": "ok", "lanewise.backend": "engine0"}
    assert expected.items() <= said.items()
    assert (said["http.response.status_code"], said["gen_ai.request.model"]) == (200, "tiny")
    assert receiver.resources[0]["service.name"] == "lanewise"


async def test_the_engine_is_told_of_our_span_as_its_parent(start, receiver):
    engine, _proxy, _got = await traced(start, receiver, traceparent=PARENT, tracestate="vendor=1")
    (span,) = receiver.spans
    seen = await engine.request()
    assert identity(seen.header("traceparent")) == (TRACE, span.span_id.hex(), True)
    assert seen.header("tracestate") == "vendor=1"
    assert [name for name, _ in seen.headers].count("traceparent") == 1
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, "b7ad6b7169203331")


async def test_a_request_without_a_trace_begins_one(start, receiver):
    engine, _proxy, _got = await traced(start, receiver)
    (span,) = receiver.spans
    assert identity((await engine.request()).header("traceparent")) == (span.trace_id.hex(), span.span_id.hex(), True)
    assert span.parent_span_id == b""


async def test_what_is_not_sampled_is_not_sent_and_the_engine_hears_that(start, receiver):
    engine, _proxy, _got = await traced(start, receiver, sample=0.0)
    assert receiver.spans == []
    assert identity((await engine.request()).header("traceparent"))[2] is False


async def test_a_client_that_records_is_recorded_whatever_the_share(start, receiver):
    await traced(start, receiver, sample=0.0, traceparent=PARENT)
    assert [span.trace_id.hex() for span in receiver.spans] == [TRACE]


async def test_a_client_that_does_not_record_is_not_recorded(start, receiver):
    engine, _proxy, _got = await traced(start, receiver, traceparent=PARENT[:-2] + "00")
    assert receiver.spans == []
    trace, _, recorded = identity((await engine.request()).header("traceparent"))
    assert (trace, recorded) == (TRACE, False)


@pytest.mark.parametrize("odd", ["nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "\xff", ""])
async def test_an_odd_trace_context_begins_a_new_trace(start, receiver, odd):
    engine, _proxy, got = await traced(start, receiver, traceparent=odd)
    assert got.status == 200
    (span,) = receiver.spans
    assert identity((await engine.request()).header("traceparent"))[0] == span.trace_id.hex() != "0" * 32


async def test_an_engine_s_failure_is_an_error_and_brings_none_of_its_words(start, receiver):
    body = b'{"error": {"message": "cannot take canary7f3a9"}}'
    fails = raw(b"HTTP/1.1 500 x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    await traced(start, receiver, fails, Authorization=f"Bearer {SECRET}")
    (span,) = receiver.spans
    assert (span.status.code, span.status.message) == (Status.STATUS_CODE_ERROR, "backend_error")
    assert plain(span.attributes)["error.type"] == "http_5xx"
    assert receiver.raw
    assert SECRET.encode() not in receiver.raw


async def test_a_refusal_has_a_span_without_the_phases_that_it_never_came_to(start, receiver):
    _engine, _proxy, got = await traced(start, receiver, body=f"{{{SECRET}".encode())
    assert got.status == 400
    (span,) = receiver.spans
    assert [event.name for event in span.events] == []
    assert plain(span.attributes)["lanewise.outcome"] == "invalid"
    assert span.status.code == Status.STATUS_CODE_UNSET
    assert SECRET.encode() not in receiver.raw


async def test_a_client_that_leaves_ends_the_span(start, receiver):
    gate = asyncio.Event()
    engine, proxy = await start(gated(gate), tracing={"endpoint": receiver.url})
    client = await proxy.client()
    asking = asyncio.ensure_future(client.post(chat(stream=True)))
    await engine.request()
    client.leave()
    await proxy.ended()
    await proxy.app.spans.flush()
    (span,) = receiver.spans
    said = plain(span.attributes)
    assert (said["lanewise.outcome"], said["lanewise.phase"]) == ("client_gone", "prefill")
    assert [event.name for event in span.events] == ["queue", "prefill"]
    await asyncio.gather(asking, return_exceptions=True)


async def test_what_has_ended_is_sent_when_the_proxy_closes(receiver):
    async with Engine(healthy) as engine:
        async with running(settings_for(engine, tracing={"endpoint": receiver.url})) as proxy:
            assert (await (await proxy.client()).post(chat())).status == 200
            await proxy.ended()
        assert len(receiver.spans) == 1


async def test_a_collector_that_does_not_answer_holds_neither_requests_nor_the_shutdown_up(
    start, receiver, monkeypatch
):
    monkeypatch.setattr("proxy.tracingspans.GOODBYE_S", 0.05)
    receiver.answers.clear()
    _engine, proxy = await start(healthy, tracing={"endpoint": receiver.url})
    client = await proxy.client()
    assert (await client.post(chat())).status == 200
    await proxy.ended()
    async with asyncio.timeout(5):
        await proxy.app.spans.close()
    assert receiver.spans == []
    receiver.answers.set()
    async with asyncio.timeout(5):
        while not receiver.spans:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_without_tracing_the_context_passes_as_it_came(start):
    engine, proxy = await start(healthy)
    client = await proxy.client()
    await client.post(chat(), traceparent=PARENT, tracestate="vendor=1")
    seen = await engine.request()
    assert (seen.header("traceparent"), seen.header("tracestate")) == (PARENT, "vendor=1")
    assert proxy.app.spans is None
    assert (await proxy.ended()).span is None


def test_without_tracing_opentelemetry_is_not_even_imported():
    code = "import sys, proxy.app; print([name for name in sys.modules if name.startswith('opentelemetry')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_tracing_without_opentelemetry_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    monkeypatch.delitem(sys.modules, "proxy.tracingspans", raising=False)
    settings = Settings.model_validate(
        {"backends": ["http://127.0.0.1:1"], "tracing": {"endpoint": "http://127.0.0.1:2"}}
    )
    with pytest.raises(tracing.TracingError, match=r"pip install 'lanewise\[otel\]'"):
        tracing.start(settings)
    with pytest.raises(app.StartError, match="is not installed"):
        app.build(settings)
