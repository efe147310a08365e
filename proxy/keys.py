"""API keys: read from a file or a variable, kept as digests alone, compared in constant time.

A key is never kept, shown or logged; a sentence about a bad line names the line and not what stands there. What is kept
is its SHA-256: a key has enough chance in it that a digest cannot be turned round, and no salt is needed.
"""

import hmac
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from aiohttp import web

from proxy.answers import EndedError, bad_request
from proxy.policy.outcome import Outcome, Reason
from proxy.settings import ConfigurationError
from proxy.settings.senders import RESERVED
from proxy.tenancy import api_key

SHORTEST = 16
"""Characters of a key: below that it could be guessed."""
LARGEST_FILE = 16 * 2**20
_DIGEST = re.compile(r"sha256:([0-9a-fA-F]{64})")
_KEY = re.compile(r"[!-~]+")
_TENANT = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_BUCKET_BYTES = 4


@dataclass(frozen=True, slots=True)
class Known:
    """One key that may be used."""

    digest: bytes
    """SHA-256 of the key."""
    tenant: str | None = None
    """Whose it is, where that was written beside it."""


class Keyring:
    """Keys that may be used.

    Args:
        known: the keys; a digest that comes twice counts once.
    """

    def __init__(self, known: Iterable[Known]) -> None:
        self._buckets: dict[bytes, list[Known]] = {}
        self._known = {one.digest: one for one in known}
        for one in self._known.values():
            self._buckets.setdefault(one.digest[:_BUCKET_BYTES], []).append(one)

    def __repr__(self) -> str:
        return f"<Keyring of {len(self)} keys>"

    def __len__(self) -> int:
        return len(self._known)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keyring) and self._known == other._known

    __hash__ = None  # type: ignore[assignment]

    def find(self, key: str) -> Known | None:
        """Return what is known of a key, None when it is none of these.

        The first bytes of its digest find the few that it may be; which of them it is takes the same time whether the
        rest agrees or not.
        """
        digest = sha256(key.encode("utf-8", "surrogateescape")).digest()
        for one in self._buckets.get(digest[:_BUCKET_BYTES], ()):
            if hmac.compare_digest(one.digest, digest):
                return one
        return None

    @property
    def tenants(self) -> dict[str, str]:
        """Return the tenant of each key that has one, by hexadecimal digest."""
        return {one.digest.hex(): one.tenant for one in self._known.values() if one.tenant is not None}


def admit(keyring: Keyring, request: web.BaseRequest) -> None:
    """Let a request with a key pass.

    Raises:
        EndedError: 401 in the dialect of its endpoint, before its body is read; 400 when it holds two keys.
    """
    if len(request.headers.getall("x-api-key", ())) > 1:
        raise bad_request("there is more than one x-api-key header; send one", close=True)
    key = api_key(request)
    if key and keyring.find(key) is not None:
        return
    why = "this API key is not known here" if key else "an API key is needed"
    ended = EndedError(
        Outcome.INVALID,
        401,
        "invalid_api_key",
        f"{why}; send one as Authorization: Bearer KEY, or as x-api-key",
        Reason.UNAUTHORIZED,
    )
    ended.headers = ((b"WWW-Authenticate", b"Bearer"),)
    raise ended


def read_keyring(name: str, file: Path | None, variable: str | None, environ: Mapping[str, str]) -> Keyring | None:
    """Read keys from a file, a variable, or both.

    Args:
        name: what is read, as a key of the configuration without `_file` and `_env`: `auth.keys`.
        file: where keys are.
        variable: name of the variable where keys are.
        environ: the variables.

    Returns:
        The keys; None when neither is given.

    Raises:
        ConfigurationError: one of them cannot be read, holds none, or holds something else; a sentence for each line.
    """
    if file is None and variable is None:
        return None
    known: list[Known] = []
    problems: list[str] = []
    if file is not None:
        _parse(read_secret(f"{name}_file", file), str(file), known, problems)
    if variable is not None:
        text = _variable(f"{name}_env", variable, environ).replace(",", "\n")
        _parse(text, f"the variable {variable}", known, problems)
    if problems:
        raise ConfigurationError(tuple(problems))
    if not known:
        place = file if file is not None else f"the variable {variable}"
        raise ConfigurationError((f"{name}: {place} holds no key, so nobody could get in; write one per line",))
    return Keyring(known)


def read_key(name: str, file: Path | None, variable: str | None, environ: Mapping[str, str]) -> str | None:
    """Read one key that lanewise itself sends.

    Args:
        name: what is read, as a key of the configuration without `_file` and `_env`.
        file: its first line that is neither empty nor a comment is the key.
        variable: name of the variable that holds it, instead.
        environ: the variables.

    Returns:
        The key; None when neither is given.

    Raises:
        ConfigurationError: it cannot be read, or is none that a header can hold.
    """
    if file is not None:
        text, place = read_secret(f"{name}_file", file), str(file)
    elif variable is not None:
        text, place = _variable(f"{name}_env", variable, environ), f"the variable {variable}"
    else:
        return None
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if not lines:
        raise ConfigurationError((f"{name}: {place} holds no key; write it as the first line",))
    if not _KEY.fullmatch(lines[0]):
        raise ConfigurationError((f"{name}: {place} holds no key: it has a blank or a character that is not ASCII",))
    return lines[0]


def plain_key(name: str, file: Path | None, variable: str | None, environ: Mapping[str, str]) -> str | None:
    """Read the first key of a keyring that stands there itself, for whoever has to send one.

    Args:
        name: see `read_keyring`; so are the others.
        file: where keys are.
        variable: name of the variable where keys are.
        environ: the variables.

    Returns:
        The key; None when there are digests alone, or nothing.

    Raises:
        ConfigurationError: file or variable cannot be read.
    """
    texts = [] if file is None else [read_secret(f"{name}_file", file)]
    if variable is not None:
        texts.append(_variable(f"{name}_env", variable, environ).replace(",", "\n"))
    lines = (_without_comment(line).split() for text in texts for line in text.splitlines())
    return next((fields[0] for fields in lines if fields and not fields[0].startswith("sha256:")), None)


def read_secret(name: str, file: Path) -> str:
    """Read a file that not everybody may read.

    Args:
        name: the key of the configuration that names it.
        file: the file.

    Raises:
        ConfigurationError: it is missing, no file, too large, no text, or everybody on this machine may read it.
    """
    check_private(name, file)
    try:
        if file.stat().st_size > LARGEST_FILE:
            raise ConfigurationError((f"{name}: {file} is larger than {LARGEST_FILE // 2**20} MiB",))
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError((f"{name}: {file} is not UTF-8 text (byte {error.start})",)) from None
    except OSError as error:
        raise ConfigurationError((f"{name}: {file} cannot be read: {error.strerror}",)) from None


def check_private(name: str, file: Path) -> None:
    """Refuse a file with a secret that everybody on the machine may read or write.

    Raises:
        ConfigurationError: so it is, or there is no such file.
    """
    try:
        mode = file.stat().st_mode
    except OSError as error:
        raise ConfigurationError((f"{name}: {file} cannot be read: {error.strerror}",)) from None
    if not stat.S_ISREG(mode):
        raise ConfigurationError((f"{name}: {file} is no file",))
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        what = "read" if mode & stat.S_IROTH else "change"
        raise ConfigurationError(
            (f"{name}: everybody on this machine may {what} {file} (mode {mode & 0o777:03o}): chmod o-rwx {file}",)
        )


def _variable(name: str, variable: str, environ: Mapping[str, str]) -> str:
    value = environ.get(variable)
    if value is None:
        raise ConfigurationError((f"{name}: the environment variable {variable} is not set",))
    return value


def _parse(text: str, place: str, known: list[Known], problems: list[str]) -> None:
    """Read keys, one per line: the key or its digest, and behind it the tenant."""
    tenants = {one.digest: one.tenant for one in known}
    for number, line in enumerate(text.splitlines(), 1):
        fields = _without_comment(line).split()
        if not fields:
            continue
        try:
            one = _one(fields)
        except ValueError as error:
            problems.append(f"{place}:{number}: {error}")
            continue
        if tenants.setdefault(one.digest, one.tenant) != one.tenant:
            problems.append(f"{place}:{number}: this key is there already, for somebody else")
        known.append(one)


def _without_comment(line: str) -> str:
    """Cut a comment off: a `#` at the start or behind a blank; a key may hold one."""
    return re.split(r"(?:^|\s)#", line, maxsplit=1)[0]


def _one(fields: list[str]) -> Known:
    if len(fields) > 2:
        raise ValueError("a line holds a key and, behind it, the name of its tenant; nothing more")
    written, tenant = fields[0], fields[1] if len(fields) > 1 else None
    if written.startswith("sha256:"):
        found = _DIGEST.fullmatch(written)
        if found is None:
            raise ValueError("behind sha256: come 64 hexadecimal digits")
        digest = bytes.fromhex(found[1])
    else:
        if not _KEY.fullmatch(written):
            raise ValueError("a key is of printable ASCII characters")
        if len(written) < SHORTEST:
            raise ValueError(f"a key has at least {SHORTEST} characters; `openssl rand -hex 24` makes a good one")
        digest = sha256(written.encode("ascii")).digest()
    if tenant is not None and (not _TENANT.fullmatch(tenant) or tenant in RESERVED):
        raise ValueError("the name of a tenant is of letters, digits and . _ : -, and neither other nor none")
    return Known(digest, tenant)
