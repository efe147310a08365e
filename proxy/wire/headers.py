"""Header rules: what goes to the engine is built from what the client sent, and the other way about."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

Headers = list[tuple[bytes, bytes]]
"""Raw fields in order; a name may occur more than once."""

_HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",  # codespell:ignore te
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    }
)
_KEPT_ALIVE: Final = frozenset({b"keep-alive", b"close"})
"""What `Connection` says as a rule: that names no field."""
# A client may not use `Connection` to take these away.
_NOT_BY_CONNECTION: Final = frozenset({b"content-length", b"host", b"authorization"})
# Set by us, or never the client's to say.
_REBUILT: Final = frozenset(
    {
        b"host",
        b"content-length",
        b"accept-encoding",
        b"content-encoding",  # the body was inflated
        b"expect",
        b"x-request-id",
        b"x-backend",
        b"x-upstream-url",
        b"x-lanewise-mode",
        b"x-lanewise-explain",
    }
)
_FORWARDING: Final = frozenset(
    {
        b"forwarded",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-port",
        b"x-forwarded-proto",
        b"x-forwarded-server",
        b"x-forwarded-prefix",
        b"x-real-ip",
    }
)
_CREDENTIALS: Final = frozenset({b"authorization", b"x-api-key"})
_NEVER_UPSTREAM: Final = _HOP_BY_HOP | _REBUILT | _FORWARDING
_NEVER_UPSTREAM_BUT_FORWARDING: Final = _HOP_BY_HOP | _REBUILT | {b"x-forwarded-for"}
_NEVER_DOWNSTREAM: Final = _HOP_BY_HOP | {b"content-length"}
_CONTROL: Final = bytes(i for i in range(0x20) if i != 0x09) + b"\x7f"
_REQUEST_ID_BYTES: Final = 256


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end of the client connection."""

    address: str
    """IP address without port."""
    scheme: str = "http"
    host: str = ""
    """The `Host` that the client asked for."""
    trusted: bool = False
    """A reverse proxy of the operator's own: what it says about its client is kept."""


def upstream_headers(
    raw: Iterable[tuple[bytes, bytes]],
    *,
    host: str,
    content_length: int | None = None,
    request_id: str | None = None,
    peer: Peer,
    key: str | None = None,
) -> Headers:
    """Build the request fields for the engine.

    Dropped: hop-by-hop fields and whatever `Connection` names (but never Content-Length, Host, Authorization by that
    way), `Expect`, encodings, routing fields, and values with control or non-ASCII characters. `Accept-Encoding` is
    `identity`, so that streams can be read. All else passes in its order, `Authorization` and trace fields included.

    Args:
        raw: the fields of the client.
        host: the engine's host and port.
        content_length: length of the body that is sent; None: no body.
        request_id: what the engine shall call this attempt; None: it is not said here.
        peer: for the `X-Forwarded-*` fields, which are overwritten unless the peer is trusted.
        key: API key of the engine, which takes the place of the client's; None: the client's goes on.
    """
    raw = list(raw)
    drop = _NEVER_UPSTREAM_BUT_FORWARDING if peer.trusted else _NEVER_UPSTREAM
    if key is not None:
        drop |= _CREDENTIALS
    if named := _named_by_connection(raw):
        drop |= named
    if not _clean(b"".join([value for _, value in raw])):
        raw = [field for field in raw if _clean(field[1])]
    built: Headers = [(b"Host", _ascii(host))]
    built += [field for field in raw if field[0].lower() not in drop]
    built += _forwarded(raw, peer)
    if key is not None:
        built.append((b"Authorization", _ascii(f"Bearer {key}")))
    built.append((b"Accept-Encoding", b"identity"))
    if request_id is not None:
        built.append((b"X-Request-Id", _ascii(request_id)))
    if content_length is not None:
        built.append((b"Content-Length", b"%d" % content_length))
    return built


class UpstreamFields:
    """What of a client's fields goes to engines, the same for every request with these fields.

    Args:
        raw: the fields of the client.
        peer: who is at the other end of its connection.
    """

    __slots__ = ("_lines", "peer", "raw")

    def __init__(self, raw: tuple[tuple[bytes, bytes], ...], peer: Peer) -> None:
        self.raw = raw
        self.peer = peer
        self._lines: dict[tuple[str, str | None], bytes] = {}

    def lines(self, host: str, key: str | None) -> bytes:
        """Return the lines for one engine, but for request id and length; made once.

        Args:
            host: the engine's host and port.
            key: its API key; None: the client's goes on.
        """
        known = self._lines.get((host, key))
        if known is None:
            fields = upstream_headers(self.raw, host=host, peer=self.peer, key=key)
            known = self._lines[host, key] = b"".join([b"%b: %b\r\n" % field for field in fields])
        return known


def client_headers(raw: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Build the response fields for the client.

    Hop-by-hop fields, those that `Connection` names and the framing (`Content-Length`, `Transfer-Encoding`) are left
    out: the relay frames its answer itself. Repeated fields (`Set-Cookie`) stay repeated.

    Args:
        raw: the fields of the engine.
    """
    raw = list(raw)
    drop = _NEVER_DOWNSTREAM
    if named := _named_by_connection(raw):
        drop |= named
    return [(name, value) for name, value in raw if name.lower() not in drop and _no_control(value)]


def header(raw: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """Return the first value of a field, or None; `name` in lower case."""
    for key, value in raw:
        if key.lower() == name:
            return value
    return None


def client_request_id(raw: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the client's `X-Request-Id` when it is fit to be passed on and logged, else None.

    Fit: 1 to 256 printable ASCII characters.
    """
    value = header(raw, b"x-request-id")
    if value is None or not value or len(value) > _REQUEST_ID_BYTES or not _clean(value):
        return None
    return value.decode("ascii")


def attempt_id(request_id: str, attempt: int) -> str:
    """Return the id for one attempt: the client's own the first time, marked after that, so that engine logs join.

    Args:
        request_id: id of the request.
        attempt: 1 for the first.
    """
    return request_id if attempt <= 1 else f"{request_id}-try{attempt}"


def _named_by_connection(raw: Sequence[tuple[bytes, bytes]]) -> frozenset[bytes]:
    named: set[bytes] = set()
    for name, value in raw:
        if name.lower() == b"connection":
            named.update(token.strip().lower() for token in value.split(b","))
    return frozenset(named - _NOT_BY_CONNECTION) if named - _KEPT_ALIVE else frozenset()


def _forwarded(raw: Sequence[tuple[bytes, bytes]], peer: Peer) -> Headers:
    address = _ascii(peer.address)
    if peer.trusted:
        chain = [value for name, value in raw if name.lower() == b"x-forwarded-for"]
        kept: Headers = [(b"X-Forwarded-For", b", ".join([*chain, address]))]
        said = {name.lower() for name, _ in raw}
        if b"x-forwarded-proto" not in said:
            kept.append((b"X-Forwarded-Proto", _ascii(peer.scheme)))
        return kept
    fields = [(b"X-Forwarded-For", address), (b"X-Forwarded-Proto", _ascii(peer.scheme))]
    if peer.host:
        fields.append((b"X-Forwarded-Host", _ascii(peer.host)))
    return fields


def _clean(value: bytes) -> bool:
    return value.isascii() and _no_control(value)


def _no_control(value: bytes) -> bool:
    return len(value.translate(None, _CONTROL)) == len(value)


def _ascii(text: str) -> bytes:
    return text.encode("ascii", "ignore").translate(None, _CONTROL)
