"""Error bodies and stream error events of each dialect: those we send, and those engines send."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from proxy.wire.facts import Dialect, Endpoint

_STATUS = {
    "queue_full": 429,
    "queue_timeout": 429,
    "tenant_limit": 429,
    "duplicate": 409,
    "no_backend": 503,
    "draining": 503,
    "too_long": 400,
    "unauthorized": 401,
    "invalid": 400,
    "rejected": 429,
    "expired": 429,
    "backend_error": 502,
    "truncated": 502,
    "backend_timeout": 504,
    "client_gone": 499,  # never sent: for metrics and records alone
}
_OPENAI_TYPE = {429: "rate_limit_error", 503: "service_unavailable"}
_ANTHROPIC_TYPE = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_MESSAGE_CHARS = 1000


@dataclass(frozen=True, slots=True)
class ErrorSeen:
    """An error as an engine worded it, in one shape whatever the form."""

    message: str
    """At most 1000 characters."""
    type: str | None = None
    code: str | None = None
    """A number is given as its digits."""
    param: str | None = None


def status_of(outcome: str, reason: str | None = None) -> int:
    """Return the HTTP status of an ending that the proxy answers itself.

    Args:
        outcome: the word of `Outcome`.
        reason: the word of `Reason`, which decides when given.

    Raises:
        ValueError: for an outcome that is no refusal or failure (`ok`) or is unknown.
    """
    status = _STATUS.get(reason or "") or _STATUS.get(outcome)
    if status is None:
        raise ValueError(f"outcome {outcome!r} (reason {reason!r}) has no status; known are {', '.join(_STATUS)}")
    return status


def error_body(endpoint: Endpoint, status: int, code: str, message: str) -> bytes:
    """Word an error in the dialect of the endpoint.

    Args:
        endpoint: whose dialect; `UTILITY` for paths that are not known.
        status: the HTTP status that goes with it; decides the type.
        code: what happened as one word (`queue_full`); left out in Anthropic's dialect, which has no place for it.
        message: one sentence for people.

    Returns:
        A JSON document.
    """
    return _dump(_error_document(endpoint.dialect, status, code, message))


def stream_error(endpoint: Endpoint, status: int, code: str, message: str) -> bytes:
    r"""Word an error as an event inside a stream whose head was sent already; close uncleanly after it.

    Args:
        endpoint: whose dialect.
        status: what the status would have been.
        code: what happened as one word.
        message: one sentence for people.

    Returns:
        One whole event. A stream that was cut inside an event wants a blank line (`\n\n`) before it.
    """
    document = _error_document(endpoint.dialect, status, code, message)
    if endpoint is Endpoint.RESPONSES:
        # The flat keys are the event's own shape; SDKs raise on the nested object.
        document = {"type": "error", "code": code, "message": message, "param": None, "sequence_number": 0} | document
    named = b"event: error\n" if endpoint in {Endpoint.RESPONSES, Endpoint.MESSAGES} else b""
    return b"%bdata: %b\n\n" % (named, _dump(document))


def retry_headers(status: int, retry_after_s: float | None, spread: float) -> tuple[tuple[str, str], ...]:
    """Return the headers that tell a client whether and when to come back.

    Args:
        status: the status of the answer.
        retry_after_s: when capacity is expected, seconds; None: unknown.
        spread: a random number from 0 to 1; the wait becomes 0.75 to 1.25 times as long, so that the refused do not
            all return in one instant.

    Returns:
        `Retry-After` (whole seconds, 1 to 15) and `retry-after-ms` for 429 and 503; `x-should-retry: false` for 400,
        409 and 413, where coming back cannot help; nothing for others.
    """
    if status in {400, 409, 413}:
        return (("x-should-retry", "false"),)
    if status not in {429, 503}:
        return ()
    wanted = 1.0 if retry_after_s is None or math.isnan(retry_after_s) else retry_after_s
    wait_s = min(15.0, max(0.25, wanted) * (0.75 + 0.5 * spread))
    whole_s = max(1, math.ceil(wait_s))
    return (("Retry-After", str(whole_s)), ("retry-after-ms", str(int(wait_s * 1000))))


def parse_error(body: bytes) -> ErrorSeen | None:
    """Read an error body in any form that engines and gateways are known to send.

    Known: the nested object of OpenAI and Anthropic, `error` as a string (401, pause), the flat old form
    `{"object": "error", "message": …}`, and FastAPI's `{"detail": …}`.

    Args:
        body: the whole body of a non-2xx answer.

    Returns:
        What it says; None when it says nothing that can be read. Never raises.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return error_in(document)


def error_in(document: object) -> ErrorSeen | None:
    """Find the error in a decoded document, an answer or a stream event; None when it holds none."""
    if not isinstance(document, dict):
        return None
    nested = document.get("error")
    if isinstance(nested, dict):
        return _seen(nested)
    if isinstance(nested, str) and nested:
        return ErrorSeen(nested[:_MESSAGE_CHARS])
    if document.get("object") == "error" or document.get("type") == "error":
        return _seen(document)
    detail = document.get("detail")
    return ErrorSeen(_text(detail)) if detail and "choices" not in document else None


def _seen(fields: Mapping[str, object]) -> ErrorSeen:
    return ErrorSeen(
        message=_text(fields.get("message") or ""),
        type=_word(fields.get("type")),
        code=_word(fields.get("code")),
        param=_word(fields.get("param")),
    )


def _text(value: object) -> str:
    if isinstance(value, str):
        return value[:_MESSAGE_CHARS]
    try:
        return json.dumps(value)[:_MESSAGE_CHARS]
    except (ValueError, RecursionError):
        return ""


def _word(value: object) -> str | None:
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    try:
        return str(value)[:200]
    except ValueError:  # an integer of thousands of digits
        return None


def _error_document(dialect: Dialect, status: int, code: str, message: str) -> dict[str, object]:
    if dialect is Dialect.ANTHROPIC:
        return {"type": "error", "error": {"type": _anthropic_type(status), "message": message}}
    return {"error": {"message": message, "type": _openai_type(status), "param": None, "code": code}}


def _openai_type(status: int) -> str:
    return _OPENAI_TYPE.get(status) or ("invalid_request_error" if status < 500 else "api_error")


def _anthropic_type(status: int) -> str:
    return _ANTHROPIC_TYPE.get(status) or ("invalid_request_error" if status < 500 else "api_error")


def _dump(document: Mapping[str, object]) -> bytes:
    # A lone surrogate, which UTF-8 cannot hold, becomes the JSON escape it came from.
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")
