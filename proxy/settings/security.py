"""`auth` and `tls`: who may send and who may look, and what lanewise shows of itself on an encrypted connection.

Settings name files and variables; what is in them never becomes part of a configuration, so it is in no hash, no
history and nothing that is printed.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from proxy.settings.problem import Problem
from proxy.settings.sections import Section

if TYPE_CHECKING:
    from proxy.settings.model import Settings

_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]{0,127}$"

OBVIOUS = frozenset(
    {
        *("auth.keys_file", "auth.keys_env", "auth.admin_key_file", "auth.admin_key_env"),
        *("tls.certificate", "tls.key", "tls.client_ca"),
    }
)
"""Keys that nobody has to give a reason for."""


class Auth(Section):
    """API keys: those that clients need, and the one of the admin listener. docs/security.md explains them.

    A file with keys may be read by its owner and group alone. It is read at the start and with each reload.
    """

    keys_file: Path | None = Field(
        default=None,
        description="File of the API keys that clients may use: one per line, or its SHA-256 as `sha256:...`; behind "
        "it, if wanted, the tenant that it belongs to; `#` begins a comment. Clients send a key as `Authorization: "
        "Bearer` or `x-api-key`; anything else is answered 401. Default: lanewise checks no keys.",
    )
    keys_env: str | None = Field(
        default=None,
        pattern=_VARIABLE,
        description="Name of an environment variable with such keys, as lines or with commas between them. Beside a "
        "file, the keys of both count.",
    )
    admin_key_file: Path | None = Field(
        default=None,
        description="File with the key of the admin listener, in the same form. Then all of it but `/livez` and "
        "`/readyz` wants the key, as `Authorization: Bearer` or as the password of a browser, whatever the user name. "
        "Default: whoever can connect may read.",
    )
    admin_key_env: str | None = Field(
        default=None,
        pattern=_VARIABLE,
        description="Name of an environment variable with the key of the admin listener.",
    )

    @property
    def guards_clients(self) -> bool:
        """Whether clients need a key."""
        return self.keys_file is not None or self.keys_env is not None

    @property
    def guards_admin(self) -> bool:
        """Whether the admin listener wants a key."""
        return self.admin_key_file is not None or self.admin_key_env is not None


class Tls(Section):
    """Encrypted connections of clients: HTTP/1.1 over TLS 1.2 or 1.3. Off without a certificate.

    A reload reads the files again: connections made from then on get what they hold, those that are open stay.
    """

    certificate: Path | None = Field(
        default=None, description="PEM file of the certificate of `listen`, and of those between it and the root."
    )
    key: Path | None = Field(
        default=None,
        description="PEM file of its private key, without a passphrase; may be read by its owner and group alone. "
        "Default: it is in the file of the certificate.",
    )
    client_ca: Path | None = Field(
        default=None,
        description="PEM file of authorities whose clients alone may connect: each needs a certificate of theirs. "
        "Default: clients need none.",
    )


def reads_files(settings: "Settings") -> bool:
    """Return whether a configuration names anything that has to be read before it can be used."""
    auth, backends = settings.auth, settings.backends
    return (
        auth.guards_clients
        or auth.guards_admin
        or settings.tls.certificate is not None
        or any(one.api_key_file or one.api_key_env or one.url.startswith("https:") for one in backends)
    )


def security_problems(settings: "Settings") -> Iterator[Problem]:
    """Yield what cannot work."""
    tls = settings.tls
    for key in ("key", "client_ca"):
        if getattr(tls, key) is not None and tls.certificate is None:
            yield Problem(f"tls.{key}", "there is no tls.certificate, so nothing is encrypted; name it, too")
    for index, backend in enumerate(settings.backends):
        own, encrypted = f"backends[{index}]", backend.url.startswith("https:")
        if backend.ca_file is not None and not encrypted:
            yield Problem(f"{own}.ca_file", f"{backend.url} is not encrypted; write https://", f"{own}.url")
        if backend.insecure and not encrypted:
            yield Problem(f"{own}.insecure", f"{backend.url} is not encrypted; write https://", f"{own}.url")
        if backend.ca_file is not None and backend.insecure:
            text = "true, beside a ca_file: either its certificate is checked or it is not"
            yield Problem(f"{own}.insecure", text, f"{own}.ca_file")
        if backend.api_key_file is not None and backend.api_key_env is not None:
            yield Problem(f"{own}.api_key_env", "there is also an api_key_file; one key is enough", own)


def security_warnings(settings: "Settings") -> Iterator[Problem]:
    """Yield what works and is dangerous."""
    admin, listen = settings.admin, settings.listen
    if not admin.is_loopback and not settings.auth.guards_admin:
        yield Problem(
            "admin",
            f"{admin} can be reached from the network and asks for no key: anybody there can read metrics, settings "
            "and what was decided about requests; set auth.admin_key_file, or bind it to 127.0.0.1",
        )
    unencrypted = settings.auth.guards_clients and settings.tls.certificate is None and not listen.is_loopback
    if unencrypted and not settings.trusted_proxies:
        text = (
            f"missing, so keys come to {listen} unencrypted; set it, or name what encrypts in front of it under "
            "trusted_proxies"
        )
        yield Problem("tls.certificate", text, "listen")
    for index, backend in enumerate(settings.backends):
        if backend.insecure:
            text = (
                f"true: whatever certificate {backend.label} shows is taken, so whoever is in between can read and "
                "change every prompt and answer; name its authority in ca_file instead"
            )
            yield Problem(f"backends[{index}].insecure", text)
