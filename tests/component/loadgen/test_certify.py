"""The generator against its own endpoint, in a process of its own."""

import asyncio
import contextlib
import dataclasses
import json
import subprocess
import sys
from statistics import mean
from time import perf_counter_ns

import pytest

from loadgen.certify import certify
from loadgen.client import read_target
from loadgen.flight import Timeline
from loadgen.options import Endpoint
from loadgen.prompts import Calibration
from loadgen.replay import replay_in_loop
from loadgen.report import certificate_line
from loadgen.send import LEAD_NS
from loadgen.sending import Asked, Sending
from loadgen.source import read_source
from loadgen.summarise import summarise


@pytest.fixture
def certified(asking):
    async def measured(workers=1, **more):
        options = asking("http://127.0.0.1:9", **more)
        plan = read_source(options.source, endpoint=options.endpoint).plan
        asked = Asked(read_target(options.target), None, "tiny", Calibration(), "abc12")
        return await certify(plan, options, asked, workers)

    return measured


@pytest.mark.parametrize("endpoint", list(Endpoint))
async def test_every_request_of_the_stretch_is_answered_and_its_error_is_small_but_real(certified, endpoint):
    found = await certified(rows=40, gap=0.01, output=20, endpoint=endpoint)
    assert found["requests"] == 40
    assert 0 < found["ttft_error_mean_s"] <= found["ttft_error_p99_s"]
    assert found["ttft_error_mean_s"] < 0.05
    assert found["requests_per_s"] == pytest.approx(100, rel=0.3)
    assert found["chunks_per_s"] > 500
    assert found["part"] == 1


async def test_a_closed_loop_is_measured_with_its_own_number_in_flight(certified):
    found = await certified(rows=40, gap=0.001, closed_loop=5)
    assert (found["requests"], found["most_in_flight"]) == (10, 5)


async def test_one_of_several_workers_is_measured_at_its_share(certified):
    found = await certified(rows=40, gap=0.01, workers=4)
    assert (found["requests"], found["part"]) == (10, 0.25)


@contextlib.contextmanager
def blocked(seconds):
    """Let something else block the loop, again and again: it reads late then."""
    loop = asyncio.get_running_loop()
    over = False

    def block():
        end = loop.time() + seconds
        while loop.time() < end:
            pass
        if not over:
            loop.call_later(0.005, block)

    loop.call_soon(block)
    yield
    over = True


async def error_of_a_run(options):
    """Send a whole plan to an endpoint of its own, and give the mean error of the TTFT from the send, seconds."""
    command = (sys.executable, "-m", "loadgen.endpoint", "0.5")
    server = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    url = f"http://127.0.0.1:{int(await server.stdout.readline())}"
    results = []
    asked = Asked(read_target(url), None, "tiny", Calibration(), "abc12")
    sending = Sending(options, asked, results.append)
    await sending.prepare()
    plan = read_source(options.source, endpoint=options.endpoint).plan
    await sending.run(plan.shots(), Timeline(perf_counter_ns() + LEAD_NS, options.speed))
    stamps = json.loads((await server.communicate(b""))[0])["stamps"]
    truth = {number: (wrote - entered) / 1e9 for number, _, entered, wrote in stamps}
    assert len(truth) == len(results)
    return mean(one.first - one.sent - truth[one.index] for one in results)


async def test_an_error_that_is_really_there_is_reported(certified, asking):
    """What the certificate says is what a run of the same load reads wrong, by the stamps of a server."""
    load = {"rows": 40, "gap": 0.01, "output": 20}
    with blocked(0.06):
        found = await certified(**load)
        there = await error_of_a_run(asking("http://127.0.0.1:9", **load))
    assert there > 0.01
    assert found["ttft_error_mean_s"] == pytest.approx(there, rel=0.5)
    assert 0 < found["endpoint_read_mean_s"] < found["ttft_error_mean_s"]
    assert 0 < found["endpoint_busy"] < 1


async def test_a_run_carries_its_certificate_and_one_without_says_so(engine, asking):
    with_one = await replay_in_loop(asking(engine.url, no_certify=False, name="with"))
    assert with_one.manifest()["certificate"]["requests"] == 3
    assert "own TTFT error: mean" in certificate_line(summarise(with_one).notes["certificate"])
    without = await replay_in_loop(dataclasses.replace(asking(engine.url, name="without"), no_certify=True))
    assert certificate_line(summarise(without).notes["certificate"]) == (
        "the generator's own error was not measured (--no-certify)"
    )
