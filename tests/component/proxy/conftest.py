"""A whole proxy in the loop of the test, between a scripted engine and a client that speaks bytes."""

import asyncio
import io
import logging
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from clients import Client
from engines import PATIENCE_S, Engine

from proxy import app
from proxy.exchange import Exchange
from proxy.logs import Writer, formatter
from proxy.settings import Settings


def pytest_asyncio_loop_factories(config, item):
    """Both loops must do: uvloop in production, asyncio's own where uvloop cannot be had. A module may name fewer."""
    loops = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
    return {name: loops[name] for name in getattr(item.module, "LOOPS", loops)}


class Running:
    """A started proxy, and everything that finished in it."""

    def __init__(self, application: app.App) -> None:
        self.app = application
        self.finished: list[Exchange] = []
        self._changed = asyncio.Event()
        self._clients: list[Client] = []

    def observe(self, exchange: Exchange) -> None:
        self.finished.append(exchange)
        self._changed.set()

    @property
    def port(self) -> int:
        return self.app.listen.port

    async def client(self) -> Client:
        client = await Client.open(self.port)
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        await self.app.close()

    async def ended(self, number: int = 0) -> Exchange:
        """The exchange that ended as this one, counting from 0."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.finished) <= number:
                self._changed.clear()
                await self._changed.wait()
        return self.finished[number]

    def held(self) -> tuple[int, int, int]:
        """Sequences in flight, prefill tokens outstanding, requests waiting."""
        seen = self.app.admission.snapshot()
        return (
            sum(backend.in_flight for backend in seen.backends),
            sum(backend.prefill_tokens for backend in seen.backends),
            sum(lane.waiting_requests for lane in seen.lanes),
        )


def settings_for(*engines: Engine, **sections) -> Settings:
    document = {
        "listen": "127.0.0.1:0",
        "admin": "127.0.0.1:0",
        "backends": [{"url": engine.url, "name": f"engine{n}"} for n, engine in enumerate(engines)],
        "scheduling": {"drop_factor": "never"},
        "probes": {"scrape_metrics": False, "interval": "1h"},
    }
    for key, value in sections.items():
        document[key] = {**document[key], **value} if isinstance(document.get(key), dict) else value
    return Settings.model_validate(document)


@asynccontextmanager
async def running(settings: Settings, **parts) -> AsyncIterator[Running]:
    application = app.App(settings, **parts) if parts else app.build(settings)
    await application.start()
    proxy = Running(application)
    application.corridor._rooms.account._observers += (proxy,)
    try:
        yield proxy
    finally:
        await proxy.close()


@pytest.fixture
async def start() -> AsyncIterator[Callable]:
    """Start engines and a proxy in front of them: `engine, proxy = await start(script, **sections)`."""
    async with AsyncExitStack() as stack:

        async def begin(*scripts, **sections):
            engines = [await stack.enter_async_context(Engine(script)) for script in scripts]
            proxy = await stack.enter_async_context(running(settings_for(*engines, **sections)))
            return (*engines, proxy)

        yield begin


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until something holds that no event tells of."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


@pytest.fixture(params=["text", "json"])
def log_form(request):
    """How the log is written."""
    return request.param


@pytest.fixture
def log(log_form):
    """The log as the process writes it: a function that returns its text so far, and ends it."""
    stream = io.StringIO()
    writer = Writer(stream)
    writer.setFormatter(formatter(log_form))
    root = logging.getLogger()
    level = root.level
    root.addHandler(writer)
    root.setLevel(logging.INFO)
    yield lambda: (writer.close(), stream.getvalue())[1]
    root.removeHandler(writer)
    root.setLevel(level)
