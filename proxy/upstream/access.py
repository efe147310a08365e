"""How to come in at a backend: the key that it wants, and the certificate that it has to show."""

import ssl
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, repr=False)
class Access:
    """What a connection to a backend needs. Its text form shows no key."""

    key: str | None = None
    """Sent as `Authorization: Bearer`; None: what the client sent goes on."""
    context: ssl.SSLContext | None = None
    """None: not encrypted, or as the system has it."""


def problem_of(error: ssl.SSLError) -> str:
    """Say in words what was wrong with a handshake."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message or error.reason or 'not trusted'}"
    if error.reason in {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"}:
        return "it does not speak TLS"
    return f"the TLS handshake failed: {error.reason or 'it was ended'}"
