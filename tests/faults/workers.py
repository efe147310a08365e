"""The operations case of several processes on one port."""

import contextlib
import random
import re
import socket
import tempfile
from pathlib import Path
from typing import Any

from tests.faults import wire
from tests.faults.case import case
from tests.faults.station import ROOT, Options, eventually, free_port, lanewise, spawn
from tests.faults.upstream import Upstream
from tests.faults.wire import chat

_ASKED = 60
"""Connections, each with one request: the kernel gives each to one of the two."""
_COUNTED = re.compile(r'^lanewise_requests_total\{.*outcome="ok".*\} (\S+)$', re.MULTILINE)


@case(
    "OPS-25",
    "two proxies on one port (SO_REUSEPORT): `lanewise serve --workers 2`",
    {
        "ready": 2,
        "statuses": {"200": _ASKED},
        "counted_by_each": {"each": {"at_least": 1}, "count": 2},
        "counted": _ASKED,
        "concurrency_by_each": {"count": 2, "each": {"at_least": 1}},
        "upstream": _ASKED,
    },
    why="both serve; what each counts adds up to what was asked; limits and who keeps them: docs/several-proxies.md",
)
async def _two() -> dict[str, Any]:
    port, admin = free_port(), _three_free_ports()
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        async with Upstream() as engine:
            listen = ("--listen", f"{wire.HOST}:{port}", "--admin", f"{wire.HOST}:{admin}", "--workers", "2")
            command = lanewise("serve", "--backend", engine.url, *listen)
            process = spawn(command, Path(name), Options({"PYTHONPATH": str(ROOT)}))
            try:
                return await _observed(engine, port, admin)
            finally:
                await process.stop()


def _three_free_ports() -> int:
    """The first of three free ports in a row: the supervisor's, and those of its workers. Below those of clients."""
    for first in random.sample(range(20_000, 30_000), 100):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + 3):
                stack.enter_context(socket.create_server((wire.HOST, port)))
            return first
    raise RuntimeError("no three free ports in a row")


async def _observed(engine: Upstream, port: int, admin: int) -> dict[str, Any]:
    rows = await eventually(lambda: _workers(admin), lambda rows: sum(row["ready"] for row in rows) == 2, 60.0)
    ports = [int(str(row["admin"]).rpartition(":")[2].strip("/")) for row in rows]
    talks = [await wire.ask(port, wire.request(chat())) for _ in range(_ASKED)]
    statuses = [str(talk.answer.status) for talk in talks]
    counted = [await _counted(one) for one in ports]
    return {
        "ready": sum(row["ready"] for row in rows),
        "statuses": {status: statuses.count(status) for status in sorted(set(statuses))},
        "counted_by_each": counted,
        "counted": sum(counted),
        "concurrency_by_each": [await _concurrency(one) for one in ports],
        "upstream": len(engine.requests),
    }


async def _page(admin: int, path: str) -> wire.Answer:
    try:
        return (await wire.ask(admin, f"GET {path} HTTP/1.1\r\nHost: t\r\n\r\n".encode(), 5.0)).answer
    except OSError:
        return wire.Answer(0, "", [], b"", complete=False)


async def _workers(admin: int) -> list[dict[str, Any]]:
    document = (await _page(admin, "/status.json")).document
    return document.get("workers", []) if isinstance(document, dict) else []


async def _counted(admin: int) -> int:
    text = (await _page(admin, "/metrics")).body.decode()
    return int(sum(float(value) for value in _COUNTED.findall(text)))


async def _concurrency(admin: int) -> int:
    document = (await _page(admin, "/status.json")).document
    return int(document["backends"][0]["concurrency"]) if isinstance(document, dict) else 0
