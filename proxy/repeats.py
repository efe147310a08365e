"""Requests that come twice: identical ones in flight, and refused ones that come back too early."""

import time
from hashlib import sha256

from aiohttp import web

from proxy.answers import EndedError
from proxy.exchange import Exchange
from proxy.policy.comebacks import Comebacks
from proxy.policy.duplicates import InFlight
from proxy.policy.limits import Mode
from proxy.policy.outcome import Outcome, Reason
from proxy.settings import Settings
from proxy.tenancy import api_key

RETRY_HEADER = "x-stainless-retry-count"
"""What the SDKs of OpenAI and Anthropic say: which attempt this is, 0 for the first."""
_ENDS_BYTES = 16 * 2**10
"""Of a refused body both ends are read: to recognise it is not worth more."""
_REFUSED = frozenset({429, 503})


class Repeats:
    """The guard against duplicates, and the damping of retries.

    Args:
        settings: the whole configuration.
    """

    def __init__(self, settings: Settings) -> None:
        self._in_flight = InFlight()
        self._comebacks = Comebacks()
        self.configure(settings)

    def __repr__(self) -> str:
        return f"<Repeats {self._in_flight!r}, {self._comebacks!r}>"

    def configure(self, settings: Settings) -> None:
        """Take new settings."""
        self._duplicates = settings.repeats.duplicates
        self._damping = settings.repeats.damping

    def begin(self, request: web.BaseRequest, exchange: Exchange) -> None:
        """Take a request that is about to be offered.

        Raises:
            EndedError: 409, an identical one is queued or runs, and the settings say to reject it; only under enforce.
        """
        if self._duplicates == "off":
            return
        exchange.fingerprint = _fingerprint(request, exchange, exchange.body)
        first = self._in_flight.enter(exchange.fingerprint, exchange.request_id, exchange)
        if first is None:
            return
        rejects = self._duplicates == "reject" and exchange.mode is Mode.ENFORCE
        exchange.duplicate = "rejected" if rejects else "observed"
        if rejects:
            message = (
                f"an identical request with the same key is queued or runs as {first}; wait for its answer, or send a "
                "request that differs"
            )
            raise EndedError(Outcome.REJECTED, 409, Reason.DUPLICATE.value, message, Reason.DUPLICATE)

    def end(self, exchange: Exchange) -> None:
        """Take the end of a request, whatever it was."""
        if exchange.fingerprint is not None:
            self._in_flight.leave(exchange.fingerprint, exchange)

    def damp(self, request: web.BaseRequest, exchange: Exchange, ended: EndedError) -> None:
        """Make the time to come back longer for a request that came back too early."""
        if not self._damping or ended.status not in _REFUSED or ended.retry_after_s is None:
            return
        body = exchange.body
        ends = body if len(body) <= 2 * _ENDS_BYTES else body[:_ENDS_BYTES] + body[-_ENDS_BYTES:]
        fingerprint = _fingerprint(request, exchange, ends, request.remote or "")
        said = request.headers.get(RETRY_HEADER, "")
        retries = int(said) if said.isascii() and said.isdecimal() and len(said) < 4 else 0
        ended.retry_after_s, exchange.damped = self._comebacks.refused(
            time.monotonic(), fingerprint, ended.retry_after_s, retries
        )


def _fingerprint(request: web.BaseRequest, exchange: Exchange, body: bytes, peer: str = "") -> bytes:
    """Return a digest that is the same for the same body to the same path with the same key.

    Args:
        request: names path and key.
        exchange: knows the tenant.
        body: what is compared of it.
        peer: from which address; "": from wherever.
    """
    head = f"{exchange.path}\n{len(exchange.body)}\n{exchange.tenant or ''}\n{peer}\n{api_key(request)}\n"
    digest = sha256(head.encode("utf-8", "surrogateescape"))  # in hardware on most machines: 0.7 ms per MB
    digest.update(body)
    return digest.digest()
