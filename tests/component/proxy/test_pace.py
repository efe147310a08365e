"""How fast an engine's streams go, measured on real sockets, and what admission makes of it."""

import asyncio
import time

import pytest
from clients import chat, request
from conftest import until
from engines import DONE, Received, chat_chunk, chat_events, event, usage_chunk

from proxy.admission import Admission
from proxy.pace import Pace
from proxy.policy.dispatch import Dispatcher
from proxy.policy.limiter import Cause
from proxy.policy.limits import Adaptive, BackendLimits, LaneLimits, Scheduling
from proxy.policy.ticket import Ticket

OWN_USAGE = {"stream": True, "stream_options": {"include_usage": True}}


def pace_of(proxy) -> Pace:
    return proxy.app.engines._paces["engine0"]


def spoken(*batches):
    """A script that sends one read after the other, each once the proxy has seen the last."""
    seen = asyncio.Event()

    async def script(_: Received, peer) -> None:
        peer.stream_head()
        for batch in batches:
            seen.clear()
            peer.chunk(batch)
            await seen.wait()
        peer.send(b"0\r\n\r\n")

    return script, seen


async def test_the_gaps_between_tokens_add_up_to_the_time_from_the_first_to_the_last(start):
    batches = (
        chat_chunk(None, role=True) + chat_chunk("one"),
        chat_chunk("two"),
        chat_chunk("three") + chat_chunk("four"),
        chat_chunk(None, "stop") + usage_chunk(7, 4) + DONE,
    )
    script, seen = spoken(*batches)
    _engine, proxy = await start(script)
    client = await proxy.client()
    client.send(request(chat(**OWN_USAGE)))
    await client.head()
    for batch in batches:
        await client.reader.readuntil(batch)
        seen.set()
    exchange = await proxy.ended()
    pace = pace_of(proxy)
    assert exchange.token_events == 4
    assert pace.seconds == pytest.approx(exchange.last_token - exchange.first_token)
    assert pace.events == 3


async def test_events_that_hold_several_tokens_are_learned_from_usage(start):
    async def script(_: Received, peer) -> None:
        peer.stream_head()
        peer.chunk(chat_chunk("one two") + chat_chunk(" three four", "stop") + usage_chunk(7, 10) + DONE)
        peer.send(b"0\r\n\r\n")

    _engine, proxy = await start(script)
    await (await proxy.client()).post(chat(**OWN_USAGE))
    assert (await proxy.ended()).token_events == 2
    assert pace_of(proxy).tokens_per_event == 5.0


async def test_a_stream_of_several_sequences_is_not_measured(start):
    async def script(_: Received, peer) -> None:
        peer.stream_head()
        for item in chat_events(usage=True):
            peer.chunk(item)
            await asyncio.sleep(0)
        peer.send(b"0\r\n\r\n")

    _engine, proxy = await start(script)
    await (await proxy.client()).post(chat(n=2, **OWN_USAGE))
    assert (await proxy.ended()).token_events == 3
    assert (pace_of(proxy).events, pace_of(proxy).seconds) == (0, 0.0)


async def test_the_slowness_of_a_client_is_not_the_engines(start):
    flood = event({"choices": [{"index": 0, "delta": {"content": "x" * 60_000}}]})

    async def script(_: Received, peer) -> None:
        peer.stream_head()
        while not peer.transport.is_closing():
            await peer.flowing.wait()
            peer.chunk(flood)
            await asyncio.sleep(0)

    _engine, proxy = await start(script)
    client = await proxy.client()
    client.writer.transport.pause_reading()
    client.send(request(chat(**OWN_USAGE)))
    flows = lambda: [connection.flow for connection in proxy.app._listener.connections]  # noqa: E731
    await until(lambda: any(flow is not None and flow.paused for flow in flows()))
    flow, since, counted = flows()[0], time.monotonic(), pace_of(proxy).events
    for _ in range(100):
        await asyncio.sleep(0)
    assert flow.held_back
    held = time.monotonic() - since
    client.writer.transport.resume_reading()
    await client.head()
    while pace_of(proxy).events == counted:
        await client.reader.readuntil(b"\n\n")
    client.leave()
    exchange = await proxy.ended()
    assert pace_of(proxy).seconds <= exchange.last_token - exchange.first_token - held


async def test_admission_hands_the_pace_over_before_each_look():
    lanes = (LaneLimits("all", None, 60.0, 10, 10**6, 10**6),)
    limits = BackendLimits("a", 40, adaptive=Adaptive(tpot_slo_s=0.1, interval_s=0.002))
    pace = Pace()
    admission = Admission(Dispatcher(Scheduling(lanes), [limits]), {"a": pace})
    async with admission.turn(Ticket(1, 0, 10, 10)) as turn:
        await turn.grant()
        pace.seconds, pace.events = 1.5, 10
        await until(lambda: admission.snapshot().backends[0].concurrency < 40)
    move = admission.snapshot().backends[0].limit_moves[0]
    assert (move.before, move.after, move.cause, move.tpot_s) == (40, 38, Cause.TPOT_HIGH, pytest.approx(0.15))
    await until(lambda: admission.dispatcher.next_wake() is None)
    admission.close()
