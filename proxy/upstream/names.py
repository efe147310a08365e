"""Names of backends for the probes: what a name meant last counts while it cannot be resolved."""

import socket

from aiohttp.abc import AbstractResolver, ResolveResult


class LastGoodNames(AbstractResolver):
    """A resolver that answers with what it heard last when the one behind it fails.

    A name server that is away for a while says nothing about the backends, so these stay in use.

    Args:
        resolver: asks the system.
    """

    def __init__(self, resolver: AbstractResolver) -> None:
        self._resolver = resolver
        self._good: dict[tuple[str, int, socket.AddressFamily], list[ResolveResult]] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the addresses of a name (aiohttp).

        Raises:
            OSError: it cannot be resolved, and never could.
        """
        asked = (host, port, family)
        try:
            found = await self._resolver.resolve(host, port, family)
        except OSError:
            if asked not in self._good:
                raise
            return self._good[asked]
        self._good[asked] = found
        return found

    async def close(self) -> None:
        """Let go of the system's resolver (aiohttp)."""
        await self._resolver.close()
