"""The clock of a connection: one timer for request after request."""

import asyncio
import gc
import time
import weakref
from unittest.mock import Mock

import pytest

from proxy.upstream.connection import Connection

PATIENCE_S = 5.0


def connection(transport=None):
    made = Connection(Mock(), Mock())
    made.connection_made(transport or Mock(is_closing=lambda: False))
    return made


async def test_a_reminder_comes_when_it_is_due():
    rung, one, began = asyncio.Event(), connection(), time.monotonic()
    one.send([b"x"], Mock())
    one.remind(0.01, rung.set)
    async with asyncio.timeout(PATIENCE_S):
        await rung.wait()
    assert time.monotonic() >= began + 0.01


async def test_an_earlier_reminder_takes_the_place_of_a_later_one():
    rung, late, one = asyncio.Event(), Mock(), connection()
    one.send([b"x"], Mock())
    one.remind(1000.0, late)
    one.remind(0.0, rung.set)
    async with asyncio.timeout(PATIENCE_S):
        await rung.wait()
    late.assert_not_called()


async def test_the_timer_of_an_earlier_request_serves_a_later_one_and_rings_only_for_it():
    rung, before, one = asyncio.Event(), Mock(), connection()
    one.send([b"x"], Mock())
    one.remind(0.0, before)
    one._receiver = None  # its answer came
    one.send([b"y"], Mock())
    one.remind(0.02, rung.set)
    async with asyncio.timeout(PATIENCE_S):
        await rung.wait()
    before.assert_not_called()


async def test_nobody_is_reminded_of_an_answer_that_has_come_or_on_a_connection_that_is_lost():
    told, idle, lost, other = Mock(), connection(), connection(), connection()
    for one in (idle, lost):
        one.send([b"x"], Mock())
        one.remind(0.0, told)
    idle._receiver = None
    lost.connection_lost(None)
    rung = asyncio.Event()
    other.send([b"x"], Mock())
    other.remind(0.005, rung.set)  # due later than the others
    async with asyncio.timeout(PATIENCE_S):
        await rung.wait()
    told.assert_not_called()


@pytest.mark.parametrize("writes", ["on_end", "flush"])
async def test_a_client_that_falls_behind_with_the_last_bytes_holds_nobody_else_back(writes):
    transport = Mock(is_closing=lambda: False, get_write_buffer_size=lambda: 0)
    idle, receiver = Mock(), Mock(on_chunk=None)
    one = Connection(idle, Mock())
    one.connection_made(transport)
    getattr(receiver, writes).side_effect = one.pause  # as its transport does over the high-water mark
    one.send([b"x"], receiver)
    one.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
    idle.assert_called_once_with(one)
    assert not one.paused
    transport.pause_reading.assert_not_called()


async def test_an_idle_connection_keeps_nothing_of_the_request_before():
    transport = Mock(is_closing=lambda: False, get_write_buffer_size=lambda: 0)
    one, receiver = connection(transport), Mock(on_chunk=None)
    one.send([b"x"], receiver)
    one.remind(1000.0, receiver.remember)
    one.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
    kept = weakref.ref(receiver)
    del receiver
    gc.collect()
    assert kept() is None
