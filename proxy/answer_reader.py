"""What an answer that was not streamed says about itself: token counts and why it ended."""

from typing import Any

import orjson

from proxy.wire.facts import Endpoint
from proxy.wire.sse import responses_finish
from proxy.wire.usage import Usage, read_usage

_WHOLE_BYTES = 128 * 1024
"""Up to this length an answer is parsed whole, which takes under 50 µs."""
_USAGE = b'"usage":'
_USAGE_BYTES = 4096


def read_answer(endpoint: Endpoint, body: bytes) -> tuple[Usage | None, str | None]:
    """Read usage and finish reason.

    Args:
        endpoint: whose dialect.
        body: the whole JSON body of a 2xx answer; anything else gives (None, None).

    Returns:
        The engine's counts, and its word for why it stopped. Of a very long answer (embeddings) only the counts, found
        by the bytes around them: inside a JSON string the quotes of the key would be escaped, so text cannot fake it.
    """
    if len(body) > _WHOLE_BYTES:
        return _usage_in(body), None
    document = _parse(body)
    if not isinstance(document, dict):
        return None, None
    return read_usage(document.get("usage")), _finish(endpoint, document)


def _usage_in(body: bytes) -> Usage | None:
    at = body.rfind(_USAGE)
    if at < 0:
        return None
    piece = body[at + len(_USAGE) : at + len(_USAGE) + _USAGE_BYTES].lstrip()
    depth = 0
    for index, byte in enumerate(piece):
        depth += (byte == 0x7B) - (byte == 0x7D)
        if depth == 0:
            return read_usage(_parse(piece[: index + 1]))
    return None


def _finish(endpoint: Endpoint, document: dict[str, Any]) -> str | None:
    if endpoint is Endpoint.MESSAGES:
        return _word(document.get("stop_reason"))
    if endpoint is Endpoint.RESPONSES:
        return responses_finish(document)
    choices = document.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return _word(first.get("finish_reason")) if isinstance(first, dict) else None


def _word(value: object) -> str | None:
    return value[:100] if isinstance(value, str) and value else None


def _parse(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
