"""Faults planted inside the process under test, each asked for by an environment variable.

Python imports `sitecustomize` by itself when it starts. Nothing here runs in the suite's own process.

| variable | fault |
|---|---|
| `FAULT_CLOCK_JUMP` | SIGUSR2 moves the wall clock by that many seconds |
| `FAULT_BLOCK_LOOP` | SIGUSR1 blocks the main thread, and so the event loop, for that many seconds |
| `FAULT_SLOW_DISK` | fsync and writes by Python code to files named `trace-…` take that many seconds each |
"""

import builtins
import datetime as dt
import io
import os
import signal
import time
from typing import Self

_real_time, _real_time_ns, _real_datetime = time.time, time.time_ns, dt.datetime
_offset = 0.0


def _jump(*_: object) -> None:
    global _offset  # noqa: PLW0603 - a clock has one hand
    _offset += float(os.environ["FAULT_CLOCK_JUMP"])


class _Datetime(dt.datetime):
    """What `datetime.now` is while the wall clock can jump."""

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> dt.datetime:
        return _real_datetime.fromtimestamp(_real_time() + _offset, tz)


def _block(*_: object) -> None:
    time.sleep(float(os.environ["FAULT_BLOCK_LOOP"]))


class _SlowFile:
    """A file whose writes take their time."""

    def __init__(self, inner: io.IOBase, delay_s: float) -> None:
        self._inner = inner
        self._delay_s = delay_s

    def write(self, data: object) -> object:
        time.sleep(self._delay_s)
        return self._inner.write(data)  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._inner.close()


def _slow_open(delay_s: float) -> None:
    real = io.open

    def opened(file: object, *args: object, **kwargs: object) -> object:
        inner = real(file, *args, **kwargs)  # type: ignore[call-overload]
        slow = isinstance(file, str | os.PathLike) and os.path.basename(os.fspath(file)).startswith("trace-")  # noqa: PTH119
        return _SlowFile(inner, delay_s) if slow else inner

    builtins.open = io.open = opened  # type: ignore[assignment]
    real_fsync, real_write = os.fsync, os.write

    def fsync(descriptor: int) -> None:
        time.sleep(delay_s)
        real_fsync(descriptor)

    def write(descriptor: int, data: bytes) -> int:
        if "/trace-" in os.readlink(f"/proc/self/fd/{descriptor}"):  # noqa: PTH115
            time.sleep(delay_s)
        return real_write(descriptor, data)

    os.fsync, os.write = fsync, write


if "FAULT_CLOCK_JUMP" in os.environ:
    time.time = lambda: _real_time() + _offset
    time.time_ns = lambda: _real_time_ns() + int(_offset * 1e9)
    dt.datetime = _Datetime
    signal.signal(signal.SIGUSR2, _jump)
if "FAULT_BLOCK_LOOP" in os.environ:
    signal.signal(signal.SIGUSR1, _block)
if "FAULT_SLOW_DISK" in os.environ:
    _slow_open(float(os.environ["FAULT_SLOW_DISK"]))
