"""The real engines that the tests share. They are started only where vLLM is already installed: `make test-engine`."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from tests.engine.experiment import FOR_THIS_ENGINE, warmed_up
from tests.engine.server import VENV, installation, serving
from tests.faults.station import Station, start

API_KEY = "secret"
FLAGS = (
    *("--max-num-seqs", "2", "--max-num-queued-reqs", "4", "--api-key", API_KEY),
    *("--enable-request-id-headers", "--enable-per-request-metrics", "--sse-keep-alive-interval", "1"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--scheduling-policy", "priority"),
)
"""What the engine was started with whose answers are recorded as `x_…`, as far as it shows here."""


@pytest.fixture(scope="session")
def installed():
    if not os.environ.get(VENV):
        pytest.skip(f"{VENV} names no vLLM; `make test-engine` installs one and sets it")
    return installation()


def _shared(installed, *flags):
    """A session's engine, in no test's event loop."""
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        stack = AsyncExitStack()
        try:
            yield runner.run(stack.enter_async_context(serving(installed, *flags)))
        finally:
            runner.run(stack.aclose())


@pytest.fixture(scope="session")
def engine(installed):
    """With prefix caching, and 32 sequences at once."""
    yield from _shared(installed)


@pytest.fixture(scope="session")
def flagged(installed):
    """With an API key, two sequences at once, a bounded queue, tools and priorities."""
    yield from _shared(installed, *FLAGS)


@pytest.fixture
def own_engine(installed):
    """An engine that the test may kill."""

    def started(*flags):
        return serving(installed, *flags)

    return started


@pytest.fixture
def in_front_of():
    """A lanewise in front of one engine or several, up and warmed up."""

    @asynccontextmanager
    async def started(*engines, api_key: str | None = None, **more) -> AsyncIterator[Station]:
        config = FOR_THIS_ENGINE | more
        if api_key is not None:
            config |= {"probes": config["probes"] | {"api_key": api_key}}
        backends = [{"url": engine.url, "name": str(engine.port)} for engine in engines]
        async with start(config, backends=backends) as proxy:
            await warmed_up(proxy, api_key)
            yield proxy

    return started
