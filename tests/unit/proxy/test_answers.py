"""Answers of our own: status, headers and body of the rejection contract."""

import json

import pytest

from proxy import answers
from proxy.exchange import Exchange
from proxy.policy.outcome import Outcome, Reason
from proxy.policy.ticket import Refuse, Ticket
from proxy.wire.facts import Endpoint

TICKET = Ticket(1, 0, 10, 10)


def built(refuse, endpoint=Endpoint.CHAT, depth=7, spread=0.5):
    exchange = Exchange("r", 0.0, 0.0, endpoint=endpoint, lane="short")
    answer = answers.build(exchange, answers.refused(refuse, depth), spread)
    return answer, {name.decode().lower(): value.decode() for name, value in answer.headers}


CONTRACT = [
    (Outcome.REJECTED, Reason.QUEUE_FULL, 429, "rate_limit_error", "rate_limit_error"),
    (Outcome.EXPIRED, Reason.QUEUE_TIMEOUT, 429, "rate_limit_error", "rate_limit_error"),
    (Outcome.REJECTED, Reason.NO_BACKEND, 503, "service_unavailable", "overloaded_error"),
    (Outcome.DRAINING, Reason.DRAINING, 503, "service_unavailable", "overloaded_error"),
]


@pytest.mark.parametrize(("outcome", "reason", "status", "openai", "anthropic"), CONTRACT)
def test_a_refusal_speaks_the_dialect_of_its_endpoint(outcome, reason, status, openai, anthropic):
    refuse = Refuse(TICKET, outcome, reason, 3.0, "why")
    answer, headers = built(refuse)
    assert answer.status == status
    assert json.loads(answer.body)["error"] == {"message": "why", "type": openai, "param": None, "code": reason.value}
    assert headers["content-type"] == "application/json"
    assert int(headers["content-length"]) == len(answer.body)
    messages, _ = built(refuse, Endpoint.MESSAGES)
    assert json.loads(messages.body) == {"type": "error", "error": {"type": anthropic, "message": "why"}}


@pytest.mark.parametrize("spread", [0.0, 0.3, 0.999])
@pytest.mark.parametrize("after", [0.0, 0.4, 3.0, 90.0, 1e9])
def test_the_time_to_come_back_is_a_whole_number_from_1_to_15(after, spread):
    _, headers = built(Refuse(TICKET, Outcome.REJECTED, Reason.QUEUE_FULL, after, ""), spread=spread)
    assert 1 <= int(headers["retry-after"]) <= 15
    assert 0 < int(headers["retry-after-ms"]) <= 15_000
    assert "x-should-retry" not in headers


def test_a_refusal_says_which_layer_and_lane_it_comes_from():
    _, headers = built(Refuse(TICKET, Outcome.REJECTED, Reason.QUEUE_FULL, 1.0, ""))
    assert headers["x-lanewise-reason"] == "queue_full"
    assert headers["x-lanewise-lane"] == "short"
    assert headers["x-lanewise-queue-depth"] == "7"


def test_a_request_that_can_never_fit_is_told_not_to_retry():
    ended = answers.EndedError(Outcome.TOO_LONG, 400, "too_long", "20000 tokens", Reason.TOO_LONG)
    answer = answers.build(Exchange("r", 0.0, 0.0, endpoint=Endpoint.CHAT), ended, 0.5)
    headers = dict(answer.headers)
    assert headers[b"x-should-retry"] == b"false"
    assert b"Retry-After" not in headers
    assert json.loads(answer.body)["error"]["code"] == "too_long"


def test_a_wrong_method_is_told_the_right_one():
    answer = answers.build(Exchange("r", 0.0, 0.0), answers.not_allowed("GET", ("POST",)), 0.5)
    assert answer.status == 405
    assert dict(answer.headers)[b"Allow"] == b"POST"
