"""Where clients connect: one listening socket, and whoever accepts on it, with or without TLS.

Who accepts can be changed without closing the socket: nobody is refused meanwhile, and connections that are open stay
as they were made.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable

from proxy.settings import Address

BACKLOG = 4096
"""Connections that may wait to be accepted."""
_CLOSING_S = 2.0
"""How long the other side of an encrypted connection may take to agree that it ends."""


class DoorError(Exception):
    """The address is in use or not ours; the text is for people."""


class Door:
    """The data listener's socket. It listens at once: a taken port is known before anything else starts.

    Args:
        address: where; port 0 takes any free one.
        shared: other processes of this user listen there too, and the kernel gives each connection to one of them.

    Raises:
        DoorError: the address is in use or not ours.
    """

    def __init__(self, address: Address, *, shared: bool = False) -> None:
        try:
            family = socket.getaddrinfo(
                address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0][0]  # fmt: skip
            bound = (address.host, address.port)
            self._sock = socket.create_server(bound, family=family, backlog=BACKLOG, reuse_port=shared)
        except OSError as error:
            raise DoorError(in_use("the data listener", address, error)) from None
        self._server: asyncio.Server | None = None
        self.address = Address(address.host, self._sock.getsockname()[1])

    def __repr__(self) -> str:
        return f"<Door {self.address}, {'open' if self._server is not None else 'closed'}>"

    async def open(
        self, factory: Callable[[], asyncio.BaseProtocol], context: ssl.SSLContext | None, handshake_s: float
    ) -> None:
        """Let clients in; whoever accepted before accepts no more.

        Args:
            factory: makes the protocol of each connection.
            context: for encrypted connections; None: they are not.
            handshake_s: for the handshake of each.
        """
        before, own = self._server, self._sock.dup()
        loop = asyncio.get_running_loop()
        if context is None:
            self._server = await loop.create_server(factory, sock=own, backlog=BACKLOG)
        else:
            self._server = await loop.create_server(
                factory,
                sock=own,
                backlog=BACKLOG,
                ssl=context,
                ssl_handshake_timeout=handshake_s,
                ssl_shutdown_timeout=_CLOSING_S,
            )
        if before is not None:
            before.close()

    def close(self) -> None:
        """Let nobody in any more."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self._sock.close()


def in_use(what: str, address: Address, error: OSError) -> str:
    """Say that a listener cannot have an address."""
    why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
    return f"{what} cannot listen on {address}: {why}. Free the port, or choose another address"
