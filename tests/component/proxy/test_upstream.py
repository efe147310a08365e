"""The pool: warm, last in first out, never a connection that cannot be trusted."""

import asyncio
import socket

import pytest
from conftest import until
from engines import Engine, Peer, Received, healthy

from proxy.upstream.connection import Broken
from proxy.upstream.names import Names
from proxy.upstream.pool import ConnectError, Origin, Pool

GET = (b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 1.1.1.1\r\n\r\n",)


class Waiter:
    """A receiver that resolves when the answer is over."""

    on_chunk = None

    def __init__(self):
        self.heads, self.payload = [], b""
        self.over = asyncio.get_running_loop().create_future()

    def cork(self):
        pass

    def flush(self):
        pass

    def on_head(self, head):
        self.heads.append(head)

    def on_body(self, wire, payload):
        self.payload += payload

    def on_end(self):
        self.over.set_result(None)

    def on_broken(self, broken):
        self.over.set_result(broken)


async def ask(connection) -> Waiter:
    waiter = Waiter()
    connection.send(GET, waiter)
    await asyncio.wait_for(waiter.over, 5)
    return waiter


@pytest.fixture
async def engine():
    async with Engine(healthy) as made:
        yield made


@pytest.fixture
def pool_of():
    made = []

    def make(engine, **options):
        made.append(Pool(Origin("127.0.0.1", engine.port), **options))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


async def test_the_connection_used_last_is_taken_first(engine, pool_of):
    pool = pool_of(engine)
    first, second = await pool.connect(), await pool.connect()
    await ask(first)
    await ask(second)
    assert pool.idle == 2
    assert pool.take() is second
    assert pool.take() is first
    assert pool.take() is None
    assert repr(pool) == f"<Pool 127.0.0.1:{engine.port}, 0 idle, 2 opened>"


async def test_a_connection_too_long_idle_is_closed(engine, pool_of):
    pool = pool_of(engine, idle_s=0.02)
    connection = await pool.connect()
    await ask(connection)
    await asyncio.wait_for(engine.peers[0].gone.wait(), 5)
    assert pool.take() is None
    assert pool.idle == 0


async def test_one_that_is_too_old_is_not_taken_even_before_it_was_closed(engine, pool_of):
    pool = pool_of(engine, idle_s=100)
    connection = await pool.connect()
    await ask(connection)
    connection.idle_since -= 101
    assert pool.take() is None
    await asyncio.wait_for(engine.peers[0].gone.wait(), 5)


async def test_a_connection_that_the_engine_closes_leaves_the_pool(engine, pool_of):
    pool = pool_of(engine)
    await ask(await pool.connect())
    engine.peers[0].close()
    await until(lambda: pool.idle == 0)
    assert pool.take() is None


async def test_a_closed_pool_keeps_nothing(engine, pool_of):
    pool = pool_of(engine)
    idle, busy = await pool.connect(), await pool.connect()
    await ask(idle)
    pool.close()
    await ask(busy)
    assert (pool.idle, idle.closed, busy.closed) == (0, True, True)


async def test_an_answer_that_closes_its_connection_is_not_pooled(pool_of):
    async def script(_: Received, peer: Peer) -> None:
        peer.answer(b"{}", extra=b"Connection: close\r\n")

    async with Engine(script) as engine:
        pool = pool_of(engine)
        waiter = await ask(await pool.connect())
        assert waiter.payload == b"{}"
        assert pool.idle == 0


async def test_a_refused_connection_says_so(pool_of):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        pool = Pool(Origin("127.0.0.1", port))
        with pytest.raises(ConnectError, match="refused"):
            await pool.connect()


async def test_a_connection_that_is_never_accepted_times_out():
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        pool = Pool(Origin(*full.getsockname()), connect_timeout_s=0.05)
        with pytest.raises(ConnectError, match=r"within 0\.05 s"):
            await pool.connect()
        for filler in fillers:
            filler.close()


async def test_bytes_that_come_unasked_close_the_connection(engine, pool_of):
    pool = pool_of(engine)
    connection = await pool.connect()
    await ask(connection)
    engine.peers[0].send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    await until(lambda: connection.closed)
    assert pool.take() is None


async def test_an_untouched_death_is_told_apart_from_one_with_bytes(pool_of):
    async def script(received: Received, peer: Peer) -> None:
        if received.nth == 0:
            await healthy(received, peer)
        else:
            peer.close()

    async with Engine(script) as engine:
        pool = pool_of(engine)
        connection = await pool.connect()
        await ask(connection)
        assert pool.take() is connection
        broken = await ask(connection)
        result = broken.over.result()
        assert isinstance(result, Broken)
        assert result.untouched
        assert repr(connection) == "<Connection closed, 1 served>"


async def test_an_error_in_the_receiver_is_told_and_closes(engine, pool_of, caplog):
    class Faulty(Waiter):
        def on_body(self, wire, payload):
            raise ZeroDivisionError

    pool = pool_of(engine)
    connection, waiter = await pool.connect(), Faulty()
    connection.send(GET, waiter)
    broken = await asyncio.wait_for(waiter.over, 5)
    assert "ZeroDivisionError" in broken.detail
    assert connection.closed
    assert "relaying failed" in caplog.text


@pytest.mark.parametrize(
    ("url", "authority"),
    [
        ("http://h:8000", "h:8000"),
        ("http://h", "h"),
        ("https://h", "h"),
        ("https://h:8443", "h:8443"),
        ("http://[::1]:8000", "[::1]:8000"),
    ],
)
def test_an_origin_knows_what_the_host_header_says(url, authority):
    assert Origin.of_url(url).authority == authority


@pytest.mark.parametrize("url", ["ftp://h", "h:8000", "http://"])
def test_an_origin_is_a_http_url(url):
    with pytest.raises(ValueError, match="no http URL"):
        Origin.of_url(url)


class NameServer:
    """Knows the names that a test says."""

    def __init__(self, *addresses):
        self.addresses = addresses
        self.asked = 0

    async def __call__(self, host):
        self.asked += 1
        if not self.addresses:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return self.addresses


async def test_the_last_good_address_stays_in_use_while_the_name_cannot_be_resolved(engine):
    server = NameServer("127.0.0.1")
    names = Names(server)
    pool = Pool(Origin("engine.test", engine.port), names=names)
    assert (await ask(await pool.connect())).heads[0].status == 200
    server.addresses = ()
    await names.look_again("engine.test")
    assert (await ask(await pool.connect())).heads[0].status == 200
    pool.close()


async def test_a_name_that_never_resolved_is_no_connection(engine):
    with pytest.raises(ConnectError, match=r"cannot connect: engine\.test cannot be resolved"):
        await Pool(Origin("engine.test", engine.port), names=Names(NameServer())).connect()


async def test_the_next_address_of_a_name_is_tried_when_nobody_is_at_the_first(engine):
    pool = Pool(Origin("engine.test", engine.port), names=Names(NameServer("127.0.0.9", "127.0.0.1")))
    assert (await ask(await pool.connect())).heads[0].status == 200
    pool.close()


async def test_when_nobody_is_there_any_more_the_name_is_looked_up_at_once(engine):
    server = NameServer("127.0.0.9")
    names = Names(server)
    pool = Pool(Origin("engine.test", engine.port), names=names)
    await names.addresses("engine.test")
    server.addresses = ("127.0.0.1",)
    assert (await ask(await pool.connect())).heads[0].status == 200
    assert server.asked == 2
    pool.close()


async def test_when_a_name_moves_idle_connections_end_and_busy_ones_when_they_are_idle(engine):
    server = NameServer("127.0.0.1")
    names = Names(server)
    pool = Pool(Origin("engine.test", engine.port), names=names)
    idle, busy = await pool.connect(), await pool.connect()
    await ask(idle)
    asking = asyncio.ensure_future(ask(busy))
    await asyncio.sleep(0)
    server.addresses = ("127.0.0.9",)
    await names.look_again("engine.test")
    assert (pool.idle, idle.closed) == (0, True)
    assert (await asking).heads[0].status == 200, "what runs is finished where it is"
    assert (pool.idle, busy.closed, pool.take()) == (0, True, None)
    pool.close()
