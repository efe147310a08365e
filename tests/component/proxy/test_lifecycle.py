"""Start, drain, end."""

import asyncio
import json
import logging
import socket

import aiohttp
import pytest
from clients import Client, chat, request
from conftest import running, settings_for, until
from engines import Engine, Peer, Received, chat_answer, chat_chunk, chat_events, gated, healthy, silent

from proxy import app
from proxy.listener import PureParserError, check_parser
from proxy.logs import TextLines
from proxy.policy.outcome import Outcome


@pytest.fixture
def stop():
    return asyncio.Event()


@pytest.fixture
def hurry():
    return asyncio.Event()


async def admin(proxy, path):
    url = f"http://127.0.0.1:{proxy.app.admin_listen.port}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, await answer.text()


async def test_it_starts_without_a_backend_and_says_so(caplog):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = Engine(silent, port=free.getsockname()[1])
    with caplog.at_level(logging.INFO, logger="lanewise"):
        async with running(settings_for(nobody)) as proxy:
            assert "no backend answers yet" in caplog.text
            assert (await admin(proxy, "/readyz"))[0] == 503
            assert (await admin(proxy, "/livez"))[0] == 200
            got = await (await proxy.client()).post(chat())
            assert (got.status, got.json["error"]["code"]) == (503, "no_backend")
            assert (await (await proxy.client()).get("/v1/models")).status == 503


async def test_it_says_where_it_listens_and_for_whom(caplog):
    with caplog.at_level(logging.INFO, logger="lanewise"):
        async with Engine(healthy) as engine, running(settings_for(engine)) as proxy:
            assert f"listens on 127.0.0.1:{proxy.port}" in caplog.text
            assert f"admin on 127.0.0.1:{proxy.app.admin_listen.port}" in caplog.text
            assert "engine0 (up)" in caplog.text


@pytest.mark.parametrize("key", ["listen", "admin"])
async def test_a_port_in_use_is_one_clear_sentence(key):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        async with Engine(healthy) as engine:
            application = app.build(settings_for(engine, **{key: where}))
            with pytest.raises(app.StartError, match=f"cannot listen on {where}: Address already in use"):
                await app.serve(application, asyncio.Event(), asyncio.Event())


async def test_metrics_and_records_see_every_request(tmp_path):
    async with Engine(healthy) as engine:
        settings = settings_for(engine, recorder={"enabled": True, "directory": str(tmp_path)})
        async with running(settings) as proxy:
            client = await proxy.client()
            await client.post(chat(stream=True))
            await client.post(chat())
            await client.get("/nope")
            metrics = (await admin(proxy, "/metrics"))[1]
            await proxy.ended(2)
    lines = [json.loads(line) for file in tmp_path.glob("trace-*.jsonl") for line in file.read_text().splitlines()]
    records = [line for line in lines if "request_id" in line]
    assert [(record["outcome"], record["status"]) for record in records] == [("ok", 200), ("ok", 200), ("invalid", 404)]
    assert records[0]["output_tokens"] == 3
    assert records[0]["response_bytes"] > records[1]["response_bytes"] > 0
    assert 'lanewise_requests_total{lane="short",model="other",outcome="ok"} 2.0' in metrics


async def test_a_drain_finishes_streams_refuses_newcomers_and_then_closes(stop, hurry):
    gate = asyncio.Event()

    async def script(received: Received, peer: Peer) -> None:
        peer.stream_head()
        peer.chunk(chat_chunk("a"))
        await gate.wait()
        for item in chat_events(usage=True):
            peer.chunk(item)
        peer.send(b"0\r\n\r\n")

    async with Engine(script) as engine:
        application = app.build(settings_for(engine))
        serving = asyncio.ensure_future(app.serve(application, stop, hurry))
        await until(lambda: application.listen.port)
        client, idle = [await Client.open(application.listen.port) for _ in range(2)]
        client.send(request(chat(stream=True, stream_options={"include_usage": True})))
        await client.head()
        stop.set()
        await until(lambda: application.corridor.draining)
        refused = await idle.post(chat())
        assert (refused.status, refused.json["error"]["code"]) == (503, "draining")
        assert refused.header("connection") == "close"
        late = await Client.open(application.listen.port)
        assert (await late.get("/v1/models")).status == 503
        gate.set()
        while await client.chunk(_got := _Empty()):
            assert _got.wire
        await asyncio.wait_for(serving, 5)
        assert await client.closed() == b""
        with pytest.raises(OSError):
            await Client.open(application.listen.port)
        for each in (client, idle, late):
            await each.close()


class _Empty:
    """Takes chunks and keeps only the last."""

    def __init__(self):
        self.wire = self.body = b""
        self.pieces = []


async def test_a_second_signal_ends_the_drain_and_cuts_what_runs(stop, hurry):
    async with Engine(_first_token_then_nothing) as engine:
        application = app.build(settings_for(engine, scheduling={"concurrency": 1}))
        seen = []
        serving = asyncio.ensure_future(app.serve(application, stop, hurry))
        await until(lambda: application.listen.port)
        application.corridor._rooms.account._observers += (_Seen(seen),)
        stream, waiting = [await Client.open(application.listen.port) for _ in range(2)]
        stream.send(request(chat(stream=True, stream_options={"include_usage": True})))
        await stream.head()
        waiting.send(request(chat()))
        await until(lambda: application.admission.waiting[0] == 1)
        stop.set()
        await until(lambda: application.corridor.draining)
        hurry.set()
        refused = await waiting.answer()
        assert (refused.status, refused.json["error"]["code"]) == (503, "draining")
        rest = await stream.closed()
        assert b'"code":"draining"' in rest
        assert not rest.endswith(b"0\r\n\r\n")
        await asyncio.wait_for(serving, 5)
        assert sorted(exchange.outcome for exchange in seen) == [Outcome.DRAINING, Outcome.DRAINING]
        for each in (stream, waiting):
            await each.close()


async def _first_token_then_nothing(_: Received, peer: Peer) -> None:
    peer.stream_head()
    peer.chunk(chat_chunk("a"))


class _Seen:
    def __init__(self, seen):
        self._seen = seen

    def observe(self, exchange):
        self._seen.append(exchange)


async def test_who_waits_in_the_queue_is_still_served_while_draining(stop, hurry):
    gate = asyncio.Event()
    async with Engine(gated(gate)) as engine:
        application = app.build(settings_for(engine, scheduling={"concurrency": 1}))
        serving = asyncio.ensure_future(app.serve(application, stop, hurry))
        await until(lambda: application.listen.port)
        clients = [await Client.open(application.listen.port) for _ in range(2)]
        for client in clients:
            client.send(request(chat()))
        await until(lambda: application.admission.waiting[0] == 1)
        stop.set()
        await until(lambda: application.corridor.draining)
        gate.set()
        assert [(await client.answer()).body for client in clients] == [chat_answer()] * 2
        await asyncio.wait_for(serving, 5)
        for client in clients:
            await client.close()


async def test_a_backend_that_comes_up_serves_without_a_restart():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = settings_for(Engine(healthy, port=port), probes={"interval": "50ms"})
    async with running(settings) as proxy:
        client = await proxy.client()
        assert (await client.post(chat())).status == 503
        async with Engine(healthy, port=port):
            await until(lambda: proxy.app.backends.any_up)
            assert (await client.post(chat())).status == 200


async def test_the_model_of_a_request_decides_its_backend():
    async with (
        Engine(healthy, models=("a",)) as first,
        Engine(healthy, models=("b",)) as second,
        running(settings_for(first, second)) as proxy,
    ):
        client = await proxy.client()
        for model in "abba":
            assert (await client.post({**chat(), "model": model})).status == 200
        assert [request.json["model"] for request in first.requests] == ["a", "a"]
        assert [request.json["model"] for request in second.requests] == ["b", "b"]


def test_the_pure_python_parser_is_refused(monkeypatch):
    from aiohttp.http_parser import HttpRequestParserPy

    check_parser()
    monkeypatch.setattr("proxy.listener.HttpRequestParser", HttpRequestParserPy)
    with pytest.raises(PureParserError, match="AIOHTTP_NO_EXTENSIONS"):
        check_parser()


@pytest.mark.parametrize("text", ["a\nb", "a\x1b[31mb", "a\u2028b", "a\rb"])
def test_one_event_is_one_line_of_the_log(text):
    record = logging.LogRecord("x", logging.INFO, "f", 1, text, (), None)
    line = TextLines("%(message)s").format(record)
    assert line.splitlines() == [line]
    assert "\x1b" not in line
