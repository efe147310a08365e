"""The last room: it always runs, never raises and never waits.

Whatever ended a request, its `Exchange` comes here exactly once, and every observer sees it: metrics, recorder, and
what the length estimate learns.
"""

import logging
from collections.abc import Iterable
from typing import Protocol

from proxy.exchange import Exchange

_log = logging.getLogger("lanewise")


class Observer(Protocol):
    """Someone who looks at every finished request: metrics, the recorder, the length estimate.

    `observe` is called once per request, on the event loop, after its ending was set. It takes microseconds, keeps no
    reference to the exchange beyond what it queues, and hands slow work to a thread of its own. What it raises is
    logged here and reaches nobody else.
    """

    def observe(self, exchange: Exchange) -> None:
        """Take note of one finished request."""
        ...


class Account:
    """Hands each finished exchange to every observer."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = tuple(observers)
        self.failures = 0
        """Times an observer raised."""

    def close(self, exchange: Exchange) -> None:
        """Show a finished exchange to every observer; a failing one does not keep it from the others."""
        for observer in self._observers:
            try:
                observer.observe(exchange)
            except Exception:  # noqa: BLE001 - the last room never raises
                self.failures += 1
                _log.exception("%s failed on request %s", type(observer).__name__, exchange.request_id)
