"""Child processes of a command: started apart from the terminal, waited for, ended in any case, their logs kept."""

import ctypes
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from loadgen.failure import StopError

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.05
_LAST_LINES = 5
_libc = ctypes.CDLL(None, use_errno=True)


class Child:
    """One process of ours, running a module of this installation. Use it as a context manager: leaving ends it.

    Settings of lanewise in the environment (LANEWISE_*) do not reach it: its command line says everything.
    It has its own process group, so that Ctrl-C reaches the command alone, which then decides; and the kernel kills it
    should the command itself be killed.

    Args:
        name: what messages call it.
        module: what `python -m` runs.
        arguments: its command line.
        log: file that takes what it prints.
        patience_s: how long it may take to end by itself before it is killed.
    """

    def __init__(self, name: str, module: str, arguments: list[str], log: Path, patience_s: float = 5.0) -> None:
        self.name = name
        self.log = log
        self._patience_s = patience_s
        self._file = log.open("wb")
        self._process = subprocess.Popen(  # noqa: S603  (our own interpreter and modules)
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._file,
            stderr=subprocess.STDOUT,
            process_group=0,
            env={name: value for name, value in os.environ.items() if not name.startswith("LANEWISE_")},
            preexec_fn=_die_with_parent,  # noqa: PLW1509  (one prctl, and no thread is started before it)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self._process.pid

    def wait_until(self, ready: Callable[[], bool], seconds: float, what: str) -> None:
        """Poll until `ready` says yes.

        Args:
            ready: asked every 50 ms.
            seconds: how long at most.
            what: what is waited for, for the message.

        Raises:
            StopError: the process ended, or the time is over; with the log's name and last lines.
        """
        deadline = time.monotonic() + seconds
        while not ready():
            self.check()
            if time.monotonic() > deadline:
                raise StopError(f"{self.name} did not {what} within {seconds:g} s. {self._log_tail()}")
            time.sleep(_POLL_S)

    def check(self) -> None:
        """Make sure that it still runs.

        Raises:
            StopError: it ended.
        """
        code = self._process.poll()
        if code is not None:
            raise StopError(f"{self.name} ended with code {code}. {self._log_tail()}")

    def stop(self) -> None:
        """Ask it to end, kill it when it does not, and wait until it is gone."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(self._patience_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._file.close()

    def _log_tail(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
        return f"Its log is {self.log}" + (f" and ends with: {' / '.join(lines)}" if lines else " and is empty.")


def answers(url: str) -> bool:
    """Return whether a GET of `url` is answered with 200."""
    try:
        fetch(url)
    except StopError:
        return False
    return True


def fetch(url: str) -> str:
    """Return the body of a GET.

    Raises:
        StopError: no answer, or another status than 200.
    """
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=5.0)
    try:
        connection.request("GET", parts.path or "/")
        response = connection.getresponse()
        body = response.read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        raise StopError(f"{url} does not answer: {error}") from None
    finally:
        connection.close()
    if response.status != http.HTTPStatus.OK:
        raise StopError(f"{url} answers with status {response.status}")
    return body


def free_address() -> str:
    """Return a loopback HOST:PORT that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def _die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends without having ended it."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
