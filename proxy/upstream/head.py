"""The head of an engine's answer: parsed strictly, because upstream bytes are as untrusted as a client's."""

import re
from dataclasses import dataclass, field
from functools import lru_cache

import httptools

from proxy.upstream.framing import ChunkedFraming, CloseFraming, Framing, LengthFraming

LONGEST_HEAD = 32 * 1024
"""Bytes of status line and headers together."""
LONGEST_FIELD = 16 * 1024
"""Bytes of one header value. uvicorn's own heads are about 150 bytes."""

_END = b"\r\n\r\n"
_BEGIN = b"HTTP/1."
_PRINTABLE = re.compile(rb"[\t\x20-\x7e]*")


class BadHeadError(ValueError):
    """What came is not the head of an HTTP/1 answer."""


@dataclass(slots=True)
class Head:
    """Status and headers of one answer."""

    status: int = 0
    reason: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Names in lower case, values as they came, in order, duplicates kept."""
    keep_alive: bool = False
    """HTTP/1.1, and no `Connection: close`."""
    chunked: bool = False
    length: int | None = None
    """`Content-Length`; None: chunked, or until the connection closes."""
    client_lines: bytes | None = None
    """What the relay made of the fields for its clients; heads are shared (`parse_head`)."""

    def get(self, name: bytes) -> bytes:
        """Return the first value of a header, or b""."""
        for key, value in self.headers:
            if key == name:
                return value
        return b""

    @property
    def bodyless(self) -> bool:
        """Whether no body follows, whatever the headers say."""
        return self.status in {204, 304}

    def framing(self) -> Framing:
        """Return the framing of the body behind this head."""
        if self.bodyless:
            return LengthFraming(0)
        if self.chunked:
            return ChunkedFraming()
        if self.length is not None:
            return LengthFraming(self.length)
        return CloseFraming()

    # What httptools calls while it parses.
    def on_status(self, reason: bytes) -> None:
        """Take the reason phrase (httptools)."""
        self.reason = reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header (httptools)."""
        self.headers.append((name.lower(), value))


def split_head(buffer: bytes) -> int:
    """Return where the head at the start of `buffer` ends, or 0 when more has to come.

    Raises:
        BadHeadError: it can no longer become a head: no HTTP, or too long.
    """
    if not (buffer.startswith(_BEGIN) or _BEGIN.startswith(buffer)):
        raise BadHeadError("the answer is not HTTP/1")
    end = buffer.find(_END)
    if end + 4 > LONGEST_HEAD or (end < 0 and len(buffer) > LONGEST_HEAD):
        raise BadHeadError(f"the head of the answer is longer than {LONGEST_HEAD} bytes")
    return end + 4 if end >= 0 else 0


@lru_cache(maxsize=256)
def parse_head(block: bytes) -> Head:
    """Parse one head, which ends with its empty line.

    Heads of the same bytes are one object, not to be changed: all streams that begin within one second share theirs.

    Raises:
        BadHeadError: not valid, conflicting or ambiguous lengths, a control character, an oversized field, an upgrade.
    """
    head = Head()
    parser = httptools.HttpResponseParser(head)
    try:
        parser.feed_data(block)
    except httptools.HttpParserError as error:
        raise BadHeadError(f"the head of the answer is not valid: {error}") from None
    except httptools.HttpParserUpgrade:
        raise BadHeadError("the answer wants to switch protocols") from None
    head.status = parser.get_status_code()
    head.keep_alive = parser.get_http_version() == "1.1"
    _check(head)
    return head


def _check(head: Head) -> None:
    if not 100 <= head.status <= 599 or head.status == 101:
        raise BadHeadError(f"status {head.status} is not an answer")
    if _PRINTABLE.fullmatch(head.reason) is None:
        raise BadHeadError("a control character in the reason phrase")
    for name, value in head.headers:
        if len(value) > LONGEST_FIELD:
            raise BadHeadError(f"a header of the answer is longer than {LONGEST_FIELD} bytes")
        if name == b"content-length":
            head.length = int(value)
        elif name == b"transfer-encoding":
            if head.chunked or value.lower() != b"chunked":
                raise BadHeadError("a transfer coding other than chunked")
            head.chunked = True
        elif name == b"connection" and b"close" in value.lower():
            head.keep_alive = False
