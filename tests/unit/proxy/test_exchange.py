"""The record of one request: what it derives, and what becomes of it in a trace."""

import pytest

from proxy.exchange import Exchange, UpstreamError, to_record
from proxy.policy.limits import Mode
from proxy.policy.outcome import Outcome, Phase, Reason
from proxy.policy.shadow import Decision, Would
from proxy.policy.ticket import Ticket
from proxy.wire.facts import Endpoint, Facts, OutputFields
from proxy.wire.usage import Usage


@pytest.fixture
def served():
    return Exchange(
        request_id="r1",
        arrived=100.0,
        arrived_wall=1_800_000_000.0,
        endpoint=Endpoint.CHAT,
        request_bytes=50,
        facts=Facts(Endpoint.CHAT, model="m", stream=True, n=2, output=OutputFields(cap=30)),
        lane="short",
        prompt_tokens_estimated=11,
        output_cap_sent=20,
        ticket=Ticket(1, 0, 11, 40),
        offered=100.25,
        granted=101.0,
        backend="b",
        attempts=1,
        sent=101.125,
        first_token=102.0,
        last_token=104.0,
        token_events=4,
        usage=Usage(prompt_tokens=10, completion_tokens=5, cached_tokens=3),
        finish_reason="stop",
        answered=104.0,
        response_bytes=70,
        status=200,
        outcome=Outcome.OK,
        ended=104.5,
    )


def test_durations_count_from_arrival(served):
    assert served.queue_s == 1.0
    assert served.ttft_s == 2.0
    assert served.upstream_ttft_s == 1.0
    assert served.total_s == 4.5


def test_time_per_token_leaves_the_first_token_out(served):
    assert served.tpot_s == 0.5


def test_overhead_is_neither_queue_nor_engine(served):
    assert served.overhead_s == pytest.approx(0.25 + 0.125 + 0.5)


def test_without_usage_the_token_events_count(served):
    served.usage = None
    assert served.output_tokens == 4
    record = to_record(served)
    assert (record.output_tokens, record.output_source) == (4, "events")
    assert record.prompt_tokens is None


def test_a_record_holds_what_happened(served):
    record = to_record(served, config="c", hash_ids=("h",), block_tokens=512)
    assert (record.request_id, record.endpoint, record.model, record.lane) == ("r1", "chat", "m", "short")
    assert (record.outcome, record.reason, record.phase, record.status) == ("ok", None, None, 200)
    assert (record.prompt_tokens, record.cached_tokens, record.output_tokens) == (10, 3, 5)
    assert (record.output_source, record.output_cap, record.output_cap_sent) == ("usage", 30, 20)
    assert (record.sequences, record.stream, record.attempts) == (2, True, 1)
    assert (record.queue_s, record.first_token_s, record.last_token_s, record.end_s) == (1.0, 2.0, 4.0, 4.5)
    assert (record.block_tokens, record.hash_ids, record.config, record.text) == (512, ("h",), "c", None)


def test_a_request_that_never_ran_waited_until_its_end():
    waited = Exchange("r", 10.0, 0.0, offered=10.0, outcome=Outcome.EXPIRED, reason=Reason.QUEUE_TIMEOUT, ended=13.0)
    assert waited.queue_s == 3.0
    assert (waited.ttft_s, waited.tpot_s, waited.overhead_s) == (None, None, None)
    record = to_record(waited)
    assert (record.outcome, record.reason, record.output_tokens, record.output_source) == (
        "expired",
        "queue_timeout",
        None,
        None,
    )


def test_a_request_that_was_not_understood_has_no_queue_time():
    bad = Exchange("r", 10.0, 0.0, outcome=Outcome.INVALID, ended=11.0)
    assert bad.queue_s is None
    assert not bad.streams
    assert to_record(bad).model is None


def test_the_phase_goes_into_the_record():
    gone = Exchange("r", 1.0, 0.0, outcome=Outcome.CLIENT_GONE, phase=Phase.PREFILL, ended=2.0)
    assert to_record(gone).phase == "prefill"


def test_a_record_says_what_would_have_been_done_and_under_which_configuration(served):
    served.mode, served.config = Mode.OBSERVE, "abc"
    served.would = Would(Decision.QUEUE, wait_s=0.5, cap=20, cap_rule="ceiling")
    record = to_record(served, config="other")
    assert (record.mode, record.would, record.would_wait_s, record.would_cap) == ("observe", "queue", 0.5, 20)
    assert record.config == "abc"
    plain = to_record(Exchange("r", 0.0, 0.0), config="other")
    assert (plain.mode, plain.would, plain.would_cap, plain.config) == (None, None, None, "other")


def test_a_record_names_the_tenant_by_its_label_and_a_class_that_is_not_the_normal_one():
    exchange = Exchange("id", 0.0, 0.0)
    assert (to_record(exchange).tenant, to_record(exchange).priority) == (None, None)
    exchange.tenant, exchange.priority = "acme", -1
    assert (to_record(exchange).tenant, to_record(exchange).priority) == ("acme", "high")


def test_what_an_engine_said_is_never_our_own_detail():
    def told(**more):
        return Exchange("id", 1.0, 0.0, detail="SECRET", **more).own_detail

    assert [kind for kind in UpstreamError if "SECRET" in told(upstream_error=kind)] == [UpstreamError.CONNECT]
    assert [kind for kind in UpstreamError if not told(upstream_error=kind)] == []
    assert told(upstream_status=400) == "the engine answered 400"
    assert told() == told(upstream_status=200) == "SECRET"
