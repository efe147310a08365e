"""The admin listener: metrics, health, status. Read only, on an address of its own, loopback unless told otherwise."""

import base64
import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from aiohttp import web

from proxy.explain import Explanations
from proxy.keys import Keyring
from proxy.lately import Lately
from proxy.metrics.exposition import content_type, render
from proxy.metrics.whole import Metrics
from proxy.settings import Address
from proxy.status import Status
from proxy.statuspage import ASSETS, CONTENT_SECURITY_POLICY, REFRESH_S, asset, page
from proxy.statuspage.words import choose

_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Server": "lanewise"}
_OPEN = frozenset({"/livez", "/readyz"})


class Admin:
    """Serves `/metrics`, `/livez`, `/readyz`, `/status.json`, `/history.json` and `/`.

    Args:
        address: where to listen; port 0 takes any free one.
        metrics: what `/metrics` shows.
        status: what the rest shows.
        explanations: what `/explain.json` tells of single requests; None: nothing.
        lately: what `/history.json` shows; None: nothing.
        refresh_s: how often the page looks again.
    """

    def __init__(
        self,
        address: Address,
        metrics: Metrics,
        status: Status,
        explanations: Explanations | None = None,
        lately: Lately | None = None,
        *,
        refresh_s: float = REFRESH_S,
    ) -> None:
        self._explanations = explanations
        self._lately = lately
        self._refresh_s = refresh_s
        self._address = address
        self._metrics = metrics
        self._status = status
        self.keys: Keyring | None = None
        """Keys of whoever may look; None: everybody may."""
        self._runner: web.AppRunner | None = None

    async def start(self) -> Address:
        """Start listening.

        Returns:
            The address with its real port.

        Raises:
            OSError: the port is in use, or the address is not ours.
        """
        application = web.Application(client_max_size=1024, middlewares=[self._guard])
        application.router.add_get("/metrics", self._serve_metrics)
        application.router.add_get("/livez", self._serve_livez)
        application.router.add_get("/readyz", self._serve_readyz)
        application.router.add_get("/status.json", self._serve_status)
        application.router.add_get("/config.json", self._serve_config)
        application.router.add_get("/explain.json", self._serve_explanation)
        application.router.add_get("/history.json", self._serve_history)
        application.router.add_get("/assets/{name}", self._serve_asset)
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

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Ask for the key, where there is one; whether the proxy lives and is ready everybody may know."""
        if self.keys is None or request.path in _OPEN or _has_key(self.keys, request):
            return await handler(request)
        answer = _json({"error": "the admin listener wants its key (auth.admin_key_file)"}, HTTPStatus.UNAUTHORIZED)
        answer.headers["WWW-Authenticate"] = 'Basic realm="lanewise", charset="UTF-8"'
        return answer

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

    async def _serve_history(self, _request: web.Request) -> web.Response:
        empty: dict[str, object] = {"every_s": None, "kept_s": 0.0, "at": [], "series": {}}
        return _json(empty if self._lately is None else self._lately.document(), indent=None)

    async def _serve_asset(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in ASSETS:
            raise web.HTTPNotFound
        return web.Response(body=asset(name), content_type=ASSETS[name], charset="utf-8", headers=_HEADERS)

    async def _serve_page(self, request: web.Request) -> web.Response:
        headers = {
            **_HEADERS,
            "Content-Security-Policy": CONTENT_SECURITY_POLICY,
            "Referrer-Policy": "no-referrer",
            "Vary": "Accept-Language",
        }
        language = choose(request.query.get("lang"), request.headers.get("Accept-Language", ""))
        text = page(self._status.document(), language, self._refresh_s)
        return web.Response(body=_bytes(text), content_type="text/html", charset="utf-8", headers=headers)


def _has_key(keys: Keyring, request: web.Request) -> bool:
    """Whether a request holds a key: as a bearer token, or as the password that a browser asks for."""
    values = request.headers.getall("Authorization", ())
    if len(values) != 1:
        return False
    scheme, _, value = values[0].partition(" ")
    key = value.strip()
    if scheme.lower() == "basic":
        try:
            key = base64.b64decode(key, validate=True).decode("utf-8").partition(":")[2]
        except ValueError:
            return False
    elif scheme.lower() != "bearer":
        return False
    return keys.find(key) is not None


def _json(document: object, status: int = HTTPStatus.OK, indent: int | None = 1) -> web.Response:
    text = json.dumps(document, ensure_ascii=False, indent=indent) + "\n"
    return web.Response(
        body=_bytes(text), status=status, content_type="application/json", charset="utf-8", headers=_HEADERS
    )


def _bytes(text: str) -> bytes:
    """Encode; a name that an engine gives need not be text, and as an escape JSON still says the same."""
    return text.encode("utf-8", "backslashreplace")
