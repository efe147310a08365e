"""Who sends a request, and which priority class it may have. Keys are hashed at once and are kept nowhere."""

import secrets
from collections.abc import Mapping
from hashlib import blake2b, sha256
from ipaddress import IPv4Network, IPv6Network

from aiohttp import web

from proxy.forwarding import Forwarding
from proxy.modes import trusts
from proxy.settings import Settings
from proxy.wire.forwarded import network_of
from proxy.wire.values import as_int

OTHER = "other"
"""The tenant that all share who come after the last that is told apart."""
ANONYMOUS = "none"
"""The tenant of requests that carry neither key nor header."""
PRIORITY_HEADER = "X-Vllm-Priority"
_DIGEST_BYTES = 4
_DIGITS_AT_MOST = 20


class Tenancy:
    """Names tenants and classes as the settings in force say.

    Args:
        settings: the whole configuration.
        owners: tenants of keys beside those of the configuration, by SHA-256 of the key in hexadecimal.
    """

    def __init__(self, settings: Settings, owners: Mapping[str, str] | None = None) -> None:
        self._random = secrets.token_bytes(32)
        self._told_apart: set[str] = set()
        self._salt = b""
        self.configure(settings, owners)

    def __repr__(self) -> str:
        return f"<Tenancy by {self._by}, {len(self._names)} named, {len(self._told_apart)} told apart>"

    def configure(self, settings: Settings, owners: Mapping[str, str] | None = None) -> None:
        """Take new settings, and owners of keys; hashes stay what they are unless the salt changes."""
        chosen = settings.tenants
        self._by = chosen.by
        self._header = chosen.header
        self._names = frozenset(one.name for one in chosen.named)
        self._of_key = {**(owners or {}), **{digest: one.name for one in chosen.named for digest in one.keys}}
        self._forwarding = Forwarding(settings.trusted_proxies)
        self._most = chosen.told_apart
        salt = self._random if chosen.salt is None else chosen.salt.get_secret_value().encode()
        key = blake2b(salt, digest_size=32).digest()
        if key != self._salt or len(self._told_apart) > self._most:
            self._told_apart.clear()  # those labels come no more, or are more than may be: they keep no place
        self._salt = key
        self._trusted: tuple[IPv4Network | IPv6Network, ...] = settings.trusted_networks
        self._priority = settings.priority
        self._may_ask = frozenset(settings.priority.tenants)

    def tenant(self, request: web.BaseRequest) -> str | None:
        """Return the label of the tenant of a request; None while nobody is told apart.

        A name of the configuration; `t-` and eight hexadecimal digits; `other` beyond the number that is told apart; or
        `none` for requests that say nothing. So there are never more labels than the configuration allows.
        """
        if self._by == "off":
            return None
        if self._by == "address":
            address = self._forwarding.client(request)
            return self._hashed("a", network_of(address)) if address else ANONYMOUS
        if self._by == "header":
            values = request.headers.getall(self._header, ())
            value = values[0].strip() if len(values) == 1 else ""  # of two, one may be the client's own
            if value and trusts(self._trusted, request.remote):
                return value if value in self._names else self._hashed("h", value)
        key = api_key(request)
        if not key:
            return ANONYMOUS
        if self._of_key:
            name = self._of_key.get(sha256(_bytes(key)).hexdigest())
            if name is not None:
                return name
        return self._hashed("k", key)

    def priority(self, request: web.BaseRequest, tenant: str | None, field: object) -> int:
        """Return the priority class of a request, 0 where it may not ask for one.

        Args:
            request: its header `X-Vllm-Priority` counts before the field, as a gateway sets it.
            tenant: who sends it.
            field: `priority` of its body.
        """
        chosen = self._priority
        if chosen.allowed == "off":
            return 0
        value = _whole(request.headers.get(PRIORITY_HEADER))
        if value is None:
            value = as_int(field)
        asks = chosen.allowed == "anyone" or tenant in self._may_ask or trusts(self._trusted, request.remote)
        return chosen.class_of(value) if asks else 0

    def _hashed(self, kind: str, value: str) -> str:
        digest = blake2b(_bytes(kind + value), key=self._salt, digest_size=_DIGEST_BYTES).hexdigest()
        label = f"t-{digest}"
        if label in self._told_apart:
            return label
        if len(self._told_apart) >= self._most:
            return OTHER
        self._told_apart.add(label)
        return label


def api_key(request: web.BaseRequest) -> str:
    """Return the key that a request carries, "" when it has none: that of `Authorization: Bearer`, else `x-api-key`."""
    scheme, _, value = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    return request.headers.get("x-api-key", "").strip()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _whole(text: str | None) -> int | None:
    """Read a whole number; None for anything else."""
    if text is None or len(text) > _DIGITS_AT_MOST:
        return None
    digits = text.strip()
    if not digits.removeprefix("-").isascii() or not digits.removeprefix("-").isdecimal():
        return None
    return int(digits)
