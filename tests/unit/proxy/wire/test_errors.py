"""Error bodies of each dialect, ours and theirs."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.policy.outcome import Outcome, Reason
from proxy.wire.errors import ErrorSeen, error_body, error_in, parse_error, retry_headers, status_of, stream_error
from proxy.wire.facts import Endpoint
from proxy.wire.sse import StreamScanner

OPENAI = sorted(set(Endpoint) - {Endpoint.MESSAGES})


@pytest.mark.parametrize(
    ("outcome", "reason", "status"),
    [
        (Outcome.REJECTED, Reason.QUEUE_FULL, 429),
        (Outcome.REJECTED, Reason.NO_BACKEND, 503),
        (Outcome.EXPIRED, Reason.QUEUE_TIMEOUT, 429),
        (Outcome.DRAINING, Reason.DRAINING, 503),
        (Outcome.TOO_LONG, Reason.TOO_LONG, 400),
        (Outcome.INVALID, Reason.INVALID, 400),
        (Outcome.BACKEND_ERROR, None, 502),
        (Outcome.BACKEND_TIMEOUT, None, 504),
    ],
)
def test_each_refusal_has_its_status(outcome: Outcome, reason: Reason | None, status: int) -> None:
    assert status_of(outcome, reason) == status


def test_no_ending_is_answered_with_500_or_408_and_success_has_no_error_status() -> None:
    for outcome in set(Outcome) - {Outcome.OK}:
        assert status_of(outcome) not in {200, 408, 500}
    with pytest.raises(ValueError, match="'ok'"):
        status_of(Outcome.OK)


@pytest.mark.parametrize("endpoint", OPENAI)
def test_openai_bodies_have_a_type_and_a_word_for_code(endpoint: Endpoint) -> None:
    def body(status: int, code: str) -> Any:
        return json.loads(error_body(endpoint, status, code, "why"))

    for status, code, kind in (
        (429, "queue_full", "rate_limit_error"),
        (429, "queue_timeout", "rate_limit_error"),
        (503, "no_backend", "service_unavailable"),
        (503, "draining", "service_unavailable"),
        (400, "too_long", "invalid_request_error"),
        (404, "not_found", "invalid_request_error"),
        (413, "body_too_large", "invalid_request_error"),
        (502, "backend_error", "api_error"),
    ):
        assert body(status, code) == {"error": {"message": "why", "type": kind, "param": None, "code": code}}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "api_error"),
    ],
)
def test_anthropic_bodies_choose_their_type_by_status(status: int, kind: str) -> None:
    body = json.loads(error_body(Endpoint.MESSAGES, status, "queue_full", "why"))
    assert body == {"type": "error", "error": {"type": kind, "message": "why"}}


@pytest.mark.parametrize("endpoint", sorted(Endpoint))
def test_an_error_inside_a_stream_is_one_event_that_a_reader_sees(endpoint: Endpoint) -> None:
    event = stream_error(endpoint, 502, "backend_error", "the engine\ncut its\r\nstream")
    named = endpoint in {Endpoint.MESSAGES, Endpoint.RESPONSES}
    assert event.startswith(b"event: error\ndata: {" if named else b'data: {"error":{')
    assert event.endswith(b"}\n\n")
    assert len(event.splitlines()) == (3 if named else 2)
    scanner = StreamScanner(endpoint)
    scanner.feed(event)
    assert scanner.error is not None
    assert scanner.error.message == "the engine\ncut its\r\nstream"
    assert not scanner.complete


def test_the_responses_event_has_both_the_flat_and_the_nested_form() -> None:
    data = json.loads(stream_error(Endpoint.RESPONSES, 502, "backend_error", "why").split(b"data: ")[1])
    assert (data["type"], data["code"], data["message"]) == ("error", "backend_error", "why")
    assert data["error"]["message"] == "why"


def test_a_message_that_utf8_cannot_hold_is_escaped() -> None:
    assert json.loads(error_body(Endpoint.CHAT, 400, "invalid", "\ud800é"))["error"]["message"] == "\ud800é"


@given(st.none() | st.floats(), st.floats(0, 1))
def test_retry_after_is_a_whole_number_from_1_to_15(wait: float | None, spread: float) -> None:
    for status in (429, 503):
        headers = dict(retry_headers(status, wait, spread))
        assert 1 <= int(headers["Retry-After"]) <= 15
        assert 1 <= int(headers["retry-after-ms"]) <= 15_000


def test_retry_after_follows_the_expected_wait_and_is_spread() -> None:
    low, high = (int(dict(retry_headers(429, 8.0, spread))["retry-after-ms"]) for spread in (0.0, 1.0))
    assert (low, high) == (6000, 10_000)
    assert dict(retry_headers(429, 0.3, 0.5)) == {"Retry-After": "1", "retry-after-ms": "300"}


def test_a_retry_that_cannot_help_is_discouraged() -> None:
    assert retry_headers(400, None, 0.5) == (("x-should-retry", "false"),)
    assert retry_headers(502, 1.0, 0.5) == ()


@pytest.mark.parametrize(
    ("body", "seen"),
    [
        (
            b'{"error":{"message":"no","type":"BadRequestError","param":"max_tokens","code":400}}',
            ErrorSeen("no", "BadRequestError", "400", "max_tokens"),
        ),
        (b'{"error":"Unauthorized"}', ErrorSeen("Unauthorized")),
        (
            b'{"object":"error","message":"old","type":"BadRequestError","param":null,"code":400}',
            ErrorSeen("old", "BadRequestError", "400"),
        ),
        (
            b'{"type":"error","error":{"type":"overloaded_error","message":"busy"}}',
            ErrorSeen("busy", "overloaded_error"),
        ),
        (b'{"detail":"Not Found"}', ErrorSeen("Not Found")),
        (b'{"detail":[{"loc":["body"],"msg":"bad"}]}', ErrorSeen('[{"loc": ["body"], "msg": "bad"}]')),
        (b'{"error":{"message":["odd"],"code":true}}', ErrorSeen('["odd"]')),
    ],
)
def test_every_known_form_of_error_is_read(body: bytes, seen: ErrorSeen) -> None:
    assert parse_error(body) == seen


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[]", b"<html>", b'{"choices":[]}', b'{"error":null}', b"\xff", b"[" * 100_000]
)
def test_what_says_nothing_gives_none(body: bytes) -> None:
    assert parse_error(body) is None


def test_a_long_message_is_cut() -> None:
    seen = parse_error(json.dumps({"error": {"message": "x" * 5000, "code": "y" * 5000}}).encode())
    assert seen is not None
    assert len(seen.message) == 1000
    assert len(seen.code or "") == 200


@settings(deadline=None, max_examples=50)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["error", "message", "type", "object"]), inner),
        max_leaves=8,
    )
)
def test_no_document_whatever_makes_the_reader_raise(document: object) -> None:
    seen = error_in(document)
    assert seen is None or len(seen.message) <= 1000


@pytest.mark.shared
def test_every_error_recorded_from_a_real_engine_is_read(shared: Path) -> None:
    index = json.loads((shared / "fixtures" / "INDEX.json").read_text())
    read = 0
    for name, entry in index.items():
        head, _, body = (shared / "fixtures" / f"{name}.resp").read_bytes().partition(b"\r\n\r\n")
        if entry["status"] >= 400 and b"application/json" in head and body:
            seen = parse_error(body)
            assert seen is not None, name
            assert seen.message, name
            assert seen.code in {None, str(entry["status"])}, name
            read += 1
    assert read >= 50
