"""How a request is treated: as the configuration says, or as a peer that is trusted asks for it."""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from aiohttp import web

from proxy.answers import bad_request
from proxy.policy.limits import Mode

HEADER = "x-lanewise-mode"


class Modes:
    """Says which mode a request has.

    Args:
        mode: of every request that does not ask for another.
        trusted: networks whose requests may ask.
    """

    def __init__(self, mode: Mode = Mode.ENFORCE, trusted: Sequence[IPv4Network | IPv6Network] = ()) -> None:
        self.mode = mode
        self._trusted = tuple(trusted)

    def of(self, request: web.BaseRequest) -> Mode:
        """Return the mode of a request. The header of a peer that is not trusted does nothing.

        Raises:
            EndedError: 400, a trusted peer asks for a mode that does not exist.
        """
        if not self._trusted or HEADER not in request.headers or not trusts(self._trusted, request.remote):
            return self.mode
        wanted = request.headers[HEADER].strip().lower()
        try:
            return Mode(wanted)
        except ValueError:
            allowed = ", ".join(Mode)
            raise bad_request(f"{HEADER} is {wanted[:40]!r}; allowed: {allowed}") from None


def trusts(networks: Sequence[IPv4Network | IPv6Network], address: str | None) -> bool:
    """Return whether the address of a TCP connection is in one of the networks."""
    if not networks:
        return False
    try:
        peer: IPv4Address | IPv6Address = ip_address((address or "").partition("%")[0])
    except ValueError:
        return False
    if isinstance(peer, IPv6Address) and peer.ipv4_mapped is not None:
        peer = peer.ipv4_mapped
    return any(peer in network for network in networks)
