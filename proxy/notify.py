"""Tells the service manager how the proxy is: systemd's notification protocol, a datagram for each change.

It needs no library: variables separated by newlines, sent to the socket that NOTIFY_SOCKET names. Without that variable
nobody wants to know, and nothing is sent. A manager that does not take a datagram holds nothing up.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, MutableMapping
from typing import Self

_log = logging.getLogger("lanewise")
_GRACE_S = 10.0
"""What is asked for beyond the time to drain: for closing, writing what is left, and the interpreter's own end."""


class ServiceManager:
    """Whoever started the proxy and wants to be told.

    Args:
        address: path of a datagram socket, or its abstract name after an @; "": nobody listens.
        watchdog_s: the longest time without `alive` before the proxy is taken for hung; None: nobody watches.
    """

    def __init__(self, address: str = "", watchdog_s: float | None = None) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_s = watchdog_s

    @classmethod
    def of_environment(cls, environment: MutableMapping[str, str]) -> Self:
        """Take NOTIFY_SOCKET and WATCHDOG_USEC out of the environment: what is started later does not speak for us."""
        address = environment.pop("NOTIFY_SOCKET", "")
        microseconds, process = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
        ours = microseconds.isdigit() and process in {"", str(os.getpid())}
        return cls(address, int(microseconds) / 1e6 if ours and int(microseconds) else None)

    def ready(self, status: str) -> None:
        """Requests are served."""
        self._send("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Another configuration is put in force; `ready` ends it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}", "STATUS=changes its configuration")

    def stopping(self, drain_s: float) -> None:
        """The proxy ends; it may take the time to drain, whatever the unit's own TimeoutStopSec says."""
        patience = int((drain_s + _GRACE_S) * 1e6)
        self._send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={patience}", "STATUS=drains: running requests finish")

    def alive(self, status: str) -> None:
        """The event loop runs."""
        self._send("WATCHDOG=1", f"STATUS={status}")

    async def watch(self, status: Callable[[], str]) -> None:
        """Say for ever, twice as often as it is asked for, that the event loop runs. Returns where nobody watches."""
        while self.watchdog_s is not None and self._address:
            self.alive(status())
            await asyncio.sleep(self.watchdog_s / 2)

    def _send(self, *variables: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
                sock.sendto("\n".join(variables).encode(), self._address)
        except OSError as error:
            _log.debug("the service manager was not told %s: %s", variables[0], error)
