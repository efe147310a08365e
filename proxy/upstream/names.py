"""Where the names of backends lead, looked up again and again: one view for probes and requests.

What a name meant last counts while it cannot be resolved: a name server that is away says nothing about the engines.
Nobody waits for a name server but who asks for a name the first time, or has found nobody at its addresses.
"""

import asyncio
import ipaddress
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import Final

from aiohttp.abc import AbstractResolver, ResolveResult

from proxy import tasks

_log = logging.getLogger("lanewise")

Addresses = tuple[str, ...]
Lookup = Callable[[str], Awaitable[Sequence[str]]]
"""Takes a host name and returns its addresses as text; raises OSError when it has none."""

REFRESH_S: Final = 5.0
"""How often a name is looked up again where nobody says otherwise."""


async def ask_system(host: str) -> Addresses:
    """Ask the system for the addresses of a name, each once, in the order it prefers.

    Raises:
        OSError: it has none, or nobody can say.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


class Names:
    """Remembers the addresses of names.

    Args:
        lookup: asks a name server.
        refresh_s: how often names that somebody watches are looked up again.
    """

    def __init__(self, lookup: Lookup = ask_system, refresh_s: float = REFRESH_S) -> None:
        self.refresh_s = refresh_s
        self._lookup = lookup
        self._known: dict[str, Addresses] = {}
        self._lost: set[str] = set()
        """Names that could not be resolved when they were last looked up."""
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._watching: dict[str, list[Callable[[Addresses], None]]] = {}
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Names {self._known}>"

    def start(self) -> None:
        """Look names up again in the background, from now on."""
        if self._task is None:
            self._task = tasks.spawn(self._keep_fresh(), "look names up")

    async def close(self) -> None:
        """Look nothing up any more."""
        running = [task for task in (self._task, *self._asking.values()) if task is not None]
        self._task = None
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def watch(self, host: str, moved: Callable[[Addresses], None]) -> None:
        """Call `moved` with the addresses of a name whenever they are other ones than before."""
        self._watching.setdefault(host, []).append(moved)

    def unwatch(self, host: str, moved: Callable[[Addresses], None]) -> None:
        """Call it no more; what was never watched does no harm."""
        watchers = self._watching.get(host, [])
        if moved in watchers:
            watchers.remove(moved)
        if not watchers:
            self._watching.pop(host, None)

    async def addresses(self, host: str) -> Addresses:
        """Return what a name means, as it was looked up last; an address means itself.

        Raises:
            OSError: it cannot be resolved, and never could.
        """
        known = (host,) if _is_address(host) else self._known.get(host)
        return await self.look_again(host) if known is None else known

    async def look_again(self, host: str) -> Addresses:
        """Look a name up now and return what it means; what it meant last when it cannot be resolved.

        Whoever asks while a look-up runs waits for that one.

        Raises:
            OSError: it cannot be resolved, and never could.
        """
        if _is_address(host):
            return (host,)
        await asyncio.shield(self._ask(host))
        if host not in self._known:
            raise socket.gaierror(socket.EAI_NONAME, f"{host} cannot be resolved")
        return self._known[host]

    def look_soon(self, host: str) -> None:
        """Look a name up in the background: nobody was found where it led."""
        if not _is_address(host):
            self._ask(host)

    def _ask(self, host: str) -> asyncio.Task[None]:
        task = self._asking.get(host)
        if task is None:
            task = self._asking[host] = tasks.spawn(self._look(host), f"look up {host}")
            task.add_done_callback(lambda _: self._asking.pop(host, None))
        return task

    async def _look(self, host: str) -> None:
        try:
            found = tuple(await self._lookup(host))
        except OSError as error:
            self._unresolved(host, error)
            return
        if not found:
            self._unresolved(host, OSError("it has no address"))
            return
        self._lost.discard(host)
        before = self._known.get(host)
        self._known[host] = found
        if before is not None and set(before) != set(found):
            _log.info("%s is %s now, and was %s", host, ", ".join(found), ", ".join(before))
            for moved in tuple(self._watching.get(host, ())):
                moved(found)

    def _unresolved(self, host: str, error: OSError) -> None:
        if host in self._lost or host not in self._known:
            return
        self._lost.add(host)
        kept = ", ".join(self._known[host])
        _log.warning("%s cannot be resolved (%s); %s stays in use for it", host, error.strerror or error, kept)

    async def _keep_fresh(self) -> None:
        while True:
            began = time.monotonic()
            hosts = [host for host in self._watching if not _is_address(host)]
            await asyncio.gather(*(self._ask(host) for host in hosts), return_exceptions=True)
            await asyncio.sleep(max(0.0, began + self.refresh_s - time.monotonic()))


class NamesResolver(AbstractResolver):
    """`Names` in the form that aiohttp's client asks."""

    def __init__(self, names: Names) -> None:
        self._names = names

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the addresses of a name (aiohttp).

        Raises:
            OSError: it cannot be resolved, and never could.
        """
        found = await self._names.addresses(host)
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in found
            if family in {socket.AF_UNSPEC, socket.AF_INET6 if ":" in address else socket.AF_INET}
        ]

    async def close(self) -> None:
        """Let go of nothing: the names belong to somebody else (aiohttp)."""


@lru_cache(maxsize=1024)
def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
