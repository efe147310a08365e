"""The client on real sockets: what lies between the wire and a stamp."""

import asyncio
import socket
import threading
from contextlib import ExitStack, contextmanager, suppress
from time import perf_counter_ns

import pytest
import uvloop

from loadgen.client import Client, read_target

PATIENCE_S = 20
REQUEST = b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 2\r\n\r\n\n\n"


class Hearing:
    """A receiver that keeps its stamps, and when it was told."""

    def __init__(self):
        self.body_ns = self.told_ns = 0
        self.sent = asyncio.Event()
        self.broken = None
        self.over = asyncio.get_running_loop().create_future()

    def on_connected(self, now_ns):
        pass

    def on_sent(self, now_ns):
        assert now_ns
        self.sent.set()

    def on_head(self, status, headers, now_ns):
        assert status == 200

    def on_body(self, data, now_ns):
        self.body_ns, self.told_ns = now_ns, perf_counter_ns()

    def on_complete(self, now_ns):
        self.over.set_result(now_ns)

    def on_broken(self, reason, detail, now_ns):
        self.broken = reason
        self.over.set_result(now_ns)

    def on_reconnect(self):
        raise AssertionError("nothing is closed here")


class Answering:
    """Answers requests from a thread, as many at a time as are named, once `go` is set."""

    def __init__(self, together):
        self.arrived, self.go, self.answered = threading.Event(), threading.Event(), threading.Event()
        self._together = together

    @contextmanager
    def running(self):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            thread = threading.Thread(target=self._serve, args=(listening,))
            thread.start()
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
            thread.join(PATIENCE_S)

    def _serve(self, listening):
        with ExitStack() as stack, suppress(ConnectionError):
            connections = [stack.enter_context(listening.accept()[0]) for _ in range(self._together)]
            while all(connection.recv(1000) for connection in connections):
                self.arrived.set()
                self.go.wait(PATIENCE_S)
                for connection in connections:
                    connection.sendall(ANSWER)
                self.answered.set()


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_what_one_turn_of_the_loop_reads_has_its_stamps_before_any_of_it_is_parsed(loop):
    async def two_at_once(url, server):
        client = Client(read_target(url))
        heard = [Hearing(), Hearing()]
        for one in heard:
            client.send(one, REQUEST)
        await asyncio.gather(*(one.sent.wait() for one in heard))
        server.go.set()
        assert server.answered.wait(PATIENCE_S)  # the loop stands still until both answers can be read
        await asyncio.gather(*(one.over for one in heard))
        client.close()
        return heard

    server = Answering(2)
    with server.running() as url, asyncio.Runner(loop_factory=loop) as runner:
        heard = runner.run(two_at_once(url, server))
    assert max(one.body_ns for one in heard) < min(one.told_ns for one in heard)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_request_has_left_before_the_turn_of_the_loop_ends(loop):
    async def twice(url, server):
        client = Client(read_target(url))
        first = Hearing()
        client.send(first, REQUEST)
        await first.over
        server.arrived.clear()
        second = Hearing()
        client.send(second, REQUEST)
        left = server.arrived.wait(PATIENCE_S)
        await second.over
        client.close()
        return left

    server = Answering(1)
    server.go.set()
    with server.running() as url, asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(twice(url, server))


async def test_what_was_read_before_a_request_was_sent_is_no_answer_to_it():
    server = Answering(1)
    server.go.set()
    with server.running() as url:
        client = Client(read_target(url))
        first = Hearing()
        client.send(first, REQUEST)
        before = await first.over
        second = Hearing()
        call = client.send(second, REQUEST)
        client.arrived(call.connection, before, ANSWER)
        await second.over
        client.close()
    assert second.broken == "protocol"


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_what_is_left_of_a_request_that_was_answered_early_goes_before_the_next(loop):
    body = b"a" * 20_000_000
    large = b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    go_on, has_room, received = threading.Event(), threading.Event(), bytearray()

    def answering(listening):
        with listening.accept()[0] as connection:
            received.extend(connection.recv(100))
            connection.sendall(ANSWER)
            go_on.wait(PATIENCE_S)
            received.extend(connection.recv(1 << 20))
            has_room.set()
            while len(received) < len(large) + len(REQUEST):
                received.extend(connection.recv(1 << 20))
            connection.sendall(ANSWER)

    async def two(url):
        client = Client(read_target(url))
        first, second = Hearing(), Hearing()
        client.send(first, large)
        await first.over
        go_on.set()
        assert has_room.wait(PATIENCE_S)  # the loop stands still: what is left cannot leave by itself
        client.send(second, REQUEST)
        await second.over
        client.close()

    with socket.create_server(("127.0.0.1", 0)) as listening, asyncio.Runner(loop_factory=loop) as runner:
        thread = threading.Thread(target=answering, args=(listening,))
        thread.start()
        runner.run(two(f"http://127.0.0.1:{listening.getsockname()[1]}"))
        thread.join(PATIENCE_S)
    assert received == large + REQUEST
