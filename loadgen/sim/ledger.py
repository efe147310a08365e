"""What the simulated engine answered, one line for each generation request: the other end of a relay's byte count.

A line is `{"request_id", "status", "bytes", "crc32", "whole"}`. `request_id` is what the request's `X-Request-Id` said.
`bytes` and `crc32` are of the body without its framing, so that they compare with `body_bytes` and `body_crc32` in the
load generator's `shots.jsonl` and with `response_bytes` in lanewise's trace. `whole` is false when the client left.
"""

from pathlib import Path
from zlib import crc32

import orjson

from loadgen.failure import UsageError


class Meter:
    """Counts the body of one answer as it is written."""

    __slots__ = ("crc32", "size", "whole")

    def __init__(self) -> None:
        self.size = 0
        self.crc32 = 0
        self.whole = False

    def add(self, data: bytes) -> None:
        """Take body bytes that go out now."""
        self.size += len(data)
        self.crc32 = crc32(data, self.crc32)


class Ledger:
    """Writer of the lines, each as its request ends.

    Args:
        path: the file; what is in it is replaced.

    Raises:
        UsageError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise UsageError(f"--ledger {path}: cannot be written: {error.strerror}") from None

    def write(self, request_id: str, status: int, meter: Meter) -> None:
        """Add the line of one request that has ended."""
        line = {
            "request_id": request_id,
            "status": status,
            "bytes": meter.size,
            "crc32": meter.crc32,
            "whole": meter.whole,
        }
        self._file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def close(self) -> None:
        """Close the file."""
        self._file.close()
