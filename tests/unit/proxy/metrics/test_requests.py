"""What each kind of ending leaves in the metrics."""

import pytest

from proxy.exchange import Exchange, UpstreamError, Usage
from proxy.metrics.exposition import render_at_once
from proxy.metrics.requests import RequestMetrics
from proxy.policy.outcome import Outcome, Phase, Reason
from proxy.policy.shadow import Decision, Would
from proxy.settings import Settings
from proxy.wire.facts import Endpoint, Facts

SETTINGS = Settings.model_validate({"backends": [{"url": "http://a:1", "name": "npu", "models": ["qwen"]}]})


def exchange(**more):
    values = {
        "endpoint": Endpoint.CHAT,
        "facts": Facts(Endpoint.CHAT, model="qwen", stream=True),
        "lane": "short",
        "prompt_tokens_estimated": 110,
        "offered": 100.001,
        "granted": 100.2,
        "backend": "npu",
        "attempts": 1,
        "sent": 100.201,
        "first_token": 100.5,
        "last_token": 101.3,
        "answered": 101.4,
        "usage": Usage(prompt_tokens=100, cached_tokens=64, completion_tokens=10),
        "finish_reason": "stop",
        "status": 200,
        "outcome": Outcome.OK,
        "ended": 101.401,
        **more,
    }
    return Exchange("id", 100.0, 1.7e9, **values)


def after(*exchanges):
    """Return the samples that are not 0 after these requests, as name{labels} → value."""
    metrics = RequestMetrics(SETTINGS)
    for one in exchanges:
        metrics.observe(one)
    lines = render_at_once(metrics.families()).decode().splitlines()
    samples = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name.removeprefix("lanewise_"): float(value) for name, value in samples.items() if float(value)}


def test_every_series_exists_before_the_first_request():
    lines = render_at_once(RequestMetrics(SETTINGS).families()).decode().splitlines()
    series = [line for line in lines if not line.startswith("#")]
    assert 'lanewise_requests_total{lane="short",model="qwen",outcome="expired"} 0.0' in series
    assert 'lanewise_upstream_errors_total{backend="npu",kind="connect"} 0.0' in series
    assert len(series) == len(set(series))


def test_the_largest_usual_configuration_stays_within_two_thousand_series():
    backends = [{"url": f"http://a:{port}", "models": ["m1", "m2", "m3"]} for port in (1, 2, 3, 4)]
    metrics = RequestMetrics(Settings.model_validate({"backends": backends}))
    lines = render_at_once(metrics.families()).decode().splitlines()
    assert len([line for line in lines if not line.startswith("#")]) < 2000


def test_a_good_stream_is_counted_and_timed():
    seen = after(exchange())
    assert seen['requests_total{lane="short",model="qwen",outcome="ok"}'] == 1
    assert seen['responses_total{code_class="2xx",streaming="1"}'] == 1
    assert seen['slo_good_total{lane="short"}'] == 1
    assert seen['time_to_first_token_seconds_sum{lane="short",model="qwen"}'] == pytest.approx(0.5)
    assert seen['upstream_time_to_first_token_seconds_sum{backend="npu",lane="short"}'] == pytest.approx(0.3)
    assert seen['time_per_output_token_seconds_sum{lane="short",model="qwen"}'] == pytest.approx(0.8 / 9)
    assert seen['request_duration_seconds_sum{lane="short",model="qwen"}'] == pytest.approx(1.401)
    assert seen['queue_wait_seconds_sum{lane="short",outcome="dispatched"}'] == pytest.approx(0.2)
    assert seen["overhead_seconds_sum"] == pytest.approx(0.003)
    assert seen['prompt_tokens_total{lane="short",model="qwen"}'] == 100
    assert seen['cached_prompt_tokens_total{lane="short",model="qwen"}'] == 64
    assert seen['output_tokens_total{lane="short",model="qwen"}'] == 10
    assert seen['prompt_tokens_estimate_ratio_sum{model="qwen"}'] == pytest.approx(1.1)


def test_a_model_that_is_not_configured_counts_as_other():
    seen = after(exchange(facts=Facts(Endpoint.CHAT, model="made-up-by-a-client", stream=True)))
    assert seen['requests_total{lane="short",model="other",outcome="ok"}'] == 1


def test_an_unknown_backend_makes_no_series():
    seen = after(exchange(backend="gone", upstream_error=UpstreamError.RESET))
    assert not [name for name in seen if "gone" in name]


@pytest.mark.parametrize(
    ("more", "good"),
    [
        ({"first_token": 101.0}, True),
        ({"first_token": 101.001}, False),
        ({"last_token": 101.41}, False),
        ({"usage": Usage(completion_tokens=1), "last_token": 100.5}, True),
        ({"outcome": Outcome.TRUNCATED}, False),
    ],
)
def test_goodput_wants_first_token_and_pace_within_the_slo(more, good):
    assert after(exchange(**more)).get('slo_good_total{lane="short"}', 0) == good


@pytest.mark.parametrize(("ended", "good"), [(102.0, True), (102.01, False)])
def test_an_answer_that_is_not_streamed_has_the_sum_of_both_deadlines(ended, good):
    whole = Facts(Endpoint.CHAT, model="qwen", stream=False)
    seen = after(exchange(facts=whole, first_token=None, last_token=None, ended=ended))
    assert seen.get('slo_good_total{lane="short"}', 0) == good
    assert not [name for name in seen if name.startswith(("time_to_first", "time_per_output"))]


def test_a_rejection_has_a_reason_and_no_queue_wait():
    seen = after(exchange(outcome=Outcome.REJECTED, reason=Reason.QUEUE_FULL, status=429, **NEVER_SENT))
    assert seen['rejections_total{lane="short",reason="queue_full"}'] == 1
    assert seen['responses_total{code_class="4xx",streaming="1"}'] == 1
    assert not [name for name in seen if name.startswith("queue_wait")]


NEVER_SENT = {
    "granted": None,
    "backend": None,
    "sent": None,
    "first_token": None,
    "last_token": None,
    "answered": None,
    "usage": None,
    "finish_reason": None,
}


def test_an_expired_request_waited_until_its_deadline():
    seen = after(exchange(outcome=Outcome.EXPIRED, reason=Reason.QUEUE_TIMEOUT, status=429, ended=101.0, **NEVER_SENT))
    assert seen['queue_wait_seconds_sum{lane="short",outcome="timeout"}'] == pytest.approx(1.0)
    assert seen['rejections_total{lane="short",reason="queue_timeout"}'] == 1


@pytest.mark.parametrize("phase", list(Phase))
def test_a_client_that_left_is_counted_by_phase(phase):
    waiting = NEVER_SENT if phase is Phase.QUEUED else {}
    seen = after(exchange(outcome=Outcome.CLIENT_GONE, phase=phase, status=None, **waiting))
    assert seen[f'client_disconnects_total{{lane="short",phase="{phase}"}}'] == 1
    wanted = "disconnected" if phase is Phase.QUEUED else "dispatched"
    assert seen[f'queue_wait_seconds_count{{lane="short",outcome="{wanted}"}}'] == 1
    assert not [name for name in seen if name.startswith("responses_total")]


def test_a_request_without_a_lane_is_counted_and_not_timed():
    seen = after(Exchange("id", 1.0, 1.0, outcome=Outcome.INVALID, reason=Reason.INVALID, status=400, ended=1.1))
    assert seen == {
        'requests_total{lane="none",model="other",outcome="invalid"}': 1,
        'rejections_total{lane="none",reason="invalid"}': 1,
        'responses_total{code_class="4xx",streaming="0"}': 1,
    }


def test_backend_errors_and_retries_are_counted():
    failed = exchange(outcome=Outcome.BACKEND_ERROR, upstream_error=UpstreamError.HTTP_5XX, status=502, retries=1)
    seen = after(failed, exchange(retries=1))
    assert seen['upstream_errors_total{backend="npu",kind="http_5xx"}'] == 1
    assert seen['retries_total{lane="short",result="failed"}'] == 1
    assert seen['retries_total{lane="short",result="ok"}'] == 1


def test_an_answer_cut_by_our_cap_is_told_from_one_that_was_not():
    seen = after(exchange(cap_rule="ceiling", finish_reason="length"), exchange(cap_rule="ceiling"))
    assert seen['output_caps_applied_total{lane="short",rule="ceiling"}'] == 2
    assert seen['output_truncated_total{lane="short"}'] == 1


def test_a_prompt_that_belonged_in_the_other_lane_is_a_misroute():
    seen = after(exchange(usage=Usage(prompt_tokens=2049, completion_tokens=10)))
    assert seen['lane_misroutes_total{from_lane="short",to_lane="long"}'] == 1


def test_an_exchange_without_an_outcome_counts_as_a_backend_error():
    seen = after(exchange(outcome=None))
    assert seen['requests_total{lane="short",model="qwen",outcome="backend_error"}'] == 1


# ---------------------------------------------------------------- what would have been done


def observed(**more):
    return exchange(would=Would(**more))


def test_what_would_have_been_done_is_counted_by_lane_with_the_wait_on_paper():
    seen = after(
        observed(decision=Decision.SEND, wait_s=0.0),
        observed(decision=Decision.QUEUE, wait_s=0.4, cap=100, cap_rule="ceiling"),
        observed(decision=Decision.EXPIRE, wait_s=1.0),
        exchange(lane="long", would=Would(Decision.REJECT, wait_s=0.0)),
        exchange(lane=None, would=Would(Decision.INVALID)),
    )
    would = {name: value for name, value in seen.items() if name.startswith("would_total")}
    assert would == {
        'would_total{decision="send",lane="short"}': 1.0,
        'would_total{decision="queue",lane="short"}': 1.0,
        'would_total{decision="cap",lane="short"}': 1.0,
        'would_total{decision="expire",lane="short"}': 1.0,
        'would_total{decision="reject",lane="long"}': 1.0,
        'would_total{decision="invalid",lane="none"}': 1.0,
    }
    assert seen['would_queue_wait_seconds_count{lane="short"}'] == 2.0
    assert seen['would_queue_wait_seconds_sum{lane="short"}'] == 0.4


def test_an_override_without_a_paper_counts_its_cap_alone():
    seen = after(observed(cap=100, cap_rule="ceiling"))
    assert [name for name in seen if name.startswith("would")] == ['would_total{decision="cap",lane="short"}']


# ---------------------------------------------------------------- another configuration


def test_a_reload_keeps_what_was_counted_and_drops_the_series_of_what_is_gone():
    metrics = RequestMetrics(SETTINGS)
    metrics.observe(exchange())
    new = {"backends": [{"url": "http://b:1", "name": "gpu", "models": ["qwen", "glm"]}]}
    metrics.configure(Settings.model_validate(new))
    metrics.observe(exchange())
    text = render_at_once(metrics.families()).decode()
    assert 'lanewise_requests_total{lane="short",model="qwen",outcome="ok"} 2.0' in text
    assert 'lanewise_requests_total{lane="short",model="glm",outcome="ok"} 0.0' in text
    assert 'backend="npu"' not in text
    assert 'lanewise_upstream_errors_total{backend="gpu",kind="connect"} 0.0' in text


def test_a_reload_changes_what_counts_as_good():
    metrics = RequestMetrics(SETTINGS)
    stricter = {"lanes": {"short": {"ttft_slo": "100ms"}}, "scheduling": {"deadline_margin": "1ms"}}
    metrics.configure(Settings.model_validate({"backends": [{"url": "http://a:1", "name": "npu"}], **stricter}))
    metrics.observe(exchange())
    assert 'lanewise_slo_good_total{lane="short"} 0.0' in render_at_once(metrics.families()).decode()
