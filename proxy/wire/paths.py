"""The allow-list: which (method, path) pairs exist, and the constant path that goes upstream for each."""

from collections.abc import Iterable
from dataclasses import dataclass

from proxy.wire.facts import Endpoint


@dataclass(frozen=True, slots=True)
class Route:
    """One pair of the allow-list."""

    endpoint: Endpoint
    upstream_path: str
    """What the engine is asked for: our constant, never the client's bytes."""
    queued: bool
    """Goes through a lane. False: passes through at once."""
    generates: bool
    """Makes output tokens: may stream, has an output cap."""


@dataclass(frozen=True, slots=True)
class MethodNotAllowed:
    """The path is known, the method is not: 405."""

    allow: tuple[str, ...]
    """For the `Allow` header."""


_GENERATION = (
    ("/v1/chat/completions", Endpoint.CHAT),
    ("/v1/chat/completions/batch", Endpoint.CHAT),
    ("/v1/completions", Endpoint.COMPLETIONS),
    ("/v1/responses", Endpoint.RESPONSES),
    ("/v1/messages", Endpoint.MESSAGES),
)
_POOLING = (
    ("/v1/embeddings", Endpoint.EMBEDDINGS),
    ("/v2/embed", Endpoint.POOLING),
    ("/pooling", Endpoint.POOLING),
    ("/classify", Endpoint.POOLING),
    ("/score", Endpoint.POOLING),
    ("/v1/score", Endpoint.POOLING),
    ("/rerank", Endpoint.POOLING),
    ("/v1/rerank", Endpoint.POOLING),
    ("/v2/rerank", Endpoint.POOLING),
)
_UTILITY_POST = ("/v1/messages/count_tokens", "/tokenize", "/detokenize")
_UTILITY_GET = ("/v1/models", "/health", "/ping", "/version")


def _routes() -> Iterable[tuple[str, Route]]:
    for path, endpoint in _GENERATION:
        yield "POST", Route(endpoint, path, queued=True, generates=True)
    for path, endpoint in _POOLING:
        yield "POST", Route(endpoint, path, queued=True, generates=False)
    for path in _UTILITY_POST:
        yield "POST", Route(Endpoint.UTILITY, path, queued=False, generates=False)
    for path in _UTILITY_GET:
        yield "GET", Route(Endpoint.UTILITY, path, queued=False, generates=False)


# The engine answers HEAD with 405 on every path, so HEAD is in no pair here either.
_BY_PATH: dict[str, dict[str, Route]] = {}
for _method, _route in _routes():
    _BY_PATH.setdefault(_route.upstream_path, {})[_method] = _route


def route(method: str, path: str) -> Route | MethodNotAllowed | None:
    """Look a request up in the allow-list.

    Left out on purpose, beside all engine administration: paths with parameters (`/v1/responses/{id}` lives on one
    engine only; `/v1/models/{id}` is 404 in vLLM), multipart audio, web sockets, `/metrics` and `/docs`.

    Args:
        method: as the client sent it; case matters.
        path: the raw path without its query, exactly as sent: nothing is decoded or normalised, so
            `/v1/../metrics` and `/v1/%63ompletions` are simply unknown.

    Returns:
        The route; `MethodNotAllowed` for a known path with another method (405); None for anything else (404).
    """
    methods = _BY_PATH.get(path)
    if methods is None:
        return None
    return methods.get(method) or MethodNotAllowed(tuple(methods))
