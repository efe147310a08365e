"""The admin listener: metrics, health, status. Read only, on an address of its own, loopback unless told otherwise."""

import json
from http import HTTPStatus

from aiohttp import web

from proxy.explain import Explanations
from proxy.metrics import Metrics
from proxy.metrics.exposition import content_type, render
from proxy.settings import Address
from proxy.status import Status
from proxy.statuspage import CONTENT_SECURITY_POLICY, page

_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Server": "lanewise"}


class Admin:
    """Serves `/metrics`, `/livez`, `/readyz`, `/status.json` and `/`.

    Args:
        address: where to listen; port 0 takes any free one.
        metrics: what `/metrics` shows.
        status: what the rest shows.
        explanations: what `/explain.json` tells of single requests; None: nothing.
    """

    def __init__(
        self, address: Address, metrics: Metrics, status: Status, explanations: Explanations | None = None
    ) -> None:
        self._explanations = explanations
        self._address = address
        self._metrics = metrics
        self._status = status
        self._runner: web.AppRunner | None = None

    async def start(self) -> Address:
        """Start listening.

        Returns:
            The address with its real port.

        Raises:
            OSError: the port is in use, or the address is not ours.
        """
        application = web.Application(client_max_size=1024)
        application.router.add_get("/metrics", self._serve_metrics)
        application.router.add_get("/livez", self._serve_livez)
        application.router.add_get("/readyz", self._serve_readyz)
        application.router.add_get("/status.json", self._serve_status)
        application.router.add_get("/config.json", self._serve_config)
        application.router.add_get("/explain.json", self._serve_explanation)
        application.router.add_get("/", self._serve_page)
        runner = web.AppRunner(application, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        self._runner = runner
        try:
            site = web.TCPSite(runner, self._address.host, self._address.port)
            await site.start()
        except OSError:
            await self.close()
            raise
        return Address(self._address.host, runner.addresses[0][1])

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _serve_metrics(self, request: web.Request) -> web.StreamResponse:
        accept = request.headers.get("Accept", "")
        answer = web.StreamResponse(headers={"Content-Type": content_type(accept), **_HEADERS})
        await answer.prepare(request)
        async for text in render(self._metrics.families(), accept):
            await answer.write(text)
        await answer.write_eof()
        return answer

    async def _serve_livez(self, _request: web.Request) -> web.Response:
        """Answer as long as the event loop runs; liveness never depends on backends."""
        return _json({"live": True})

    async def _serve_readyz(self, _request: web.Request) -> web.Response:
        reason = self._status.not_ready()
        if reason is None:
            return _json({"ready": True})
        return _json({"ready": False, "reason": reason}, HTTPStatus.SERVICE_UNAVAILABLE)

    async def _serve_status(self, _request: web.Request) -> web.Response:
        return _json(self._status.document())

    async def _serve_config(self, _request: web.Request) -> web.Response:
        return _json(self._status.configuration())

    async def _serve_explanation(self, request: web.Request) -> web.Response:
        if self._explanations is None:
            return _json({"found": False, "recent": []}, HTTPStatus.NOT_FOUND)
        found = self._explanations.find(request.query.get("id", ""))
        if found is None:
            return _json({"found": False, "recent": self._explanations.recent()}, HTTPStatus.NOT_FOUND)
        return _json({"found": True, **found})

    async def _serve_page(self, _request: web.Request) -> web.Response:
        headers = {
            **_HEADERS,
            "Content-Security-Policy": CONTENT_SECURITY_POLICY,
            "Referrer-Policy": "no-referrer",
        }
        return web.Response(text=page(self._status.document()), content_type="text/html", headers=headers)


def _json(document: object, status: int = HTTPStatus.OK) -> web.Response:
    text = json.dumps(document, ensure_ascii=False, indent=1) + "\n"
    return web.Response(text=text, status=status, content_type="application/json", headers=_HEADERS)
