"""Many byte strings in little memory: past a limit they go to an unnamed temporary file, and are read back singly."""

import os
import tempfile
from array import array

IN_MEMORY = 64 << 20
"""Bytes that are kept in memory before the file is begun."""


class Spool:
    """A list of byte strings that only grows. Its file has no name and goes with the process.

    Args:
        in_memory: bytes to keep before a file is begun.
    """

    def __init__(self, in_memory: int = IN_MEMORY) -> None:
        self._in_memory = in_memory
        self._begins: array[int] = array("q", [0])
        self._memory = bytearray()
        self._written = 0
        self._file = -1

    def __len__(self) -> int:
        return len(self._begins) - 1

    @property
    def size(self) -> int:
        """Bytes of all items together."""
        return self._begins[-1]

    def append(self, item: bytes) -> None:
        """Add one item.

        Raises:
            OSError: the disk for temporary files does not take it.
        """
        self._memory += item
        self._begins.append(self._begins[-1] + len(item))
        if len(self._memory) > self._in_memory:
            self._to_file()

    def __getitem__(self, index: int) -> bytes:
        begin, end = self._begins[index], self._begins[index + 1]
        if begin >= self._written:
            return bytes(self._memory[begin - self._written : end - self._written])
        return os.pread(self._file, end - begin, begin)

    def _to_file(self) -> None:
        if self._file < 0:
            with tempfile.TemporaryFile() as opened:
                self._file = os.dup(opened.fileno())
        view = memoryview(self._memory)
        while view:
            done = os.write(self._file, view)
            self._written += done
            view = view[done:]
        view.release()
        self._memory = bytearray()

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)
