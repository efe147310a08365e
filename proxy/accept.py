"""The first room: is this a request that we serve, and what is its body?

aiohttp's strict parser has accepted the head already. What it lets through and a proxy must not is refused here
(RFC 9112: a transfer coding other than chunked, one in HTTP/1.0, a path in Host, two keys, upgrades), and the body is
read whole, within a size and a deadline of our own.
"""

import asyncio
from io import BytesIO
from typing import Any

import orjson
from aiohttp import web
from aiohttp.http import HttpVersion10, HttpVersion11
from aiohttp.http_exceptions import BadHttpMessage

from proxy.answers import EndedError, bad_request, not_allowed, not_found
from proxy.listener import ClientConnection
from proxy.policy.outcome import Outcome
from proxy.wire import paths
from proxy.wire.abridge import LONG_STRING, abridged

FRAMING_BYTES = 16 * 1024
FRAMING_TIMES = 16
"""A chunked body may take this many bytes on the wire, and this many times its length: chunks of one byte take six."""
_VERSIONS = (HttpVersion11, HttpVersion10)
_JSON = "application/json"


def check_head(request: web.BaseRequest) -> paths.Route:
    """Look a request up in the allow-list and check what its head says about its body.

    Raises:
        EndedError: 404, 405, 400 or 415; the connection closes after whatever makes its framing doubtful.
    """
    headers = request.headers
    if request.version not in _VERSIONS:
        raise bad_request("only HTTP/1.1 and HTTP/1.0 are spoken here", status=505, close=True)
    websocket = headers.get("Upgrade", "").strip().lower() == "websocket"
    if websocket or request.method in {"CONNECT", "TRACE"}:
        raise bad_request("this is no tunnel: CONNECT, TRACE and upgrades are refused", status=405, close=True)
    if "Transfer-Encoding" in headers:
        _check_coding(request)
    if "/" in headers.get("Host", ""):
        raise bad_request("the Host header holds a path", close=True)
    if len(headers.getall("Authorization", ())) > 1:
        raise bad_request("there is more than one Authorization header; send one", close=True)
    path = _path(request.raw_path)
    route = paths.route(request.method, path)
    if route is None:
        raise not_found(path)
    if isinstance(route, paths.MethodNotAllowed):
        raise not_allowed(request.method, route.allow)
    if request.method == "POST":
        _check_content(request)
    return route


def body_at_hand(request: web.BaseRequest, limit: int) -> bytes | None:
    """Return the whole body where all of it has come with the head, as most do; None: it is to be waited for.

    Raises:
        EndedError: 413 over the limit, 400 for chunks that are mostly framing.
    """
    content = request.content
    if not content.is_eof() or content.exception() is not None:
        return None
    body = content.read_nowait()
    if len(body) > limit:
        raise _too_large(limit)
    if "Transfer-Encoding" in request.headers:
        _check_chunks(request, len(body))
    return body


async def read_body(request: web.BaseRequest, limit: int, deadline_s: float) -> bytes:
    """Wait for the whole body.

    Args:
        request: its head was accepted.
        limit: most bytes.
        deadline_s: how long the whole body may take to arrive.

    Raises:
        EndedError: 413 over the limit (at once when Content-Length says so), 408 past the deadline, 400 for broken
            chunks. A slow body is the client's own doing, so 408 is the honest word; overload never ends in it.
    """
    length = request.content_length
    if length is not None and length > limit:
        raise _too_large(limit)
    _invite(request)
    try:
        async with asyncio.timeout(deadline_s):
            return await _read(request, limit)
    except TimeoutError:
        message = f"the body did not arrive within {deadline_s:g} s"
        raise EndedError(Outcome.INVALID, 408, "invalid", message, close=True) from None
    except (web.RequestPayloadError, BadHttpMessage):
        raise bad_request("the body does not follow its framing", close=True) from None


def parse_object(body: bytes) -> dict[str, Any]:
    """Decode a body that must be one JSON object, strictly: no NaN, no byte order mark, no broken UTF-8.

    It runs on the event loop: the decoder does not release the interpreter, so a thread would stall the loop just as
    long (about 1.4 ms per MB). Therefore the middle of large attachments is not decoded (`proxy.wire.abridge`); the
    engine judges it.

    Raises:
        EndedError: 400, with where it broke.
    """
    try:
        document = orjson.loads(body if len(body) < LONG_STRING else abridged(body))
    except orjson.JSONDecodeError as error:
        raise bad_request(f"the body is no valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise bad_request("the body must be a JSON object")
    return document


def _invite(request: web.BaseRequest) -> None:
    """Ask a client that waits for it to send its body: the head alone would not have been refused."""
    expects = request.headers.get("Expect", "").strip().lower() == "100-continue"
    if expects and request.version == HttpVersion11 and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


async def _read(request: web.BaseRequest, limit: int) -> bytes:
    content, chunked = request.content, request.content_length is None
    whole = BytesIO()  # grows in place: joining the parts of 20 MB would hold the event loop while memory is made
    size = 0
    while part := await content.readany():
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        if chunked:
            _check_chunks(request, size)
        whole.write(part)
    return whole.getvalue()


def _check_chunks(request: web.BaseRequest, size: int) -> None:
    """Refuse chunks that are mostly framing: extensions without end (RFC 9112, 7.1.1), or blanks."""
    connection = request.protocol
    assert isinstance(connection, ClientConnection)
    if connection.body_bytes > FRAMING_BYTES + FRAMING_TIMES * size:
        raise bad_request("the chunks of the body are mostly chunk extensions", close=True)


def _too_large(limit: int) -> EndedError:
    message = f"the body is larger than the {limit} bytes that are accepted"
    return bad_request(message, status=413, code="too_large", close=True)


def _path(target: str) -> str:
    """Return the path of a request target without its query; of the absolute form only the path counts."""
    if not target.startswith("/"):
        scheme, mark, rest = target.partition("://")
        if mark and scheme.lower() in {"http", "https"}:
            target = "/" + rest.partition("/")[2]
    return target.partition("?")[0]


def _check_coding(request: web.BaseRequest) -> None:
    codings = request.headers.getall("Transfer-Encoding")
    if request.version == HttpVersion10 or len(codings) != 1 or codings[0].strip().lower() != "chunked":
        raise bad_request("the only transfer coding is chunked, and only in HTTP/1.1", close=True)


def _check_content(request: web.BaseRequest) -> None:
    coding = request.headers.getall("Content-Encoding", ())
    if any(value.strip().lower() not in {"", "identity"} for value in coding):
        raise bad_request("compressed request bodies are not accepted; send the JSON as it is", status=415)
    kinds = request.headers.getall("Content-Type", ())
    if len(kinds) != 1 or kinds[0].partition(";")[0].strip().lower() != _JSON:
        raise bad_request(f"the body must be {_JSON}; say so in Content-Type")
