"""How a request can end. A closed set: the metric label, the log field and the trace field are this word."""

from enum import StrEnum


class Outcome(StrEnum):
    """The ending of a request at the proxy; every request has exactly one."""

    OK = "ok"
    REJECTED = "rejected"
    """Never queued: a hard limit was reached, or nobody can serve. See `Reason`."""
    EXPIRED = "expired"
    """Left the queue by its deadline."""
    CLIENT_GONE = "client_gone"
    """The client left; `Phase` says when."""
    BACKEND_ERROR = "backend_error"
    """The engine failed: connection, protocol, a 5xx, or an error frame inside a stream."""
    BACKEND_TIMEOUT = "backend_timeout"
    TRUNCATED = "truncated"
    """The engine's stream ended without a finish."""
    INVALID = "invalid"
    """The request itself is wrong; found by us or answered 4xx by the engine."""
    TOO_LONG = "too_long"
    """Can never fit: over a prompt ceiling or over an output cap whose action is reject."""
    DRAINING = "draining"
    """Came while the proxy was shutting down."""


class Reason(StrEnum):
    """Why a request was refused; the `code` of the error body and the metric label."""

    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    TENANT_LIMIT = "tenant_limit"
    """Over what this tenant may take, whatever the others do."""
    DUPLICATE = "duplicate"
    """An identical request is queued or runs."""
    NO_BACKEND = "no_backend"
    DRAINING = "draining"
    TOO_LONG = "too_long"
    INVALID = "invalid"
    UNAUTHORIZED = "unauthorized"
    """No API key, or none that is known."""


class Phase(StrEnum):
    """Where a request was when its client left."""

    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"


class Ending(StrEnum):
    """What one ending tells the limiter; exactly one of three, given with `Dispatcher.leave`."""

    MEASURED = "measured"
    """The engine served it: its latencies count."""
    IGNORED = "ignored"
    """It says nothing about the engine: client gone, 4xx."""
    DROPPED = "dropped"
    """The engine failed or refused: timeout, 429, 5xx."""
