"""TLS: what the listener shows its clients, and what backends have to show. HTTP/1.1 alone is spoken over either."""

import ssl
from datetime import UTC, datetime
from pathlib import Path

from proxy.keys import check_private
from proxy.settings import Backend, ConfigurationError
from proxy.settings.security import Tls

_ALPN = ["http/1.1"]
_SEQUENCE, _UTC_TIME, _GENERAL_TIME = 0x30, 0x17, 0x18


class UnreadableError(ValueError):
    """What came is no certificate."""


def listener_context(tls: Tls) -> ssl.SSLContext | None:
    """Return what new connections of clients are made with; None: they are not encrypted.

    Raises:
        ConfigurationError: a file cannot be read, holds something else, or certificate and key do not belong together.
    """
    if tls.certificate is None:
        return None
    check_private("tls.key" if tls.key is not None else "tls.certificate", tls.key or tls.certificate)
    _readable("tls.certificate", tls.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_ALPN)
    try:
        context.load_cert_chain(tls.certificate, tls.key, password=_no_passphrase)
    except (OSError, ValueError) as error:
        raise ConfigurationError((_bad_pair(tls, error),)) from None
    if tls.client_ca is not None:
        _trust(context, "tls.client_ca", tls.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def backend_context(backend: Backend, key: str) -> ssl.SSLContext | None:
    """Return what connections to a backend are made with; None: they are not encrypted.

    Args:
        backend: the backend.
        key: what the configuration calls it, such as `backends[0]`.

    Raises:
        ConfigurationError: the file of its authorities cannot be read or holds none.
    """
    if not backend.url.startswith("https:"):
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_ALPN)
    if backend.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif backend.ca_file is not None:
        _trust(context, f"{key}.ca_file", backend.ca_file)
    else:
        context.load_default_certs()
    return context


def ends_at(certificate: Path) -> float | None:
    """Return when the first certificate of a PEM file ends, as Unix seconds; None when that cannot be read."""
    try:
        text = certificate.read_text(encoding="ascii", errors="replace")
        begin = text.index(ssl.PEM_HEADER)
        end = text.index(ssl.PEM_FOOTER, begin) + len(ssl.PEM_FOOTER)
        return not_after(ssl.PEM_cert_to_DER_cert(text[begin:end]))
    except (OSError, ValueError):
        return None


def not_after(certificate: bytes) -> float:
    """Return when a certificate ends, as Unix seconds.

    Args:
        certificate: in DER (RFC 5280, 4.1): a sequence of [version], serial number, algorithm, issuer, validity and
            more, inside another one.

    Raises:
        UnreadableError: it is none.
    """
    _, whole, _ = _element(certificate)
    _, body, _ = _element(whole)
    tag, _, rest = _element(body)
    for _ in range(2 if tag != 0xA0 else 3):  # 0xA0: a version stands in front
        _, _, rest = _element(rest)
    tag, validity, _ = _element(rest)
    if tag != _SEQUENCE:
        raise UnreadableError("no validity where it should be")
    _, _, rest = _element(validity)
    tag, value, _ = _element(rest)
    return _time(tag, value)


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    """Split the first element off: its tag, its content, and what follows."""
    if len(data) < 2:
        raise UnreadableError("cut short")
    tag, size, start = data[0], data[1], 2
    if size & 0x80:
        start += size & 0x7F
        size = int.from_bytes(data[2:start], "big")
    if start + size > len(data):
        raise UnreadableError("cut short")
    return tag, data[start : start + size], data[start + size :]


def _time(tag: int, value: bytes) -> float:
    form = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERAL_TIME: "%Y%m%d%H%M%SZ"}.get(tag)
    if form is None:
        raise UnreadableError("no time where it should be")
    try:
        found = datetime.strptime(value.decode("ascii"), form).replace(tzinfo=UTC)
    except ValueError as error:
        raise UnreadableError(str(error)) from None
    if tag == _UTC_TIME and found.year >= 2050:  # RFC 5280, 4.1.2.5.1: two digits from 50 up are of the last century
        found = found.replace(year=found.year - 100)
    return found.timestamp()


def _trust(context: ssl.SSLContext, key: str, file: Path) -> None:
    _readable(key, file)
    try:
        context.load_verify_locations(file)
    except (OSError, ValueError):
        raise ConfigurationError((f"{key}: {file} holds no certificate in PEM form",)) from None


def _readable(key: str, file: Path) -> None:
    try:
        with file.open("rb"):
            return
    except OSError as error:
        raise ConfigurationError((f"{key}: {file} cannot be read: {error.strerror}",)) from None


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase")


def _bad_pair(tls: Tls, error: Exception) -> str:
    reason = getattr(error, "reason", None) or ""
    if "passphrase" in str(error):
        return f"tls.key: {tls.key or tls.certificate} has a passphrase, which nobody could type; take it out"
    if reason == "KEY_VALUES_MISMATCH":
        return f"tls.key: {tls.key or tls.certificate} is not the key of {tls.certificate}"
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        return f"tls.key: {tls.key or tls.certificate} cannot be read: {error.strerror}"
    what = "a certificate" if tls.key is not None else "a certificate and its key"
    return f"tls.certificate: {tls.certificate} does not hold {what} in PEM form, or tls.key does not hold a key"
