"""What a configuration names and does not hold: keys, certificates, authorities. Read as a whole, and again on reload.

Everything is read before anything of it is used: a file that is missing or broken changes nothing.
"""

import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import ParamSpec, TypeVar

from prometheus_client.metrics_core import Metric

from proxy.keys import Keyring, read_key, read_keyring
from proxy.metrics.series import gauge
from proxy.settings import ConfigurationError, Settings
from proxy.tls import backend_context, ends_at, listener_context
from proxy.upstream.access import Access

_Arguments = ParamSpec("_Arguments")
_Read = TypeVar("_Read")

SOON_S = 14 * 86_400.0
"""A certificate that ends within this time is worth a warning."""


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """What was read. Its text form shows none of it."""

    clients: Keyring | None = None
    """Keys that clients may use; None: they need none."""
    admin: Keyring | None = None
    """Keys of the admin listener; None: it wants none."""
    listener: ssl.SSLContext | None = None
    """For connections of clients; None: they are not encrypted."""
    backends: Mapping[str, Access] = field(default_factory=dict)
    """How to come in at each backend that asks for anything, by name."""
    prints: Mapping[str, bytes] = field(default_factory=dict)
    """Digest of what each file held, by key of the configuration: tells whether a reload brings something new."""
    ends: float | None = None
    """When the certificate of the listener ends, Unix seconds."""

    def __repr__(self) -> str:
        return f"<Credentials: {', '.join(sorted(self.prints)) or 'none'}>"

    def renewed(self, before: "Credentials") -> tuple[str, ...]:
        """Return the keys of the configuration whose files hold something else than before."""
        keys = dict.fromkeys((*before.prints, *self.prints))
        return tuple(key for key in keys if self.prints.get(key) != before.prints.get(key))

    def doubts(self, settings: Settings, now: float) -> tuple[str, ...]:
        """Return what is doubtful about them, one sentence each.

        Args:
            settings: where they come from.
            now: Unix seconds.
        """
        found: list[str] = []
        if self.ends is not None and self.ends - now < SOON_S:
            found.append(f"tls.certificate: it {_when(self.ends - now)}, and then clients refuse it; renew it")
        if self.clients is not None and self.clients.tenants and settings.tenants.by == "off":
            found.append("tenants.by: off, so the tenants beside the keys mean nothing; write tenants.by: key")
        return tuple(found)

    def families(self) -> Iterator[Metric]:
        """Yield what a scrape shows of them: how many keys, and when certificates end."""
        yield gauge(
            "api_keys",
            "API keys that may be used, of clients and of the admin listener; no series where none is asked for.",
            ("of",),
            (((of,), len(ring)) for of, ring in (("clients", self.clients), ("admin", self.admin)) if ring is not None),
        )
        yield gauge(
            "tls_certificate_expiry_timestamp_seconds",
            "When the certificate of the listener ends; no series while its connections are not encrypted.",
            (),
            () if self.ends is None else (((), self.ends),),
        )


def read(settings: Settings, environ: Mapping[str, str]) -> Credentials:
    """Read everything that a configuration names.

    Args:
        settings: the configuration.
        environ: the variables of the process.

    Raises:
        ConfigurationError: something cannot be used; a sentence for each.
    """
    auth, tls, problems = settings.auth, settings.tls, list[str]()
    prints = _prints(settings)  # first: what changes while it is read is read again by the next reload
    clients = _attempt(problems, read_keyring, "auth.keys", auth.keys_file, auth.keys_env, environ)
    admin = _attempt(problems, read_keyring, "auth.admin_key", auth.admin_key_file, auth.admin_key_env, environ)
    listener = _attempt(problems, listener_context, tls)
    backends: dict[str, Access] = {}
    for index, one in enumerate(settings.backends):
        own = f"backends[{index}]"
        key = _attempt(problems, read_key, f"{own}.api_key", one.api_key_file, one.api_key_env, environ)
        context = _attempt(problems, backend_context, one, own)
        if key is not None or context is not None:
            backends[one.label] = Access(key, context)
    if problems:
        raise ConfigurationError(tuple(dict.fromkeys(problems)))
    ends = None if tls.certificate is None else ends_at(tls.certificate)
    return Credentials(clients, admin, listener, backends, prints, ends)


def _attempt(
    problems: list[str], reading: Callable[_Arguments, _Read], *args: _Arguments.args, **more: _Arguments.kwargs
) -> _Read | None:
    """Return what a reading gives; None when it cannot be used, which `problems` says then."""
    try:
        return reading(*args, **more)
    except ConfigurationError as error:
        problems += error.sentences
        return None


def _prints(settings: Settings) -> dict[str, bytes]:
    files: dict[str, Path | None] = {
        f"{section}.{key}": value
        for section in ("auth", "tls")
        for key, value in getattr(settings, section)
        if isinstance(value, Path)
    }
    for backend in settings.backends:
        files[f"backends[{backend.label}].ca_file"] = backend.ca_file
        files[f"backends[{backend.label}].api_key_file"] = backend.api_key_file
    return {key: _print(file) for key, file in files.items() if file is not None}


def _print(file: Path) -> bytes:
    """Return the digest of what a file holds; b"" for one that cannot be read, which whoever uses it says in words."""
    try:
        return sha256(file.read_bytes()).digest() if file.is_file() else b""
    except OSError:
        return b""


def _when(seconds: float) -> str:
    return f"ends in {seconds / 86_400:.0f} days" if seconds > 0 else f"ended {-seconds / 86_400:.0f} days ago"
