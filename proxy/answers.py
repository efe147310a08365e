"""Answers of our own: refusals and errors, in the dialect of the endpoint. The contract is docs/rejections.md."""

from dataclasses import dataclass
from email.utils import formatdate

from proxy.exchange import Exchange
from proxy.policy.outcome import Ending, Outcome, Reason
from proxy.policy.ticket import Refuse
from proxy.wire import errors

Fields = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer that did not come from an engine."""

    status: int
    body: bytes
    headers: Fields


@dataclass(slots=True, eq=False)
class EndedError(Exception):
    """The request ends here, with an answer of ours. Raised in a room, answered by the corridor."""

    outcome: Outcome
    status: int
    code: str
    message: str
    reason: Reason | None = None
    ending: Ending = Ending.IGNORED
    headers: Fields = ()
    retry_after_s: float | None = None
    close: bool = False
    queue_depth: int | None = None


def bad_request(message: str, *, status: int = 400, code: str = "invalid", close: bool = False) -> EndedError:
    """Return the ending of a request that is itself wrong."""
    return EndedError(Outcome.INVALID, status, code, message, Reason.INVALID, close=close)


def not_found(path: str) -> EndedError:
    """Return the ending of a request for a path that is not in the allow-list."""
    return bad_request(f"{path[:200]!r} is not served here", status=404, code="not_found")


def not_allowed(method: str, allow: tuple[str, ...]) -> EndedError:
    """Return the ending of a request with a method that the path does not have."""
    ended = bad_request(f"{method[:20]} is not allowed here; use {', '.join(allow)}", status=405, code="invalid")
    ended.headers = ((b"Allow", ", ".join(allow).encode("ascii")),)
    return ended


def refused(refuse: Refuse, queue_depth: int) -> EndedError:
    """Return the ending of a request that the Dispatcher refused."""
    return EndedError(
        outcome=refuse.outcome,
        status=errors.status_of(refuse.outcome, refuse.reason),
        code=refuse.reason,
        message=refuse.detail,
        reason=refuse.reason,
        retry_after_s=refuse.retry_after_s,
        queue_depth=queue_depth,
    )


def build(exchange: Exchange, ended: EndedError, spread: float) -> Answer:
    """Word an ending as an answer.

    Args:
        exchange: the request.
        ended: how it ends.
        spread: a random number from 0 to 1, for the jitter of the time to come back.
    """
    body = errors.error_body(exchange.endpoint, ended.status, ended.code, ended.message)
    headers = [
        (b"Date", formatdate(usegmt=True).encode("ascii")),
        (b"Content-Type", b"application/json"),
        (b"Content-Length", b"%d" % len(body)),
        *ended.headers,
    ]
    for name, value in errors.retry_headers(ended.status, ended.retry_after_s, spread):
        headers.append((name.encode("ascii"), value.encode("ascii")))
    if ended.reason is not None:
        headers.append((b"x-lanewise-reason", ended.reason.encode("ascii")))
    if exchange.lane is not None:
        headers.append((b"x-lanewise-lane", exchange.lane.encode("ascii")))
    if ended.queue_depth is not None:
        headers.append((b"x-lanewise-queue-depth", b"%d" % ended.queue_depth))
    return Answer(ended.status, body, tuple(headers))
