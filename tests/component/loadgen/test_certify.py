"""The generator against its own endpoint, in a process of its own."""

import asyncio
import dataclasses

import pytest

from loadgen.certify import certify
from loadgen.client import read_target
from loadgen.options import Endpoint
from loadgen.prompts import Calibration
from loadgen.replay import replay_in_loop
from loadgen.report import certificate_line
from loadgen.sending import Asked
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


async def test_an_error_that_is_really_there_is_reported(certified):
    """A loop that something else blocks reads late; the endpoint, in its own process, does not."""
    blocked = asyncio.get_running_loop().create_future()

    def block():
        end = asyncio.get_running_loop().time() + 0.03
        while asyncio.get_running_loop().time() < end:
            pass
        if not blocked.done():
            asyncio.get_running_loop().call_later(0.005, block)

    block()
    found = await certified(rows=20, gap=0.01)
    blocked.set_result(None)
    assert found["ttft_error_mean_s"] > 0.005


async def test_a_run_carries_its_certificate_and_one_without_says_so(engine, asking):
    with_one = await replay_in_loop(asking(engine.url, no_certify=False, name="with"))
    assert with_one.manifest()["certificate"]["requests"] == 3
    assert "own TTFT error: mean" in certificate_line(summarise(with_one).notes["certificate"])
    without = await replay_in_loop(dataclasses.replace(asking(engine.url, name="without"), no_certify=True))
    assert certificate_line(summarise(without).notes["certificate"]) == (
        "the generator's own error was not measured (--no-certify)"
    )
