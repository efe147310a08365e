"""Engines that die, freeze, say no, move: nothing stays held, nobody hangs, and they serve again with the next probe.

The engines are processes of the simulated engine, so that a signal does to them what it does to a real one. What is
held is read where an operator reads it: from the gauges of the admin listener.
"""

import asyncio
import re
import signal
import sys
from contextlib import asynccontextmanager, suppress

from clients import chat
from conftest import running, until
from engines import Engine, healthy, silent

from loadgen.children import free_address
from proxy.backends import State
from proxy.policy.outcome import Outcome, Reason
from proxy.settings import Settings
from proxy.upstream.names import Names

LOOPS = ("uvloop",)
"""What is tried here are processes; one loop is enough."""
START_S = 30.0
GAUGES = (
    "lanewise_inflight_requests",
    "lanewise_inflight_tokens",
    "lanewise_prefill_budget_used_tokens",
    "lanewise_queue_depth",
    "lanewise_queue_tokens",
)
STREAM = {"stream": True, "max_tokens": 2000, "ignore_eos": True}
DEADLINE_S = 0.7
"""Patience for a first byte, and for silence in a stream."""
HANGS_S = DEADLINE_S + 5.0
"""Who is not answered by then hangs: the slack is for a busy machine."""
BY_HAND = {"interval": "1h", "timeout": "300ms", "down_after": 2, "scrape_metrics": False}
"""The test itself probes: so it is seen that one probe is enough."""


class Process:
    """One simulated engine in a process of its own."""

    def __init__(self, address):
        self.address = address
        self.running = None

    @property
    def url(self):
        return f"http://{self.address}"

    async def start(self):
        command = ("-m", "loadgen", "sim", "serve", "--listen", self.address, "--model", "tiny", "--json")
        self.running = await asyncio.create_subprocess_exec(
            sys.executable, *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        async with asyncio.timeout(START_S):
            assert b"{" in await self.running.stdout.readline()

    def send(self, number):
        self.running.send_signal(number)

    async def kill(self):
        """End it without a word, frozen or not."""
        with suppress(ProcessLookupError):
            self.running.kill()
        await self.running.wait()


@asynccontextmanager
async def process(address=None):
    engine = Process(address or str(free_address()))
    try:
        await engine.start()
        yield engine
    finally:
        if engine.running is not None:
            await engine.kill()


def settings(url, **sections):
    document = {
        "listen": "127.0.0.1:0",
        "admin": "127.0.0.1:0",
        "backends": [{"url": url, "name": "engine"}],
        "scheduling": {"drop_factor": "never"},
        "probes": {"interval": "100ms", "timeout": "300ms", "down_after": 2, "scrape_metrics": False},
        "health": {"slow_start": "200ms"},
        "timeouts": {"connect": "500ms", "idle_stream": "700ms"},
        "lanes": {"short": {"ttft_slo": "500ms", "first_byte_timeout": "700ms"}},
    }
    return Settings.model_validate(document | sections)


async def gauges(proxy):
    """The sum of each gauge of what is held, as a scrape shows it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.app.admin_listen.port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    found = {name: re.findall(rf"^{name}{{[^}}]*}} (\S+)$", text, re.MULTILINE) for name in GAUGES}
    return {name: sum(map(float, values)) for name, values in found.items() if values}


NOTHING = dict.fromkeys(GAUGES, 0.0)


async def stream(proxy):
    """Ask for a stream that would go on for long; return its client and what will be its answer."""
    client = await proxy.client()
    return client, asyncio.ensure_future(client.post(chat(**STREAM)))


async def probe(proxy, times=1):
    for _ in range(times):
        await proxy.app.backends.probe("engine")


async def served_after_one_probe(proxy):
    """Whether one good probe is enough for the backend to serve: the status of the first request after it."""
    before = proxy.app.backends.any_up
    await probe(proxy)
    assert (before, proxy.app.backends.any_up) == (False, True)
    async with asyncio.timeout(HANGS_S):
        got = await (await proxy.client()).post(chat(max_tokens=2))
    return got.status


def state(proxy):
    return proxy.app.backends.views()[0].state


async def test_an_engine_killed_in_mid_stream_holds_nothing_and_serves_again_with_the_next_probe():
    async with process() as engine, running(settings(engine.url, probes=BY_HAND)) as proxy:
        streams = [await stream(proxy) for _ in range(4)]
        await until(lambda: proxy.held()[:2] == (4, 0))
        assert (await gauges(proxy))["lanewise_inflight_requests"] == 4.0
        await engine.kill()
        async with asyncio.timeout(HANGS_S):
            answers = await asyncio.gather(*(answer for _, answer in streams))
        assert not any(got.whole for got in answers), "what was cut never looks complete"
        assert {one.outcome for one in proxy.finished} == {Outcome.TRUNCATED}
        await probe(proxy, times=2)
        assert state(proxy) is State.DOWN
        got = await (await proxy.client()).post(chat())
        assert (got.status, got.json["error"]["code"]) == (503, Reason.NO_BACKEND.value)
        assert await gauges(proxy) == NOTHING
        await engine.start()
        assert await served_after_one_probe(proxy) == 200
        assert proxy.app.backends.views()[0].entered[State.SLOW_START] == 1
        assert await gauges(proxy) == NOTHING


async def test_a_frozen_engine_keeps_nobody_longer_than_the_deadlines_and_serves_again_when_it_goes_on():
    async with process() as engine, running(settings(engine.url, probes=BY_HAND)) as proxy:
        _, running_stream = await stream(proxy)
        await until(lambda: proxy.held()[:2] == (1, 0))
        engine.send(signal.SIGSTOP)
        _, sent_to_nobody = await stream(proxy)
        async with asyncio.timeout(HANGS_S):
            cut, late = await asyncio.gather(running_stream, sent_to_nobody)
        assert (cut.whole, late.status) == (False, 504)
        assert [one.outcome for one in proxy.finished] == [Outcome.BACKEND_TIMEOUT] * 2
        waited = next(one for one in proxy.finished if one.first_token is None).total_s
        assert DEADLINE_S <= waited < HANGS_S
        await probe(proxy, times=2)
        assert state(proxy) is State.DOWN
        assert await gauges(proxy) == NOTHING
        engine.send(signal.SIGCONT)
        assert await served_after_one_probe(proxy) == 200
        assert await gauges(proxy) == NOTHING


class Sick(Engine):
    """An engine that says 503 to everybody, its probes too, until it is well."""

    well = False

    def probed(self, peer, request):
        if self.well:
            super().probed(peer, request)
        else:
            peer.answer(b"", status=b"503 Service Unavailable")


async def test_an_engine_that_says_503_to_its_probes_gets_nothing_and_serves_again_with_the_next_good_one():
    async with Sick(healthy) as engine, running(settings(engine.url, probes=BY_HAND)) as proxy:
        got = await (await proxy.client()).post(chat())
        assert (got.status, len(engine.requests)) == (503, 0)
        assert state(proxy) is State.DOWN
        await probe(proxy)
        assert state(proxy) is State.DOWN, "still sick"
        engine.well = True
        assert await served_after_one_probe(proxy) == 200
        assert await gauges(proxy) == NOTHING


def busy(until_then, retry_after=b"1"):
    """Say 503 until a moment, as an engine does that has enough to do."""

    async def script(request, peer):
        if until_then.is_set():
            await healthy(request, peer)
        else:
            until_then.set()
            peer.answer(b"{}", status=b"503 Service Unavailable", extra=b"retry-after: %b\r\n" % retry_after)

    return script


async def test_an_engine_that_says_it_is_busy_is_left_alone_for_a_while_and_nobody_is_sent_twice():
    async with Engine(busy(asyncio.Event())) as engine:
        limits = settings(engine.url, health={"busy_at_most": "1s"})
        async with running(limits) as proxy:
            refused = await (await proxy.client()).post(chat())
            assert (refused.status, len(engine.requests)) == (503, 1), "not retried on the same engine"
            assert proxy.app.admission.snapshot().backends[0].held_back_s > 0
            later = asyncio.ensure_future((await proxy.client()).post(chat()))
            await until(lambda: proxy.held()[2] == 1)
            assert (await later).status == 200
            view = proxy.app.backends.views()[0]
            assert (view.state, view.failed_in_a_row, len(engine.requests)) == (State.UP, 0, 2)
            assert await gauges(proxy) == NOTHING


async def test_an_engine_that_fails_every_request_is_left_alone_tried_again_and_used_again():
    sick = asyncio.Event()
    sick.set()

    async def script(request, peer):
        await (peer_fails(peer) if sick.is_set() else healthy(request, peer))

    async def peer_fails(peer):
        peer.answer(b"{}", status=b"500 Internal Server Error")

    async with Engine(script) as engine:
        limits = settings(engine.url, health={"trip_after": 3, "trip_time": "1s", "slow_start": "100ms"})
        async with running(limits) as proxy:
            client = await proxy.client()
            assert [(await client.post(chat())).status for _ in range(3)] == [500] * 3
            assert state(proxy) is State.TRIPPED
            assert (await client.post(chat())).status == 503
            assert len(engine.requests) == 3
            sick.clear()
            await until(lambda: state(proxy) is State.HALF_OPEN)
            assert (await client.post(chat())).status == 200
            await until(lambda: state(proxy) is State.UP)
            assert await gauges(proxy) == NOTHING


async def test_requests_that_are_wrong_themselves_trip_nothing():
    async def refuse(request, peer):
        peer.answer(b'{"error": {"message": "no"}}', status=b"400 Bad Request")

    async with Engine(refuse) as engine, running(settings(engine.url, health={"trip_after": 1})) as proxy:
        client = await proxy.client()
        assert [(await client.post(chat())).status for _ in range(4)] == [400] * 4
        assert state(proxy) is State.UP


async def test_an_engine_that_moved_and_is_gone_from_its_old_address_is_found_at_the_new_one_by_the_first_request():
    known = {"engine.test": ["127.0.0.1"]}

    async def lookup(host):
        return known[host]

    async with process() as old:
        port = old.address.rpartition(":")[2]
        names = Names(lookup, refresh_s=3600.0)
        moving = settings(f"http://engine.test:{port}", probes={"interval": "1h", "scrape_metrics": False})
        async with process(f"127.0.0.2:{port}"), running(moving, names=names) as proxy:
            _, cut = await stream(proxy)
            await until(lambda: proxy.held()[:2] == (1, 0))
            known["engine.test"] = ["127.0.0.2"]
            await old.kill()
            assert not (await cut).whole
            got = await (await proxy.client()).post(chat(max_tokens=2))
            assert (got.status, proxy.finished[-1].retries) == (200, 0)
            assert await names.addresses("engine.test") == ("127.0.0.2",)
            assert await gauges(proxy) == NOTHING


async def test_who_waits_while_the_engine_dies_is_refused_by_the_deadline_of_the_lane():
    async with Engine(silent) as engine:
        limits = settings(engine.url, scheduling={"drop_factor": 1, "concurrency": 1, "adaptive": {"enabled": False}})
        async with running(limits) as proxy:
            _, runs = await stream(proxy)
            _, waits = await stream(proxy)
            await until(lambda: proxy.held()[2] == 1)
            await engine.stop()
            cut, refused = await asyncio.gather(runs, waits)
            assert cut.status == 502
            assert (refused.status, refused.json["error"]["code"]) in {
                (429, Reason.QUEUE_TIMEOUT.value),
                (503, Reason.NO_BACKEND.value),
            }
            assert await gauges(proxy) == NOTHING


async def test_while_one_engine_is_frozen_the_other_serves_everybody():
    """The frozen one costs each request that meets it its own deadline, and is left alone after a few."""

    async with Engine(silent) as first, Engine(healthy) as second:
        limits = settings(
            first.url,
            backends=[{"url": first.url, "name": "frozen"}, {"url": second.url, "name": "well"}],
            health={"trip_after": 2, "trip_time": "1h", "trip_time_at_most": "1h"},
            lanes={"short": {"ttft_slo": "50ms", "first_byte_timeout": "50ms"}},
        )
        async with running(limits) as proxy:
            asking = [(await stream(proxy))[1] for _ in range(8)]
            await asyncio.gather(*asking)
            await until(lambda: state(proxy) is State.TRIPPED)
            met = len(first.requests)
            answers = [await (await proxy.client()).post(chat()) for _ in range(8)]
            assert {got.status for got in answers} == {200}
            assert len(first.requests) == met
            assert await gauges(proxy) == NOTHING
