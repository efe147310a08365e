"""Orders to a running proxy, from a shell on the same machine: reload, rollback, verdict.

They go over a Unix socket with an abstract name, and the kernel says who is at its other end: only the user that the
proxy runs as, and root, are obeyed. So the admin listener stays read-only, however it is bound: no web page and no
scraper can give orders.

The name holds the port of the admin listener, which is what a shell knows of a proxy; there is no file to clean up, and
it reaches as far as the network namespace, into the container and no further. One line of JSON each way.
"""

import asyncio
import json
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

_log = logging.getLogger("lanewise")

Order = dict[str, Any]
Reply = dict[str, Any]

_LONGEST_LINE = 256 * 1024
_PATIENCE_S = 10.0
"""For the order to arrive."""
_CREDENTIALS = struct.Struct("3i")


class ControlError(Exception):
    """No proxy took the order; the text says why."""


class Control:
    """Takes orders.

    Args:
        obey: carries one order out and returns what to answer.
    """

    def __init__(self, obey: Callable[[Order], Awaitable[Reply]]) -> None:
        self._obey = obey
        self._server: asyncio.Server | None = None

    async def start(self, port: int) -> None:
        """Listen for the proxy whose admin listener is on `port`. A name that is taken is said and does no harm."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(_name(port))
        except OSError as error:
            sock.close()
            _log.warning("no orders from a shell (%s): reload by SIGHUP", os.strerror(error.errno or 0))
            return
        self._server = await asyncio.start_unix_server(self._serve, sock=sock, limit=_LONGEST_LINE)

    async def close(self) -> None:
        """Take no more orders."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            reply = await self._answer(reader, _user(writer.get_extra_info("socket")))
            writer.write(json.dumps(reply).encode() + b"\n")
            await writer.drain()
        except (OSError, ValueError, TimeoutError) as error:
            _log.debug("an order came to nothing: %r", error)
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, user: int) -> Reply:
        async with asyncio.timeout(_PATIENCE_S):
            line = await reader.readline()
        if user not in {0, os.getuid()}:
            return {"done": False, "sentences": [f"user {user} may not give orders to this proxy"]}
        order = json.loads(line)
        if not isinstance(order, dict):
            return {"done": False, "sentences": ["an order is a JSON object"]}
        return await self._obey(order)


def give(port: int, order: Order, patience_s: float) -> Reply:
    """Give an order to the proxy whose admin listener is on `port`, and return its answer.

    Raises:
        ControlError: nobody is there, or nobody answers in time.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(patience_s)
        try:
            sock.connect(_name(port))
            sock.sendall(json.dumps(order).encode() + b"\n")
            with sock.makefile("rb") as answers:
                reply = json.loads(answers.readline())
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise ControlError(f"no proxy with its admin listener on port {port} takes orders here: {reason}") from None
    if not isinstance(reply, dict):
        raise ControlError(f"what answers for port {port} is no lanewise")
    return reply


def _name(port: int) -> str:
    return f"\0lanewise-{port}"


def _user(sock: Any) -> int:
    """Return the user id at the other end, as the kernel saw it connect."""
    _, user, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(user)
