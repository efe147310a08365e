"""Which address a request comes from, when reverse proxies in front say so: `X-Forwarded-For`, or `Forwarded`."""

import ipaddress
import re
from collections.abc import Callable, Iterable, Sequence

MOST_HOPS = 32
"""Addresses that are looked at, from the nearest on: a chain is as long as whoever sends it likes."""
_FOR = re.compile(r"""for\s*=\s*(?:"([^"]*)"|([^\s;,"]+))""", re.IGNORECASE)


def client_address(raw: Iterable[tuple[bytes, bytes]], peer: str, trusted: Callable[[str], bool]) -> str:
    """Return the address of the client.

    From the connection on, each proxy that is trusted vouches for the address before it; the first that is not trusted
    is the client. What stands further in front anybody can have written. `Forwarded` counts where there is no
    `X-Forwarded-For`.

    Args:
        raw: the fields of the request.
        peer: address of the TCP connection.
        trusted: whether an address is one of our own proxies.

    Returns:
        An address; that of the last proxy where what it says is none.
    """
    if not trusted(peer):
        return peer
    found = peer
    for hop in reversed(_chain(raw)[-MOST_HOPS:]):
        address = _address(hop)
        if address is None:
            return found
        found = address
        if not trusted(address):
            return found
    return found


def network_of(address: str) -> str:
    """Return what counts as one sender: an IPv4 address, or the /64 of an IPv6 address, which one customer has whole.

    Anything else is returned as it is.
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))


def _chain(raw: Iterable[tuple[bytes, bytes]]) -> Sequence[str]:
    """Return the addresses as they were written, the nearest last."""
    fields = [(name.lower(), value) for name, value in raw]
    listed = [value for name, value in fields if name == b"x-forwarded-for"]
    if listed:
        return [part.strip() for part in b",".join(listed).decode("latin-1").split(",") if part.strip()]
    said = [value for name, value in fields if name == b"forwarded"]
    found: list[str] = []
    for part in b",".join(said).decode("latin-1").split(","):
        named = _FOR.search(part)
        if named is not None:
            found.append(named[1] if named[1] is not None else named[2])
        elif part.strip():
            found.append("")  # a proxy that says nothing of whom it serves: nothing before it counts
    return found


def _address(text: str) -> str | None:
    """Read an address, which may have a port behind it; None for anything else (`unknown`, `_hidden`)."""
    host = text
    if text.startswith("["):
        host = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        host = text.partition(":")[0]
    try:
        parsed = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(parsed)
