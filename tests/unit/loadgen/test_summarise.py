import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.failure import UsageError
from loadgen.journal import RunFolder
from loadgen.summarise import client_limited, quantiles, summarise
from loadgen.summary import Slo


def codes(summary):
    return {caution.code for caution in summary.warnings}


CORNER = {
    "sent": 0.02,
    "first": 0.32,
    "first_content": 0.62,
    "last": 0.82,
    "end": 1.42,
    "tokens": 7,
    "chunks": 5,
    "events": (50_000, 100_000, 150_000, 100_000, 200_000, 100_000, 100_000),
}


@pytest.mark.parametrize(
    ("kinds", "ttft_033", "tpot_033", "gaps_033"),
    [("oerrccc", 0.15, 0.65 / 6, (5, 0.13, 0.2)), ("oeRRccc", 0.15, 0.65 / 6, (3, 0.65 / 3, 0.45))],
)
def test_the_corner_case_stream_gives_its_true_values(made, kinds, ttft_033, tpot_033, gaps_033):
    """Role chunk 50, empty 150, reasoning 300 and 400, answer 600, three tokens 700, last 800; 20 ms late."""
    lane = made.summary([made.ok(0, lag=0.02, kinds=kinds, **CORNER)]).lanes["all"]
    assert lane.ttft.p50 == pytest.approx(0.32)
    assert lane.ttft_send.p50 == pytest.approx(0.3)
    assert lane.ttfot.p50 == pytest.approx(0.62)
    assert lane.tpot.p50 == pytest.approx(0.5 / 6)
    assert (lane.icl.n, lane.icl.mean, lane.icl.max) == (4, pytest.approx(0.125), pytest.approx(0.2))
    assert lane.itl.n == 0
    assert lane.e2e.p50 == pytest.approx(0.82)
    assert lane.stream_end.p50 == pytest.approx(1.42)
    old, new = lane.as_vllm_032, lane.as_vllm_033
    assert [old[key].p50 for key in ("ttft", "tpot", "e2e")] == pytest.approx([0.05, 0.125, 0.8])
    assert [new[key].p50 for key in ("ttft", "tpot", "e2e")] == pytest.approx([ttft_033, tpot_033, 0.8])
    assert (new["itl"].n, new["itl"].mean, new["itl"].max) == pytest.approx(gaps_033)


def test_without_usage_the_chunks_are_counted_and_it_is_said(made):
    one = made.ok(0, kinds="oerrccc", **CORNER | {"tokens": 5, "tokens_from": "chunks"})
    summary = made.summary([one])
    assert summary.lanes["all"].tpot.p50 == pytest.approx(0.125)
    assert summary.lanes["all"].token_sources == {"usage": 0, "chunks": 1}
    assert "chunks" in codes(summary)


def test_itl_is_the_gaps_when_every_chunk_is_one_token(made):
    lane = made.summary([made.ok(0)]).lanes["all"]
    assert (lane.itl.n, lane.itl.p50) == (10, pytest.approx(0.02))


def test_usage_on_every_chunk_spreads_a_gap_over_its_tokens(made):
    one = made.ok(0, tokens=5, chunks=3, events=(500_000, 90_000, 10_000), counts=(1, 4, 5))
    itl = made.summary([one]).lanes["all"].itl
    assert (itl.n, itl.max, itl.p50) == (4, pytest.approx(0.03), pytest.approx(0.03))


def test_one_token_has_no_tpot_and_can_be_good(made):
    lane = made.summary([made.ok(0, tokens=1)]).lanes["all"]
    assert lane.tpot.n == 0
    assert lane.good == 1


def test_refusing_more_never_looks_better(made):
    served = [made.ok(n, ttft=0.1) for n in range(60)]
    refused = [made.failed(n) for n in range(60, 100)]
    lane = made.summary(served + refused).lanes["short"]
    assert lane.ttft.p99 == pytest.approx(0.1)
    assert lane.ttft_all.p50 == pytest.approx(0.1)
    assert math.isinf(lane.ttft_all.p90)
    assert lane.goodput == 0.6
    assert (lane.outcomes["ok"], lane.outcomes["rejected"], lane.reject.n) == (60, 40, 40)
    assert lane.reject.p50 == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("lane", "ttft", "tpot", "is_good"),
    [
        ("short", 0.99, 0.02, 1),
        ("short", 1.01, 0.02, 0),
        ("long", 4.99, 0.02, 1),
        ("long", 5.01, 0.02, 0),
        ("short", 0.5, 0.11, 0),
    ],
)
def test_good_is_every_slo_of_its_lane(made, lane, ttft, tpot, is_good):
    assert made.summary([made.ok(0, ttft, tpot=tpot, lane=lane)]).lanes["all"].good == is_good


def test_other_slos_can_be_asked(made):
    assert made.summary([made.ok(0, 0.5)], Slo(ttft_short_s=0.4)).lanes["all"].good == 0


def test_lanes_add_up_to_all(made):
    results = [made.ok(0), made.ok(1, lane="long"), made.failed(2, "timeout", "long")]
    lanes = made.summary(results).lanes
    assert [lanes[name].sent for name in ("short", "long", "all")] == [1, 2, 3]
    assert math.isnan(made.summary([made.ok(0)]).lanes["long"].goodput)


def test_the_steady_window_and_the_drain_are_kept_apart(made):
    results = [made.ok(n, ttft=0.1) for n in range(11)]
    results[-1] = made.ok(10, ttft=4.0)
    summary = made.summary(results)
    assert summary.window_s == 10
    assert summary.drain_s == pytest.approx(4.21)
    assert summary.completed_rate == 1.0
    assert summary.output_token_rate == 11.0


def test_a_late_generator_is_client_limited(made):
    late = [made.ok(n, ttft=0.05, lag=0.006) for n in range(100)]
    summary = made.summary(late)
    assert summary.client_limited
    assert "client_limited" in codes(summary)
    assert not made.summary([made.ok(n, ttft=0.2, lag=0.006) for n in range(100)]).client_limited


def test_a_slow_connection_is_not_the_generators_lateness(made):
    slow_network = [made.ok(n, lag=0.08, started=float(n)) for n in range(50)]
    assert made.summary(slow_network).client_limited is False


@pytest.mark.parametrize(
    ("lag", "ttft", "loop", "limited"),
    [(0.004, 0.01, 0.0, False), (0.02, 0.5, 0.0, False), (0.03, 0.5, 0.0, True), (0.0, 0.5, 0.006, True)],
)
def test_the_rule_of_client_limited(lag, ttft, loop, limited):
    assert (client_limited(np.full(100, lag), ttft, loop) is not None) is limited


def test_lag_is_wall_clock_time_even_when_time_was_compressed(made):
    summary = made.summary([made.ok(n, ttft=0.5, lag=0.04) for n in range(50)], speed=10.0)
    assert summary.lag.p50 == pytest.approx(0.004)
    assert not summary.client_limited
    assert {"speed", "coarse_speed"} <= codes(summary)


@pytest.mark.parametrize(
    ("manifest", "code"),
    [
        ({"complete": False}, "incomplete"),
        ({"plan": {"coarse_clock_s": 3.0}}, "quantised_trace"),
        ({"plan": {"bad_lines": {"skipped": 2}}}, "bad_lines"),
        ({"plan": {"traces": [{"assumed_outputs": 1}]}}, "assumed_outputs"),
        ({"prefix_cache": {"hits": 500.0, "queries": 1000.0}}, "warm_cache"),
    ],
)
def test_what_a_reader_has_to_know_is_said(made, manifest, code):
    results = [made.ok(n) for n in range(600)]
    assert code not in codes(made.summary(results))
    assert code in codes(made.summary(results[:10], **manifest))


def test_hits_that_the_plan_explains_are_not_a_warm_cache(made):
    results = [made.ok(n) for n in range(10)]
    plan = {"shared_prefix_tokens": 500}
    assert "warm_cache" not in codes(made.summary(results, plan=plan, prefix_cache={"hits": 500.0}))


def test_few_samples_are_said_for_each_lane(made):
    few = made.summary([made.ok(n) for n in range(600)] + [made.ok(600, lane="long")])
    messages = [caution.message for caution in few.warnings if caution.code == "few_samples"]
    assert messages == ["long: p99 of 1 requests has 0 samples beyond it; read it as rough"]


def test_wrong_lengths_are_said(made):
    results = [made.ok(n, usage_prompt=150, tokens=11) for n in range(20)]
    assert "prompt_length" in codes(made.summary(results))
    assert "output_length" not in codes(made.summary(results))


def test_an_interrupted_run_without_any_send_is_summarised(made):
    summary = made.summary([made.failed(n, "cancelled", started=None, sent=None, end=None) for n in range(3)])
    assert (summary.lanes["all"].sent, summary.lanes["all"].unsent) == (0, 3)
    assert summary.lanes["all"].ttft.n == 0
    assert summary.to_json()["lanes"]["all"]["ttft"]["p50"] is None


def test_an_empty_journal_is_summarised(made):
    assert made.summary([]).lanes["all"].sent == 0


def test_json_writes_infinite_as_a_word(made):
    document = made.summary([made.failed(0)]).to_json()
    assert document["lanes"]["all"]["ttft_all"]["p50"] == "inf"


def test_a_folder_is_read_from_disk(made, tmp_path):
    assert summarise(made.folder("a", [made.ok(1), made.ok(0)])).lanes["all"].sent == 2
    with pytest.raises(UsageError):
        summarise(RunFolder(tmp_path / "nothing"))


@given(st.lists(st.floats(0, 1e6) | st.just(math.inf), min_size=1, max_size=300))
def test_a_quantile_is_a_sample_that_its_share_does_not_exceed(values):
    found = quantiles(np.array(values))
    for share, value in ((0.5, found.p50), (0.9, found.p90), (0.99, found.p99)):
        assert value in values
        assert sum(one <= value for one in values) >= share * len(values) - 1e-9
        assert sum(one < value for one in values) < share * len(values) + 1e-9


def test_what_an_interrupted_run_never_sent_is_in_no_share_and_no_percentile(made):
    sent = [made.ok(n, ttft=0.1) for n in range(10)]
    stopped = [made.failed(10, "cancelled", reason="stopped")]
    unsent = [
        made.failed(n, "cancelled", started=None, sent=None, connected=None, end=None, reason="unsent")
        for n in range(11, 40)
    ]
    summary = made.summary(sent + stopped + unsent, complete=False)
    lane = summary.lanes["all"]
    assert (lane.sent, lane.unsent, lane.outcomes["cancelled"]) == (11, 29, 1)
    assert lane.goodput == pytest.approx(10 / 11)
    assert lane.ttft_all.n == 11
    assert summary.window_s == pytest.approx(10.0)
    assert summary.asked_rate == pytest.approx(1.1)


def test_answers_that_end_in_the_drain_are_counted_apart(made):
    summary = made.summary([made.ok(0), made.ok(1, ttft=30.0), made.ok(2)])
    assert summary.drained == 2
    assert summary.completed_rate == pytest.approx(0.5)


def test_a_certificate_with_a_large_error_is_a_warning(made):
    certificate = {"ttft_error_mean_s": 0.02}
    assert "certificate" in codes(made.summary([made.ok(0, ttft=0.1)], certificate=certificate))
    assert "certificate" not in codes(made.summary([made.ok(0, ttft=0.5)], certificate=certificate))
    assert "certificate" not in codes(made.summary([made.ok(0)], certificate={"skipped": "--no-certify"}))


def test_what_the_endpoint_of_the_certificate_took_is_not_held_against_the_generator(made):
    certificate = {"ttft_error_mean_s": 0.02, "endpoint_read_mean_s": 0.018, "endpoint_busy": 0.5}
    assert "certificate" not in codes(made.summary([made.ok(0, ttft=0.1)], certificate=certificate))
    busy = {"ttft_error_mean_s": 0.02, "endpoint_read_mean_s": 0.001, "endpoint_busy": 0.97}
    (said,) = [
        one for one in made.summary([made.ok(0, ttft=0.1)], certificate=busy).warnings if one.code == "certificate"
    ]
    assert "itself the limit (97% of a core)" in said.message
