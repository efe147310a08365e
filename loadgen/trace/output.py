"""Where a trace command writes: a file that appears whole or not at all, or stdout."""

import gzip
import sys
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from loadgen.failure import StopError, UsageError
from loadgen.trace import provenance

STDOUT = Path("-")


class Output:
    """Lines of a new trace file; a context manager.

    They go to `NAME.part` first, which gets its name when all are written. A name that ends in `.gz` is compressed
    (without a time in it, so that equal lines are equal files). `-` is stdout.

    Args:
        path: the file, or `-`.
        force: replace what is there.

    Raises:
        UsageError: the file is there already.
    """

    def __init__(self, path: Path, *, force: bool = False) -> None:
        if path != STDOUT and path.exists() and not force:
            raise UsageError(f"--out {path}: is there already; choose another name, or say --force")
        self.path = path
        self.lines = 0
        self._part = path.with_name(path.name + ".part")
        self._raw: IO[bytes] | None = None
        self._file: Any = None

    @property
    def to_stdout(self) -> bool:
        """Whether the trace itself goes to stdout, so that nothing else may."""
        return self.path == STDOUT

    def __enter__(self) -> Self:
        if self.to_stdout:
            self._file = sys.stdout.buffer
            return self
        try:
            self._raw = self._part.open("wb")
        except OSError as error:
            raise StopError(f"--out {self.path}: cannot be written: {error.strerror}") from None
        self._file = self._raw
        if self.path.suffix == ".gz":
            self._file = gzip.GzipFile("", "wb", 6, self._raw, mtime=0)
        return self

    def write(self, line: str) -> None:
        """Write one request.

        Raises:
            StopError: the disk does not take it.
        """
        self.raw(line.encode("utf-8", "backslashreplace"))
        self.lines += 1

    def raw(self, line: bytes) -> None:
        """Write a line that is no request, or one that is encoded already.

        Raises:
            StopError: the disk does not take it.
        """
        try:
            self._file.write(line + b"\n")
        except BrokenPipeError:
            raise
        except OSError as error:
            raise StopError(f"--out {self.path}: cannot be written: {error.strerror}") from None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._raw is None:
            sys.stdout.flush()
            return
        try:
            if self._file is not self._raw:
                self._file.close()
            self._raw.close()
        except OSError as failed:
            self._part.unlink(missing_ok=True)
            if kind is None:
                raise StopError(f"--out {self.path}: cannot be written: {failed.strerror}") from None
            return
        if kind is None:
            self._part.replace(self.path)
        else:
            self._part.unlink(missing_ok=True)

    def origin(self, step: dict[str, Any]) -> None:
        """Keep beside the file where it comes from."""
        if not self.to_stdout:
            provenance.write(self.path, step)
