"""Runs the simulated engine's server as a process: event loop, socket, signals."""

import asyncio
import os
import random
import signal
from collections.abc import Callable

import uvloop
from aiohttp import web

from loadgen.failure import StopError
from loadgen.sim.nouns import EngineProfile
from loadgen.sim.server import EngineServer, ServerOptions

_KEEP_ALIVE_S = 5.0
"""vLLM's `VLLM_HTTP_TIMEOUT_KEEP_ALIVE`."""
_BACKLOG = 2048
"""A burst of new connections must not be refused by the kernel; uvicorn's value."""


def run(profile: EngineProfile, options: ServerOptions, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        profile: the engine.
        options: how it is served.
        host: address to bind.
        port: 0 takes a free one.
        ready: called with the base URL once the server listens.

    Raises:
        StopError: the address cannot be bound.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(profile, options, host, port, ready))


async def _serve(
    profile: EngineProfile, options: ServerOptions, host: str, port: int, ready: Callable[[str], None]
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    noise = random.Random(options.seed) if profile.noise_sigma > 0 else None
    runner = runner_for(EngineServer(profile, options, noise))
    await runner.setup()
    try:
        ready(await bind(runner, host, port))
        await stop.wait()
    finally:
        await runner.cleanup()


def runner_for(server: EngineServer) -> web.AppRunner:
    """Return the runner of a server: a client that leaves cancels its handler, in every phase."""
    return web.AppRunner(
        server.application(),
        access_log=None,
        handler_cancellation=True,
        keepalive_timeout=_KEEP_ALIVE_S,
        shutdown_timeout=0.1,
    )


async def bind(runner: web.AppRunner, host: str, port: int) -> str:
    """Listen, and return the base URL.

    Raises:
        StopError: the address is in use, or not ours.
    """
    site = web.TCPSite(runner, host, port, backlog=_BACKLOG)
    try:
        await site.start()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise StopError(f"Cannot listen on {host}:{port}: {reason}. Free the port, or give another --listen.") from None
    bound = runner.addresses[0]
    name = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
    return f"http://{name}:{bound[1]}"
