"""The simulated engine with a count of the requests that are in flight in it, for `tools.acceptance.leases`."""

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from loadgen.sim.profile import load_profile
from loadgen.sim.server import EngineServer, ServerOptions


class Count:
    """Requests in flight, and every moment at which there were more than the limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.now = 0
        self.served = 0
        self.peak = 0
        self.over: list[tuple[float, int]] = []
        """Monotonic seconds and requests in flight, at each change above the limit and at the first below."""

    def add(self, more: int) -> None:
        """Take that a request has begun (1) or ended (-1)."""
        before, self.now = self.now, self.now + more
        self.peak = max(self.peak, self.now)
        if max(before, self.now) > self.limit:
            self.over.append((time.monotonic(), self.now))

    @web.middleware
    async def middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Count a generation request for as long as it runs; answer `/count` itself."""
        if request.path == "/count":
            document = {"in_flight": self.now, "peak": self.peak, "served": self.served, "over": self.over}
            self.peak, self.over = self.now, []
            return web.json_response(document)
        if request.method != "POST":
            return await handler(request)
        self.add(1)
        try:
            answer = await handler(request)
            self.served += 1
            return answer
        finally:
            self.add(-1)


async def _serve(asked: argparse.Namespace) -> None:
    host, _, port = asked.listen.rpartition(":")
    profile = load_profile(asked.profile)
    server = EngineServer(profile, ServerOptions(model="tiny", speed=asked.speed))
    application = server.application()
    application.middlewares.append(Count(asked.limit).middleware)
    runner = web.AppRunner(application, handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host, int(port)).start()
    await asyncio.Event().wait()


def main() -> int:
    """Serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen", required=True)
    parser.add_argument("--profile", default="8b")
    parser.add_argument("--speed", type=float, default=10.0)
    parser.add_argument("--limit", type=int, default=64)
    asyncio.run(_serve(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
