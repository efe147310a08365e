"""Where an answer's body ends: exact framing per read, with as little copying as the job allows. Pure.

Each framing takes the bytes of one read and gives a pair back: `wire`, the bytes to pass on with the framing they came
with, and `payload`, the body bytes inside them. A framing never passes on a byte whose place it does not know: what may
be part of a size line, of the line end behind a chunk, or of the trailers is held back until the rest has come. So
`interject` can always continue the stream correctly. Nor does it pass on the last chunk: whoever relays writes
`LAST_CHUNK` once the answer has proved to be whole.
"""

import re
from typing import Protocol

_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[^\x00-\x08\x0a-\x1f\x7f]*)?\r\n")
"""A chunk's size, and extensions, which nobody uses and which may hold no control characters."""
_LONGEST_LINE = 256
"""Bytes of a size line; uvicorn writes at most ten."""
_LONGEST_TRAILER = 16 * 1024
LAST_CHUNK = b"0\r\n\r\n"


class BadFramingError(ValueError):
    """The body does not follow its own framing."""


class Framing(Protocol):
    """Finds the end of one body."""

    done: bool
    """The body is complete."""
    excess: bytes
    """Bytes behind the end: there is no such thing, so the connection cannot be used again."""

    @property
    def between_chunks(self) -> bool:
        """Whether the next byte begins a chunk; a whole one may then go by without `feed`."""
        ...

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Take one read.

        Returns:
            `wire`, what to pass on as it came, and `payload`, the body bytes in it.

        Raises:
            BadFramingError: a size line that is none, a chunk that does not end where it said.
        """
        ...

    def complete_at_close(self) -> bool:
        """Whether a connection that closes now has delivered the whole body."""
        ...

    def interject(self, payload: bytes) -> bytes:
        """Bytes that put `payload` next into the stream, whatever was passed on before. The stream stays unfinished."""
        ...


def chunk(payload: bytes) -> bytes:
    """Return one chunk that carries `payload`, which is not empty."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


class ChunkedFraming:
    """`Transfer-Encoding: chunked`. Constant work per read when one chunk is one read, as uvicorn sends them.

    Trailers are dropped.
    """

    __slots__ = ("_held", "_missing", "_tail", "done", "excess")

    def __init__(self) -> None:
        self._held = b""
        """Bytes not passed on yet: part of a size line, of the end of a chunk, or of the trailers."""
        self._missing = 0
        """Payload bytes of the current chunk still to come."""
        self._tail = False
        """The line end of the current chunk is still to come."""
        self.done = False
        self.excess = b""

    @property
    def between_chunks(self) -> bool:
        """See `Framing`."""
        return not (self._held or self._missing or self._tail or self.done)

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """See `Framing`."""
        if self._held:
            data = self._held + data
            self._held = b""
        elif not self._tail:
            line = _SIZE_LINE.match(data)
            if line is not None:
                start = line.end()
                end = len(data) - 2
                size = int(line[1], 16)
                if size and start + size == end and data.endswith(b"\r\n"):
                    return data, data[start:end]
        return self._walk(data)

    def _walk(self, data: bytes) -> tuple[bytes, bytes]:
        """Any number of chunks, cut anywhere."""
        at, slices = 0, []
        while at < len(data):
            if self._missing:
                piece = data[at : at + self._missing]
                slices.append(piece)
                at += len(piece)
                self._missing -= len(piece)
            elif self._tail:
                if data.startswith(b"\r\n", at):
                    self._tail = False
                    at += 2
                elif data[at:] == b"\r":
                    break
                else:
                    raise BadFramingError("a chunk does not end where its size says")
            elif (line := _SIZE_LINE.match(data, at)) is None:
                self._check_part_of_a_line(data, at)
                break
            elif (size := int(line[1], 16)) == 0:
                return self._last(data, at, line.end(), slices)
            else:
                at, self._missing, self._tail = line.end(), size, True
        self._held = data[at:]
        return data[:at], b"".join(slices)

    @staticmethod
    def _check_part_of_a_line(data: bytes, at: int) -> None:
        if len(data) - at > _LONGEST_LINE or data.find(b"\n", at) >= 0:
            raise BadFramingError("the size of a chunk is no number")

    def _last(self, data: bytes, at: int, behind: int, slices: list[bytes]) -> tuple[bytes, bytes]:
        """The chunk of size 0 begins at `at`; its line ends at `behind`."""
        end = behind + 2 if data.startswith(b"\r\n", behind) else data.find(b"\r\n\r\n", behind) + 4
        if end < behind + 2:
            if len(data) - at > _LONGEST_TRAILER:
                raise BadFramingError("trailers without end")
            self._held = data[at:]
            return data[:at], b"".join(slices)
        self.done, self.excess = True, data[end:]
        return data[:at], b"".join(slices)

    def complete_at_close(self) -> bool:
        """See `Framing`: only the last chunk ends a chunked body."""
        return self.done

    def interject(self, payload: bytes) -> bytes:
        """See `Framing`: fills the chunk that is open, and goes on in one of its own."""
        room, self._missing = self._missing, max(0, self._missing - len(payload))
        if room > len(payload):
            return payload
        rest = payload[room:]
        closing = b"\r\n" if self._tail else b""
        self._tail = False
        return payload[:room] + closing + (chunk(rest) if rest else b"")


class LengthFraming:
    """`Content-Length`, and answers without a body (length 0)."""

    __slots__ = ("_missing", "done", "excess")

    between_chunks = False

    def __init__(self, length: int) -> None:
        self._missing = length
        self.done = length == 0
        self.excess = b""

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """See `Framing`."""
        if len(data) > self._missing:
            data, self.excess = data[: self._missing], data[self._missing :]
        self._missing -= len(data)
        self.done = self._missing == 0
        return data, data

    def complete_at_close(self) -> bool:
        """See `Framing`."""
        return self.done

    def interject(self, payload: bytes) -> bytes:
        """See `Framing`: only what still fits, less one byte, so that the length is never reached."""
        return payload[: max(0, self._missing - 1)]


class CloseFraming:
    """Neither a length nor chunks: the body ends with the connection."""

    __slots__ = ("done", "excess")

    between_chunks = False

    def __init__(self) -> None:
        self.done = False
        self.excess = b""

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """See `Framing`."""
        return data, data

    def complete_at_close(self) -> bool:
        """See `Framing`."""
        return True

    def interject(self, payload: bytes) -> bytes:
        """See `Framing`."""
        return payload
