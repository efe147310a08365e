"""The relay on real sockets: what the engine sent is what the client gets, and never more than that."""

import asyncio
import contextlib
import json
import random

import pytest
from clients import chat, request
from conftest import until
from engines import DONE, Peer, Received, chat_answer, chat_chunk, chat_events, event, healthy, raw, silent

from proxy.exchange import Exchange, UpstreamError
from proxy.policy.outcome import Outcome, Phase, Reason

OWN_USAGE = {"stream": True, "stream_options": {"include_usage": True}}
"""A stream whose client asked for usage itself: the proxy changes nothing in either direction."""


async def test_a_request_body_reaches_the_engine_byte_for_byte(start):
    engine, proxy = await start(healthy)
    body = b'{ "model" : "tiny",\t"messages":[{"role":"user","content":"Z\xc3\xbcrich \\u00fc"}], "x": 1.0e2, "x": 3 }'
    client = await proxy.client()
    got = await client.post(body)
    assert got.status == 200
    assert engine.requests[0].body == body


async def test_an_answer_that_is_not_streamed_comes_back_byte_for_byte(start):
    _engine, proxy = await start(healthy)
    client = await proxy.client()
    got = await client.post(chat())
    assert (got.status, got.body, got.whole) == (200, chat_answer(), True)
    exchange = await proxy.ended()
    assert exchange.outcome is Outcome.OK
    assert (exchange.prompt_tokens, exchange.output_tokens, exchange.finish_reason) == (7, 3, "stop")


async def test_a_stream_keeps_the_chunks_it_came_with(start):
    _engine, proxy = await start(healthy)
    client = await proxy.client()
    got = await client.post(chat(**OWN_USAGE))
    assert got.pieces[:-1] == chat_events(usage=True)
    assert got.whole
    assert got.wire.endswith(b"0\r\n\r\n")
    exchange = await proxy.ended()
    assert exchange.outcome is Outcome.OK
    assert exchange.token_events == 3
    assert exchange.first_token is not None


class Spy:
    """A client's transport that takes note of what is written."""

    def __init__(self, transport) -> None:
        self.transport = transport
        self.writes: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.writes.append(data)
        self.transport.write(data)

    def __getattr__(self, name: str):
        return getattr(self.transport, name)


@pytest.mark.parametrize("asked", [{"stream": True}, OWN_USAGE])
async def test_what_comes_in_one_read_goes_out_in_one_write(start, asked):
    spies: list[Spy] = []
    role, word, finish, done = chat_events(["a"])

    def framed(*events: bytes) -> bytes:
        return b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in events)

    async def script(received: Received, peer: Peer) -> None:
        if b"stream" not in received.body:
            await healthy(received, peer)
            return
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        peer.send(head + framed(role, word))
        await until(lambda: len(spies[0].writes) == 1)
        peer.send(framed(finish, done) + b"0\r\n\r\n")

    _engine, proxy = await start(script)
    client = await proxy.client()
    await client.post(chat())
    (connection,) = proxy.app._listener.connections
    spies.append(Spy(connection.transport))
    connection.transport = spies[0]
    got = await client.post(chat(**asked))
    assert got.whole
    first, last = spies[0].writes
    assert first.startswith(b"HTTP/1.1 200 OK\r\n")
    assert first.count(b"data: ") == 2
    assert last.count(b"data: ") == 2
    assert last.endswith(b"\r\n0\r\n\r\n")


async def test_a_chunk_for_a_client_that_has_just_left_is_dropped_without_a_word(start, caplog):
    left = asyncio.Event()

    async def script(_: Received, peer: Peer) -> None:
        peer.stream_head()
        for word in ("a", "b"):
            peer.chunk(chat_chunk(word))
        await left.wait()

    _engine, proxy = await start(script)
    client = await proxy.client()
    answer = asyncio.ensure_future(client.post(chat(**OWN_USAGE)))
    await until(lambda: any(relay.on_chunk for relay in proxy.app.engines._relays))
    (relay,) = proxy.app.engines._relays
    (connection,) = proxy.app._listener.connections
    connection.transport.abort()
    await asyncio.sleep(0)  # it is lost, and who serves it has not heard of that yet
    assert connection.transport is None
    late = chat_chunk("c")
    relay._connection.data_received(b"%x\r\n%b\r\n" % (len(late), late))
    exchange = await proxy.ended()
    left.set()
    assert exchange.outcome is Outcome.CLIENT_GONE
    assert exchange.response_bytes == sum(len(chat_chunk(word)) for word in "abc")
    assert "relaying failed" not in caplog.text
    answer.cancel()


async def test_while_a_stream_runs_nothing_of_its_request_is_kept(start, tmp_path):
    going_on = asyncio.Event()

    async def script(_: Received, peer: Peer) -> None:
        peer.stream_head()
        await going_on.wait()
        for one in chat_events(usage=True):
            peer.chunk(one)
        peer.send(b"0\r\n\r\n")

    _engine, proxy = await start(script, recorder={"enabled": True, "directory": str(tmp_path)})
    client = await proxy.client()
    seen: list[Exchange] = []
    proxy.app.engines.on_stream, told = seen.append, proxy.app.engines.on_stream
    answer = asyncio.ensure_future(client.post(chat(**OWN_USAGE)))
    await until(lambda: bool(seen))
    assert seen[0].body == b""
    assert seen[0].facts.blocks != ()
    told(seen[0])
    assert seen[0].facts.blocks == ()
    going_on.set()
    assert (await answer).whole


@pytest.mark.parametrize("seed", range(6))
async def test_a_stream_that_arrives_in_any_pieces_is_the_same_stream(start, seed):
    wire = b"".join(b"%x\r\n%b\r\n" % (len(e), e) for e in chat_events(usage=True)) + b"0\r\n\r\n"

    async def script(_: Received, peer: Peer) -> None:
        peer.stream_head()
        step = 7 + 31 * seed
        for at in range(0, len(wire), step):
            peer.send(wire[at : at + step])
            await asyncio.sleep(0)

    _, proxy = await start(script)
    client = await proxy.client()
    got = await client.post(chat(**OWN_USAGE))
    assert got.wire == wire
    assert (await proxy.ended()).token_events == 3


ODD_EVENTS = {
    "crlf": b"".join(event.replace(b"\n", b"\r\n") for event in chat_events(usage=True)),
    "comments": b": keep-alive\n\n" * 3 + b"".join(chat_events(usage=True)),
    "ids and retries": b"id: 7\nretry: 100\n" + b"".join(chat_events(usage=True)),
    "one long event": chat_chunk("x" * 300_000) + b"".join(chat_events(usage=True)),
    "one read": b"".join(chat_events(["a"] * 50, usage=True)),
}


@pytest.mark.parametrize("what", ODD_EVENTS)
async def test_events_of_any_form_pass_untouched(start, what):
    async def script(_: Received, peer: Peer) -> None:
        peer.stream_head()
        peer.chunk(ODD_EVENTS[what])
        peer.send(b"0\r\n\r\n")

    _, proxy = await start(script)
    got = await (await proxy.client()).post(chat(**OWN_USAGE))
    assert (got.body, got.whole) == (ODD_EVENTS[what], True)
    exchange = await proxy.ended()
    assert exchange.outcome is Outcome.OK
    assert exchange.token_events == {"one long event": 4, "one read": 50}.get(what, 3)


async def test_usage_that_only_the_proxy_asked_for_is_counted_and_taken_out(start):
    engine, proxy = await start(healthy)
    client = await proxy.client()
    got = await client.post(chat(stream=True))
    assert engine.requests[0].json["stream_options"] == {"include_usage": True}
    assert got.body == b"".join(chat_events())
    assert got.whole
    exchange = await proxy.ended()
    assert (exchange.prompt_tokens, exchange.output_tokens) == (7, 3)


async def test_an_http_1_0_client_gets_bare_bytes_and_a_closed_connection(start):
    _, proxy = await start(healthy)
    client = await proxy.client()
    client.send(request(chat(stream=True), version="1.0"))
    got = await client.answer()
    assert got.header("transfer-encoding") is None
    assert got.header("connection") == "close"
    assert got.body == b"".join(chat_events())


async def test_a_stream_that_ends_with_its_connection_is_chunked_for_the_client(start):
    body = b"".join(chat_events(usage=True))
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    _, proxy = await start(raw(head + body, close=True))
    client = await proxy.client()
    got = await client.post(chat(**OWN_USAGE))
    assert (got.body, got.whole) == (body, True)


async def test_trailers_and_chunk_extensions_change_nothing(start):
    pieces = b"".join(b"%x;ext=1\r\n%b\r\n" % (len(e), e) for e in chat_events(usage=True))
    answer = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        + pieces
        + b"0\r\nX-Trailer: 1\r\n\r\n"
    )
    engine, proxy = await start(raw(answer))
    client = await proxy.client()
    got = await client.post(chat(**OWN_USAGE))
    assert got.whole
    assert b"X-Trailer" not in got.wire
    again = await client.post(chat(**OWN_USAGE))
    assert again.whole
    assert [request.connection for request in engine.requests] == [0, 0]


async def test_informational_heads_are_swallowed(start):
    answer = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
    ok = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-type: application/json\r\n\r\n{}"
    _, proxy = await start(raw(answer + ok))
    client = await proxy.client()
    assert (await client.post(chat())).body == b"{}"


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_an_answer_without_a_body_leaves_the_connection_usable(start, status):
    engine, proxy = await start(raw(b"HTTP/1.1 " + status + b"\r\n\r\n"))
    client = await proxy.client()
    for _ in range(2):
        client.send(request(chat()))
        head = await client.head()
        assert head.status == int(status[:3])
    assert [request.connection for request in engine.requests] == [0, 0]


async def test_engine_headers_pass_and_hop_by_hop_ones_do_not(start):
    async def script(_: Received, peer: Peer) -> None:
        peer.answer(b"{}", extra=b"Set-Cookie: a=1\r\nSet-Cookie: b=2\r\nConnection: X-Foo\r\nX-Foo: 1\r\n")

    _, proxy = await start(script)
    got = await (await proxy.client()).post(chat())
    assert [value for name, value in got.headers if name == "set-cookie"] == ["a=1", "b=2"]
    assert got.header("x-foo") is None
    assert got.header("connection") is None


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (b"400 Bad Request", Outcome.INVALID),
        (b"404 Not Found", Outcome.INVALID),
        (b"429 Too Many Requests", Outcome.BACKEND_ERROR),
        (b"500 Internal Server Error", Outcome.BACKEND_ERROR),
        (b"503 Service Unavailable", Outcome.BACKEND_ERROR),
    ],
)
async def test_an_error_of_the_engine_passes_as_it_came(start, status, outcome):
    body = b'{"error":{"message":"no","type":"T","param":null,"code":1}}'

    async def script(_: Received, peer: Peer) -> None:
        peer.answer(body, status=status)

    engine, proxy = await start(script)
    got = await (await proxy.client()).post(chat(stream=True))
    assert (got.status, got.body) == (int(status[:3]), body)
    assert len(engine.requests) == 1
    exchange = await proxy.ended()
    assert exchange.outcome is outcome
    assert exchange.detail == "no"


async def test_an_error_frame_in_a_stream_passes_and_is_counted(start):
    async def script(_: Received, peer: Peer) -> None:
        peer.stream_head()
        for item in (chat_chunk("a"), event({"error": {"message": "EngineCore died", "code": 500}}), DONE):
            peer.chunk(item)
        peer.send(b"0\r\n\r\n")

    _, proxy = await start(script)
    got = await (await proxy.client()).post(chat(**OWN_USAGE))
    assert got.pieces[1].startswith(b'data: {"error"')
    assert got.whole
    exchange = await proxy.ended()
    assert (exchange.outcome, exchange.upstream_error) == (Outcome.BACKEND_ERROR, UpstreamError.STREAM_ERROR)


def _events(body: bytes) -> list:
    return [json.loads(part[6:]) for part in body.split(b"\n\n") if part.startswith(b"data: {")]


CUTS = {
    "between two chunks": lambda chunk: chunk,
    "inside a chunk": lambda chunk: chunk[: len(chunk) // 2],
    "before the end of a chunk": lambda chunk: chunk[:-2],
    "inside the end of a chunk": lambda chunk: chunk[:-1],
    "inside a size line": lambda chunk: chunk + b"4",
    "behind a size line": lambda chunk: chunk + b"40\r\n",
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("own_usage", [True, False])
async def test_a_stream_that_is_cut_never_looks_complete(start, cut, own_usage):
    first, second = chat_chunk("a"), chat_chunk("b")

    async def script(_: Received, peer: Peer) -> None:
        peer.stream_head()
        peer.chunk(first)
        peer.send(CUTS[cut](b"%x\r\n%b\r\n" % (len(second), second)))
        peer.close()

    _, proxy = await start(script)
    client = await proxy.client()
    got = await client.post(chat(**(OWN_USAGE if own_usage else {"stream": True})))
    assert got.status == 200
    assert not got.whole
    assert b"[DONE]" not in got.body
    assert not got.wire.endswith(b"0\r\n\r\n")
    assert b'"code":"truncated"' in got.body
    assert got.body.startswith(first)
    exchange = await proxy.ended()
    assert (exchange.outcome, exchange.upstream_error) == (Outcome.TRUNCATED, UpstreamError.TRUNCATED_STREAM)
    assert proxy.held() == (0, 0, 0)


async def test_a_stream_that_ends_cleanly_without_its_marker_is_cut_for_the_client(start):
    async def script(_: Received, peer: Peer) -> None:
        peer.stream_head()
        peer.chunk(chat_chunk("a"))
        peer.send(b"0\r\n\r\n")

    _, proxy = await start(script)
    got = await (await proxy.client()).post(chat(**OWN_USAGE))
    assert not got.whole
    assert _events(got.body)[-1]["error"]["code"] == "truncated"
    assert (await proxy.ended()).outcome is Outcome.TRUNCATED


async def test_a_stream_without_length_that_stops_is_cut_for_the_client(start):
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    _, proxy = await start(raw(head + chat_chunk("a"), close=True))
    got = await (await proxy.client()).post(chat(**OWN_USAGE))
    assert not got.whole
    assert _events(got.body)[-1]["error"]["code"] == "truncated"


async def test_a_cut_stream_of_messages_ends_with_an_error_event_of_that_dialect(start):
    async def script(_: Received, peer: Peer) -> None:
        peer.stream_head()
        peer.chunk(b'event: message_start\ndata: {"type":"message_start","message":{}}\n\n')
        peer.close()

    _, proxy = await start(script)
    got = await (await proxy.client()).post({**chat(stream=True), "max_tokens": 9}, "/v1/messages")
    assert got.pieces[-1].startswith(b'event: error\ndata: {"type":"error"')
    assert not got.whole


async def test_a_stream_that_breaks_after_its_end_marker_is_complete(start):
    async def script(_: Received, peer: Peer) -> None:
        peer.stream_head()
        for item in chat_events(usage=True):
            peer.chunk(item)
        peer.close()

    _, proxy = await start(script)
    got = await (await proxy.client()).post(chat(**OWN_USAGE))
    assert got.whole
    assert (await proxy.ended()).outcome is Outcome.OK


async def test_an_answer_shorter_than_it_said_becomes_a_502(start):
    short = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{"
    _, proxy = await start(raw(short, close=True))
    client = await proxy.client()
    got = await client.post(chat())
    assert (got.status, got.json["error"]["code"], got.whole) == (502, "truncated", True)
    assert (await proxy.ended()).outcome is Outcome.TRUNCATED


GARBAGE = {
    "no http": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    "length and chunks": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}",
    "a bare carriage return": b"HTTP/1.1 200 OK\r\nX-A: secret\rX-B: 1\r\ncontent-length: 2\r\n\r\n{}",
    "a huge header": b"HTTP/1.1 200 OK\r\nX-A: " + b"secret" * 3500 + b"\r\ncontent-length: 2\r\n\r\n{}",
    "a head without end": b"HTTP/1.1 200 OK\r\n" + b"X-A: secret\r\n" * 4000,
    "a switch of protocols": b"HTTP/1.1 101 Switching\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
    "an unknown coding": b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
}


@pytest.mark.parametrize("what", GARBAGE)
async def test_an_answer_that_is_no_http_becomes_a_502_without_its_bytes(start, what):
    _, proxy = await start(raw(GARBAGE[what]))
    client = await proxy.client()
    got = await client.post(chat())
    assert (got.status, got.json["error"]["code"]) == (502, "backend_error")
    assert b"secret" not in got.body
    assert b"SSH" not in got.body
    exchange = await proxy.ended()
    assert (exchange.outcome, exchange.upstream_error) == (Outcome.BACKEND_ERROR, UpstreamError.PROTOCOL)
    assert (await client.get("/nope")).status == 404, "the client's connection is still in step"


async def test_a_bad_chunk_size_in_the_middle_of_a_stream_cuts_it(start):
    async def script(_: Received, peer: Peer) -> None:
        peer.stream_head()
        peer.chunk(chat_chunk("a"))
        peer.send(b"0x10\r\n")

    _, proxy = await start(script)
    got = await (await proxy.client()).post(chat(**OWN_USAGE))
    assert not got.whole
    assert b"0x10" not in got.wire
    assert _events(got.body)[-1]["error"]["code"] == "backend_error"


async def test_an_engine_that_never_answers_is_a_504_and_frees_the_slot(start):
    lanes = {"short": {"ttft_slo": "10ms", "first_byte_timeout": "20ms"}}
    engine, proxy = await start(silent, lanes=lanes)
    got = await (await proxy.client()).post(chat(stream=True))
    assert (got.status, got.json["error"]["code"]) == (504, "backend_timeout")
    assert (await proxy.ended()).outcome is Outcome.BACKEND_TIMEOUT
    assert proxy.held() == (0, 0, 0)
    await asyncio.wait_for(engine.peers[0].gone.wait(), 5)


async def test_an_answer_that_is_not_streamed_has_a_time_limit_of_its_own(start):
    _, proxy = await start(silent, timeouts={"answer": "20ms"}, lanes={"short": {"first_byte_timeout": "1h"}})
    got = await (await proxy.client()).post(chat())
    assert got.status == 504


async def test_a_stream_that_falls_silent_ends_with_an_error_event(start):
    async def script(_: Received, peer: Peer) -> None:
        peer.stream_head()
        peer.chunk(chat_chunk("a"))

    engine, proxy = await start(script, timeouts={"idle_stream": "20ms"})
    got = await (await proxy.client()).post(chat(**OWN_USAGE))
    assert not got.whole
    assert _events(got.body)[-1]["error"]["code"] == "backend_timeout"
    await asyncio.wait_for(engine.peers[0].gone.wait(), 5)


async def test_a_stream_that_trickles_within_one_event_is_taken_for_silent(start):
    async def script(_: Received, peer: Peer) -> None:
        peer.stream_head()
        peer.chunk(chat_chunk("a"))
        while not peer.gone.is_set():
            peer.chunk(b" ")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(peer.gone.wait(), 0.005)

    _, proxy = await start(script, timeouts={"idle_stream": "50ms"})
    got = await (await proxy.client()).post(chat(**OWN_USAGE))
    assert not got.whole
    assert _events(got.body)[-1]["error"]["code"] == "backend_timeout"


async def test_comments_keep_a_stream_alive(start):
    async def script(_: Received, peer: Peer) -> None:
        peer.stream_head()
        peer.chunk(chat_chunk("a"))
        for _ in range(30):
            peer.chunk(b": keep-alive\n\n")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(peer.gone.wait(), 0.01)
        peer.chunk(DONE)
        peer.send(b"0\r\n\r\n")

    _, proxy = await start(script, timeouts={"idle_stream": "150ms"})
    assert (await (await proxy.client()).post(chat(**OWN_USAGE))).whole


async def test_a_client_that_leaves_in_prefill_frees_slot_budget_and_engine(start):
    engine, proxy = await start(silent)
    client = await proxy.client()
    client.send(request(chat(stream=True)))
    await engine.request()
    assert proxy.held()[0] == 1
    client.leave()
    exchange = await proxy.ended()
    assert (exchange.outcome, exchange.phase, exchange.status) == (Outcome.CLIENT_GONE, Phase.PREFILL, None)
    assert proxy.held() == (0, 0, 0)
    await asyncio.wait_for(engine.peers[0].gone.wait(), 0.5)


async def test_a_client_that_leaves_while_decoding_frees_slot_and_engine(start):
    async def script(_: Received, peer: Peer) -> None:
        peer.stream_head()
        peer.chunk(chat_chunk("a"))

    engine, proxy = await start(script)
    client = await proxy.client()
    client.send(request(chat(**OWN_USAGE)))
    await client.head()
    await client.reader.readuntil(b"\n\n")
    client.leave()
    exchange = await proxy.ended()
    assert (exchange.outcome, exchange.phase) == (Outcome.CLIENT_GONE, Phase.DECODE)
    assert proxy.held() == (0, 0, 0)
    await asyncio.wait_for(engine.peers[0].gone.wait(), 0.5)


async def test_a_client_that_leaves_while_an_unstreamed_answer_is_made_frees_the_engine(start):
    engine, proxy = await start(silent)
    client = await proxy.client()
    client.send(request(chat()))
    await engine.request()
    client.leave()
    assert (await proxy.ended()).outcome is Outcome.CLIENT_GONE
    assert proxy.held() == (0, 0, 0)
    await asyncio.wait_for(engine.peers[0].gone.wait(), 0.5)


async def test_a_client_that_leaves_the_queue_never_reaches_the_engine(start):
    engine, proxy = await start(silent, scheduling={"concurrency": 1})
    first, second = await proxy.client(), await proxy.client()
    first.send(request(chat(stream=True)))
    await engine.request()
    second.send(request(chat(stream=True)))
    await until(lambda: proxy.held()[2] == 1)
    second.leave()
    exchange = await proxy.ended()
    assert (exchange.outcome, exchange.phase, exchange.backend) == (Outcome.CLIENT_GONE, Phase.QUEUED, None)
    assert proxy.held()[2] == 0
    assert len(engine.requests) == 1


async def test_clients_that_leave_at_any_moment_leave_nothing_behind(start):
    async def script(received: Received, peer: Peer) -> None:
        peer.stream_head()
        for item in chat_events(usage=True):
            peer.chunk(item)
            await asyncio.sleep(0)
        peer.send(b"0\r\n\r\n")

    engine, proxy = await start(script, scheduling={"concurrency": 3})
    rng = random.Random(7)

    async def come_and_go() -> None:
        client = await proxy.client()
        client.send(request(chat(stream=rng.random() < 0.7)))
        for _ in range(rng.randint(0, 40)):
            await asyncio.sleep(0)
        client.leave()

    await asyncio.gather(*(come_and_go() for _ in range(150)))
    await until(lambda: proxy.app.corridor.active == 0)
    assert proxy.held() == (0, 0, 0)
    assert proxy.app.admission.live == 0
    await until(lambda: len(engine.open_peers) == proxy.app.engines.pools["engine0"].idle)
    got = await (await proxy.client()).post(chat(**OWN_USAGE))
    assert got.whole


async def test_a_half_closed_client_counts_as_gone(start):
    engine, proxy = await start(silent)
    client = await proxy.client()
    client.send(request(chat(stream=True)))
    await engine.request()
    client.writer.write_eof()
    assert (await proxy.ended()).outcome is Outcome.CLIENT_GONE
    assert proxy.held() == (0, 0, 0)


async def test_a_client_that_does_not_read_holds_the_engine_back(start):
    flood = event({"choices": [{"index": 0, "delta": {"content": "x" * 60_000}}]})
    sent = 0

    async def script(_: Received, peer: Peer) -> None:
        nonlocal sent
        peer.stream_head()
        while not peer.transport.is_closing():
            await peer.flowing.wait()
            peer.chunk(flood)
            sent += 1
            await asyncio.sleep(0)

    engine, proxy = await start(script)
    client = await proxy.client()
    client.writer.transport.pause_reading()
    client.send(request(chat(**OWN_USAGE)))
    await engine.request()
    await until(lambda: not engine.peers[0].flowing.is_set() and _paused(proxy))
    connection = next(iter(proxy.app._listener.connections))
    waiting = connection.transport.get_write_buffer_size()
    assert waiting < 2 * 2**20
    before = sent
    client.writer.transport.resume_reading()
    await client.head()
    while sent <= before + 20:
        await client.reader.readuntil(b"\n\n")
    client.leave()
    assert (await proxy.ended()).outcome is Outcome.CLIENT_GONE


def _paused(proxy) -> bool:
    flows = [connection.flow for connection in proxy.app._listener.connections]
    return bool(flows) and all(flow is not None and flow.paused for flow in flows)


async def test_a_client_that_stops_reading_for_good_is_cut_off(start):
    flood = event({"choices": [{"index": 0, "delta": {"content": "x" * 60_000}}]})

    async def script(_: Received, peer: Peer) -> None:
        peer.stream_head()
        while not peer.transport.is_closing():
            await peer.flowing.wait()
            peer.chunk(flood)
            await asyncio.sleep(0)

    _, proxy = await start(script, timeouts={"idle_stream": "100ms"})
    client = await proxy.client()
    client.writer.transport.pause_reading()
    client.send(request(chat(**OWN_USAGE)))
    exchange = await proxy.ended()
    assert (exchange.outcome, exchange.phase) == (Outcome.CLIENT_GONE, Phase.DECODE)
    assert proxy.held() == (0, 0, 0)
    client.leave()


async def test_pipelined_requests_are_answered_in_order_also_behind_a_stream(start):
    _engine, proxy = await start(healthy)
    client = await proxy.client()
    client.send(request(chat(**OWN_USAGE)) + request(chat()) + request(chat(), "/nope"))
    answers = [await client.answer() for _ in range(3)]
    assert [got.status for got in answers] == [200, 200, 404]
    assert answers[0].body == b"".join(chat_events(usage=True))
    assert answers[1].body == chat_answer()


async def test_a_stale_connection_is_retried_once_on_a_new_one(start):
    async def script(received: Received, peer: Peer) -> None:
        if received.connection == 0 and received.nth == 1:
            peer.close()
        else:
            await healthy(received, peer)

    engine, proxy = await start(script)
    client = await proxy.client()
    assert (await client.post(chat())).status == 200
    got = await client.post(chat(), X_Request_Id="abc")
    assert (got.status, got.body) == (200, chat_answer())
    assert [(request.connection, request.nth) for request in engine.requests] == [(0, 0), (0, 1), (1, 0)]
    assert [request.header("x-request-id") for request in engine.requests][1:] == ["abc", "abc-try2"]
    exchange = await proxy.ended(1)
    assert (exchange.attempts, exchange.retries, exchange.outcome) == (2, 1, Outcome.OK)
    assert proxy.held() == (0, 0, 0)


async def test_a_new_connection_that_dies_is_not_retried(start):
    async def script(_: Received, peer: Peer) -> None:
        peer.close()

    engine, proxy = await start(script)
    got = await (await proxy.client()).post(chat())
    assert (got.status, got.json["error"]["code"]) == (502, "backend_error")
    assert len(engine.requests) == 1
    assert (await proxy.ended()).upstream_error is UpstreamError.RESET


async def test_a_reused_connection_that_began_to_answer_is_not_retried(start):
    async def script(received: Received, peer: Peer) -> None:
        if received.nth == 1:
            peer.send(b"HTTP/1.1 200")
            peer.close()
        else:
            await healthy(received, peer)

    engine, proxy = await start(script)
    client = await proxy.client()
    await client.post(chat())
    assert (await client.post(chat())).status == 502
    assert len(engine.requests) == 2


async def test_a_backend_that_refuses_the_connection_is_passed_over(start):
    first, second, proxy = await start(healthy, healthy)
    first.server.close()
    for peer in list(first.connections):
        peer.transport.abort()
    client = await proxy.client()
    for _ in range(2):
        assert (await client.post(chat())).status == 200
    assert len(second.requests) == 2
    exchanges = [await proxy.ended(0), await proxy.ended(1)]
    assert all(exchange.backend == "engine1" for exchange in exchanges)
    assert sum(exchange.retries for exchange in exchanges) >= 1
    assert proxy.held() == (0, 0, 0)


async def test_when_no_backend_can_be_reached_the_answer_is_503(start):
    engine, proxy = await start(healthy)
    await engine.stop()
    got = await (await proxy.client()).post(chat())
    assert (got.status, got.json["error"]["code"]) == (503, "no_backend")
    assert 1 <= int(got.header("retry-after")) <= 15
    exchange = await proxy.ended()
    assert (exchange.outcome, exchange.reason) == (Outcome.REJECTED, Reason.NO_BACKEND)


async def test_a_connection_that_answers_unasked_is_not_used_again(start):
    async def script(received: Received, peer: Peer) -> None:
        peer.answer(chat_answer())
        if received.nth == 0 and received.connection == 0:
            peer.answer(b'{"poison":1}')

    engine, proxy = await start(script)
    client = await proxy.client()
    for _ in range(2):
        assert (await client.post(chat())).body == chat_answer()
    assert [request.connection for request in engine.requests] == [0, 1]
