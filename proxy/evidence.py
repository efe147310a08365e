"""What the end of a request says about its backend: it works, it fails, it is busy, or nothing at all.

A 4xx says nothing: it is about the request, and so is a 501, for what is not built in. Neither do a client that left
or stopped reading, and our own shutdown.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from proxy.exchange import Exchange, UpstreamError
from proxy.policy.outcome import Outcome
from proxy.upstream.connection import Broken
from proxy.upstream.head import Head
from proxy.wire.errors import ErrorSeen
from proxy.wire.retryafter import retry_after_s

BUSY = frozenset({429, 503})
"""Statuses by which an engine that works says that it has enough to do."""
_NOT_BUILT_IN = 501


def _nobody(*_told: Any) -> None:
    """Tell nobody."""


def _never(_name: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Reports:
    """Who is told what about a backend, by its name."""

    unreachable: Callable[[str], None] = _nobody
    """No connection could be made."""
    served: Callable[[str, float], None] = _nobody
    """A request that began at that moment (monotonic seconds) was served."""
    fault: Callable[[str, float, str], None] = _nobody
    """A request that began then failed, and why, for people."""
    busy: Callable[[str, float | None], None] = _nobody
    """It said that it is busy, and for how many seconds; None: it did not say."""
    on_trial: Callable[[str], bool] = _never
    """Whether its next request shows whether it works again: then the first token is enough."""


def report(reports: Reports, exchange: Exchange, began: float, head: Head | None, error: ErrorSeen | None) -> None:
    """Say what an attempt whose answer came whole tells of its backend.

    Args:
        reports: who is told.
        exchange: the request.
        began: when the attempt began, monotonic seconds.
        head: status and headers of the answer.
        error: what an error frame inside its stream said.
    """
    name, status = exchange.backend or "", 0 if head is None else head.status
    if status in BUSY:
        assert head is not None
        reports.busy(name, retry_after_s(head.get(b"retry-after"), head.get(b"retry-after-ms")))
    elif status >= 500 and status != _NOT_BUILT_IN:
        reports.fault(name, began, f"answered {status}")
    elif exchange.upstream_error is UpstreamError.STREAM_ERROR:
        if not _about_the_request(error):
            reports.fault(name, began, "an error inside a stream")
    elif exchange.outcome is Outcome.OK:
        reports.served(name, began)


def report_broken(reports: Reports, name: str, began: float, broken: Broken) -> None:
    """Say what an attempt whose answer did not come whole tells of its backend."""
    reports.fault(name, began, broken.detail)


def report_answer(reports: Reports, name: str, began: float, status: int, asked_s: float | None) -> None:
    """Say what the answer to a request of our own tells of its backend.

    Args:
        reports: who is told.
        name: the backend.
        began: when it was sent, monotonic seconds.
        status: of the answer.
        asked_s: how long the engine asks to be left alone.
    """
    if status in BUSY:
        reports.busy(name, asked_s)
    elif status >= 500 and status != _NOT_BUILT_IN:
        reports.fault(name, began, f"answered {status}")
    elif status < 300:
        reports.served(name, began)


def _about_the_request(error: ErrorSeen | None) -> bool:
    """Whether an error frame says with a 4xx code that the request was wrong."""
    code = "" if error is None else error.code or ""
    return len(code) == len("400") and code.isascii() and code.isdecimal() and code.startswith("4")
