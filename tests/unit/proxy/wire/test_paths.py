"""The allow-list."""

import pytest

from proxy.wire.facts import Endpoint
from proxy.wire.paths import MethodNotAllowed, Route, route


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [
        ("/v1/chat/completions", Endpoint.CHAT),
        ("/v1/chat/completions/batch", Endpoint.CHAT),
        ("/v1/completions", Endpoint.COMPLETIONS),
        ("/v1/responses", Endpoint.RESPONSES),
        ("/v1/messages", Endpoint.MESSAGES),
    ],
)
def test_generating_paths_are_queued(path: str, endpoint: Endpoint) -> None:
    assert route("POST", path) == Route(endpoint, path, queued=True, generates=True)


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [
        ("/v1/embeddings", Endpoint.EMBEDDINGS),
        ("/v2/embed", Endpoint.POOLING),
        ("/pooling", Endpoint.POOLING),
        ("/classify", Endpoint.POOLING),
        ("/score", Endpoint.POOLING),
        ("/v1/score", Endpoint.POOLING),
        ("/rerank", Endpoint.POOLING),
        ("/v1/rerank", Endpoint.POOLING),
        ("/v2/rerank", Endpoint.POOLING),
    ],
)
def test_pooling_paths_are_queued_and_generate_nothing(path: str, endpoint: Endpoint) -> None:
    assert route("POST", path) == Route(endpoint, path, queued=True, generates=False)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/messages/count_tokens"),
        ("POST", "/tokenize"),
        ("POST", "/detokenize"),
        ("GET", "/v1/models"),
        ("GET", "/health"),
        ("GET", "/ping"),
        ("GET", "/version"),
    ],
)
def test_utility_paths_pass_without_a_queue(method: str, path: str) -> None:
    assert route(method, path) == Route(Endpoint.UTILITY, path, queued=False, generates=False)


def test_a_known_path_with_another_method_says_which_method_is_allowed() -> None:
    for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "post", ""):
        assert route(method, "/v1/chat/completions") == MethodNotAllowed(("POST",))
    assert route("HEAD", "/health") == MethodNotAllowed(("GET",))


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/metrics",
        "/docs",
        "/openapi.json",
        "/load",
        "/server_info",
        "/sleep",
        "/wake_up",
        "/is_sleeping",
        "/reset_prefix_cache",
        "/collective_rpc",
        "/start_profile",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/pause",
        "/abort_requests",
        "/update_weights",
        "/scale_elastic_ep",
        "/invocations",
        "/inference/v1/generate",
        "/v1/models/demo",
        "/v1/responses/resp_1",
        "/v1/responses/resp_1/cancel",
        "/v1/audio/transcriptions",
    ],
)
def test_administration_and_everything_unnamed_is_unknown(path: str) -> None:
    assert route("GET", path) is None
    assert route("POST", path) is None


@pytest.mark.parametrize(
    "path",
    [
        "/v1/../metrics",
        "/v1/chat/../completions",
        "//v1/completions",
        "/v1/completions/",
        "/v1/completions?x=1",
        "/v1/%63ompletions",
        "/V1/completions",
        "/v1/completions\x00",
        "http://engine/v1/completions",
    ],
)
def test_a_path_is_never_normalised(path: str) -> None:
    assert route("POST", path) is None
