"""The admin listener of a supervisor: the status of all workers as one."""

import asyncio
import json
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Protocol

import aiohttp
from aiohttp import web

from proxy.metrics.exposition import content_type, render_at_once
from proxy.metrics.leases import worker_families
from proxy.settings import Address
from proxy.workers.merged import merged

_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Server": "lanewise"}
_PATIENCE_S = 2.0
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound


class Watched(Protocol):
    """What is told of a worker."""

    number: int
    admin: Address
    restarts: int

    @property
    def pid(self) -> int | None:
        """Its process id, while it runs."""
        ...


class ClosedError(Exception):
    """A worker's admin listener wants its key."""


async def ask(admin: Address, path: str, key: str = "") -> tuple[int, Any] | None:
    """Return status and document of one worker's admin page; None when it does not answer.

    Args:
        admin: its admin listener.
        path: the page.
        key: value of `Authorization`; "": none.
    """
    host = _WILDCARDS.get(admin.host, admin.host)
    url = f"http://[{host}]:{admin.port}{path}" if ":" in host else f"http://{host}:{admin.port}{path}"
    headers = {"Authorization": key} if key else {}
    try:
        timeout = aiohttp.ClientTimeout(total=_PATIENCE_S)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url, headers=headers) as answer:
            return answer.status, await answer.json()
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return None


async def _status_of(admin: Address, key: str) -> dict[str, Any] | None:
    """Return the status document of one worker; None when it does not answer.

    Raises:
        ClosedError: it wants a key, or another one.
    """
    found = await ask(admin, "/status.json", key)
    if found is not None and found[0] == HTTPStatus.UNAUTHORIZED:
        raise ClosedError
    return found[1] if found is not None and found[0] == HTTPStatus.OK else None


class Front:
    """Serves `/status.json`, `/livez`, `/readyz` and `/metrics` for all workers.

    Args:
        address: where to listen.
        workers: of whom to tell.
    """

    def __init__(self, address: Address, workers: Sequence[Watched]) -> None:
        self._address = address
        self._workers = workers
        self._runner: web.AppRunner | None = None

    async def start(self) -> Address:
        """Start listening, and return the address with its real port.

        Raises:
            OSError: the port is in use, or the address is not ours.
        """
        application = web.Application(client_max_size=1024)
        application.router.add_get("/status.json", self._serve_status)
        application.router.add_get("/livez", self._serve_livez)
        application.router.add_get("/readyz", self._serve_readyz)
        application.router.add_get("/metrics", self._serve_metrics)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._address.host, self._address.port).start()
        except OSError:
            await self.close()
            raise
        return Address(self._address.host, self._runner.addresses[0][1])

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def document(self, key: str = "") -> dict[str, Any]:
        """Return the merged status.

        Args:
            key: value of `Authorization`, for the workers, who know whether it is right.

        Raises:
            ClosedError: it is not.
        """
        statuses = await asyncio.gather(*(_status_of(worker.admin, key) for worker in self._workers))
        return merged(
            [
                {
                    "worker": worker.number,
                    "admin": str(worker.admin),
                    "pid": worker.pid,
                    "restarts": worker.restarts,
                    "status": status,
                }
                for worker, status in zip(self._workers, statuses, strict=True)
            ]
        )

    async def _serve_status(self, request: web.Request) -> web.Response:
        try:
            return _json(await self.document(request.headers.get("Authorization", "")))
        except ClosedError:
            answer = _json({"error": "the admin listener wants its key (auth.admin_key_file)"}, HTTPStatus.UNAUTHORIZED)
            answer.headers["WWW-Authenticate"] = 'Basic realm="lanewise", charset="UTF-8"'
            return answer

    async def _serve_livez(self, _request: web.Request) -> web.Response:
        return _json({"live": True})

    async def _serve_readyz(self, _request: web.Request) -> web.Response:
        """Answer as the workers do: ready as soon as one of them is."""
        answers = await asyncio.gather(*(ask(worker.admin, "/readyz") for worker in self._workers))
        known = [answer for answer in answers if answer is not None]
        if any(status == HTTPStatus.OK for status, _ in known):
            return _json({"ready": True})
        reason = known[0][1]["reason"] if known else "no worker answers"
        return _json({"ready": False, "reason": reason}, HTTPStatus.SERVICE_UNAVAILABLE)

    async def _serve_metrics(self, request: web.Request) -> web.Response:
        accept = request.headers.get("Accept", "")
        families = worker_families([(one.number, one.pid is not None, one.restarts) for one in self._workers])
        body = render_at_once(families, accept)
        return web.Response(body=body, headers={**_HEADERS, "Content-Type": content_type(accept)})


def _json(document: dict[str, Any], status: int = HTTPStatus.OK) -> web.Response:
    text = json.dumps(document, ensure_ascii=False, indent=1) + "\n"
    body = text.encode("utf-8", "backslashreplace")
    return web.Response(body=body, status=status, content_type="application/json", charset="utf-8", headers=_HEADERS)
