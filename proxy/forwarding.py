"""Who is at the other end: the TCP connection, or what our own reverse proxies in front say of their clients."""

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network

from aiohttp import web

from proxy.modes import trusts
from proxy.wire.forwarded import client_address
from proxy.wire.headers import Peer

Networks = tuple[IPv4Network | IPv6Network, ...]


class Forwarding:
    """Says what is believed of where a request comes from.

    Args:
        proxies: networks of our own proxies.
    """

    def __init__(self, proxies: Sequence[IPv4Network | IPv6Network] = ()) -> None:
        self._proxies: Networks = tuple(proxies)

    def peer(self, request: web.BaseRequest) -> Peer:
        """Return what the engine is told of the client's side."""
        address = request.remote or ""
        trusted = bool(self._proxies) and _trusts(self._proxies, address)
        return Peer(address, request.scheme, request.headers.get("Host", ""), trusted)

    def client(self, request: web.BaseRequest) -> str:
        """Return the address of the client, "" when nobody knows."""
        address = request.remote or ""
        if not self._proxies:
            return address
        return client_address(request.raw_headers, address, lambda hop: _trusts(self._proxies, hop))


@lru_cache(maxsize=4096)
def _trusts(proxies: Networks, address: str) -> bool:
    return trusts(proxies, address)
