"""The corner-case stream: a server whose events lie so far apart that every wrong rule shows as a wrong number."""

import json
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from time import monotonic

import pytest

from loadgen.options import Endpoint
from loadgen.replay import replay_in_loop
from loadgen.summarise import summarise

pytestmark = pytest.mark.shared
PATIENCE_S = 20


@pytest.fixture
def corner(shared, unused_tcp_port):
    @contextmanager
    def running(*options):
        command = [sys.executable, str(shared / "mock/corner.py"), "--port", str(unused_tcp_port), *options]
        with subprocess.Popen(command) as server:
            try:
                yield f"http://127.0.0.1:{unused_tcp_port}"
            finally:
                server.kill()

    return running


async def measured(asking, corner, rows, *options):
    """Replay, and give the summary, the results and the server's own times by request, in seconds."""
    with corner(*options) as url:
        await_answer(url)
        run = await replay_in_loop(asking(url, rows=rows, gap=0.0001, endpoint=Endpoint.CHAT))
        streams = json.loads(fetch(f"{url}/truth"))
    truth = {int(stream["request_id"].rpartition("-")[2]): dict_of(stream["written_ms"]) for stream in streams}
    return summarise(run), sorted(run.results(), key=lambda result: result.index), truth


def fetch(url):
    with urllib.request.urlopen(url) as page:
        return page.read()


def await_answer(url):
    """Try until the server answers."""
    end = monotonic() + PATIENCE_S
    while True:
        try:
            return fetch(f"{url}/health")
        except OSError:
            assert monotonic() < end, "the server does not answer"


def dict_of(written):
    """Name the two reasoning events apart."""
    names = ["role", "empty", "reasoning", "reasoning 2", "content", "content_3", "last"]
    times = [ms / 1000 for _, ms in written]
    return dict(zip(names, times, strict=False)) | {"done": times[-1]}


def close(value, truth):
    """A client reads late by its own delay, never early beyond the clocks' difference."""
    return -0.001 <= value - truth <= 0.020


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
async def test_every_latency_is_the_true_one(asking, corner, key):
    summary, (result,), truth = await measured(asking, corner, 1, "--reasoning-key", key)
    true, lane = truth[0], summary.lanes["all"]
    lag = result.sent - result.due
    assert close(lane.ttft_send.p50, true["reasoning"])
    assert lane.ttft.p50 == pytest.approx(lane.ttft_send.p50 + lag)
    assert close(lane.ttfot.p50 - lag, true["content"])
    assert (result.chunks, result.tokens, result.tokens_from) == (5, 7, "usage")
    assert lane.tpot.p50 == pytest.approx((true["last"] - true["reasoning"]) / 6, abs=0.005)
    assert lane.icl.n == 4
    assert lane.icl.max == pytest.approx(true["content"] - true["reasoning 2"], abs=0.005)
    assert lane.itl.n == 0
    assert close(lane.e2e.p50 - lag, true["last"])
    assert close(lane.stream_end.p50 - lag, true["done"])
    assert (result.outcome, result.finish) == ("ok", "length")
    assert close(lane.as_vllm_032["ttft"].p50, true["role"])
    assert close(lane.as_vllm_033["ttft"].p50, true["empty"])
    assert lane.as_vllm_033["itl"].n == (5 if key == "reasoning" else 3)


async def test_without_usage_the_chunks_are_counted(asking, corner):
    summary, (result,), truth = await measured(asking, corner, 1, "--usage", "never")
    assert (result.tokens, result.tokens_from) == (5, "chunks")
    assert summary.lanes["all"].tpot.p50 == pytest.approx((truth[0]["last"] - truth[0]["reasoning"]) / 4, abs=0.005)


async def test_fifty_streams_at_once_give_the_same_values_or_say_that_the_client_was_the_limit(asking, corner):
    summary, results, truth = await measured(asking, corner, 50)
    assert {(result.outcome, result.chunks, result.tokens) for result in results} == {("ok", 5, 7)}
    late = [result for result in results if not close(result.first - result.sent, truth[result.index]["reasoning"])]
    assert late == [] or summary.client_limited
