import json

import pytest

from loadgen.compare import Metric, NotComparableError, Verdict, compare, judge
from loadgen.failure import RefusedError


def run(made, name, ttft, *, n=200, wobble=0.05, failed=0, outcome="rejected", **manifest):
    """Every third request is slower, the same ones in every run; the last `failed` do not succeed."""
    results = [made.ok(index, ttft + wobble * (index % 3)) for index in range(n - failed)]
    results += [made.failed(index, outcome) for index in range(n - failed, n)]
    return made.folder(name, results, **manifest)


def metric(comparison, name):
    return next(one for one in comparison.metrics if one.name == name)


def test_a_better_run_is_kept(made):
    comparison = compare(run(made, "a", 0.8), run(made, "b", 0.4))
    ttft = metric(comparison, "short TTFT p50")
    assert comparison.verdict is Verdict.KEEP
    assert (ttft.effect, ttft.pairs) == ("better", 200)
    assert ttft.low <= ttft.b - ttft.a <= ttft.high < 0


def test_a_latency_that_more_than_doubled_is_rolled_back(made):
    comparison = compare(run(made, "a", 0.2), run(made, "b", 0.6))
    assert comparison.verdict is Verdict.ROLL_BACK
    assert "more than doubled" in comparison.why


def test_a_worse_run_that_did_not_double_is_tuned_on(made):
    comparison = compare(run(made, "a", 0.4), run(made, "b", 0.6))
    assert comparison.verdict is Verdict.KEEP_TUNING
    assert metric(comparison, "all TTFT p50").effect == "worse"


def test_the_same_numbers_are_noise(made):
    comparison = compare(run(made, "a", 0.4), run(made, "b", 0.4))
    assert comparison.verdict is Verdict.KEEP_TUNING
    assert {one.effect for one in comparison.metrics} <= {"noise", ""}


def test_refusing_half_is_no_gain_however_fast_the_rest_is(made):
    comparison = compare(run(made, "a", 0.4), run(made, "b", 0.1, failed=100))
    assert comparison.verdict is Verdict.KEEP_TUNING
    assert "Goodput fell" in comparison.why
    assert metric(comparison, "short goodput").effect == "worse"
    assert metric(comparison, "short rejected").b == 100


def test_broken_answers_are_rolled_back_however_fast_they_are(made):
    comparison = compare(run(made, "a", 0.4), run(made, "b", 0.1, failed=40, outcome="truncated"))
    assert comparison.verdict is Verdict.ROLL_BACK
    assert "abnormal" in comparison.why


def test_too_few_pairs_have_no_interval(made):
    comparison = compare(run(made, "a", 0.4, n=8), run(made, "b", 0.3, n=8))
    assert metric(comparison, "short TTFT p50").low is None
    assert "Too few" in comparison.why


def test_the_interval_of_a_tail_needs_more_pairs_than_that_of_a_median(made):
    comparison = compare(run(made, "a", 0.4), run(made, "b", 0.3))
    assert metric(comparison, "short TTFT p99").low is None
    assert metric(comparison, "short TTFT p50").low is not None


def test_equal_runs_give_equal_intervals_whenever_they_are_compared(made):
    a, b = run(made, "a", 0.4), run(made, "b", 0.37)
    assert compare(a, b).metrics == compare(a, b).metrics


@pytest.mark.parametrize(
    ("manifest", "named"),
    [
        ({"plan": {"hash": "other"}}, "plan"),
        ({"model": "other"}, "model"),
        ({"speed": 2.0}, "speed"),
        ({"host": {"cores": 64}}, "machine"),
        ({"endpoint": "chat"}, "endpoint"),
        ({"salt": "a"}, "same prompts"),
        ({"complete": False}, "run B: the run did not end by itself"),
        ({"loop_lag_p99_s": 0.02}, "run B: client-limited"),
        ({"prefix_cache": {"hits": 15_000.0}}, "run B: the engine's prefix cache"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused_by_name(made, manifest, named):
    a, b = run(made, "a", 0.4), run(made, "b", 0.3, **manifest)
    with pytest.raises(RefusedError, match=named) as refused:
        compare(a, b)
    assert refused.value.code == 4
    forced = compare(a, b, force=True)
    assert any(named in condition for condition in forced.conditions_differ)


def test_the_document_is_json_with_the_stable_keys(made):
    document = compare(run(made, "a", 0.4), run(made, "b", 0.3, failed=200)).to_json()
    again = json.loads(json.dumps(document, allow_nan=False))
    assert {"verdict", "changed_parameters", "conditions_differ", "metrics"} <= again.keys()
    assert {"name", "unit", "a", "b", "low", "high", "effect", "ratio"} <= again["metrics"][0].keys()


def test_more_than_one_changed_parameter_is_refused_unless_forced(made):
    a = run(made, "a", 0.4, parameters={"cap": "32", "budget": "1k"})
    b = run(made, "b", 0.3, parameters={"cap": "64", "budget": "2k"})
    with pytest.raises(NotComparableError, match=r"2 parameters changed \(budget: 1k → 2k; cap: 32 → 64\)") as refused:
        compare(a, b)
    assert refused.value.code == 4
    assert refused.value.document["verdict"] == "refused"
    assert refused.value.document["changed_parameters"] == {"budget": ["1k", "2k"], "cap": ["32", "64"]}
    assert compare(a, b, force=True).verdict is Verdict.KEEP


def test_two_runs_of_the_same_thing_are_called_that(made):
    comparison = compare(run(made, "a", 0.4), run(made, "b", 0.4))
    assert comparison.difference == "none"
    assert "No difference beyond noise" in comparison.why
    assert "A/A" in comparison.why


def test_a_memory_peak_is_in_the_verdict_and_small_changes_of_it_are_noise(made):
    a, b = run(made, "a", 0.4, peaks={"kv_usage": 0.5}), run(made, "b", 0.4, peaks={"kv_usage": 0.6})
    peak = metric(compare(a, b), "KV peak")
    assert (peak.in_verdict, peak.effect, peak.unit) == (True, "worse", "share")
    close = run(made, "c", 0.4, peaks={"kv_usage": 0.51})
    assert metric(compare(a, close), "KV peak").effect == "noise"


def test_what_is_below_the_clocks_resolution_is_noise(made):
    comparison = compare(run(made, "a", 0.4), run(made, "b", 0.4004))
    assert metric(comparison, "all TTFT p50").effect == "noise"


def test_what_cannot_be_told_is_said(made):
    comparison = compare(run(made, "a", 0.4), run(made, "b", 0.3))
    assert any("all TTFT p99 (200 pairs)" in note for note in comparison.notes)


def ttft(name, a, b, half):
    middle = b - a
    return Metric(name, "s", a, b, middle - half, middle + half, 100, in_verdict=True)


def test_a_lane_that_doubled_while_goodput_rose_is_for_the_operator_to_decide():
    rose = Metric("all goodput", "share", 0.3, 0.8, 0.45, 0.55, 100, lower_is_better=False, in_verdict=True)
    fell = Metric("all goodput", "share", 0.8, 0.8, -0.1, 0.1, 100, lower_is_better=False, in_verdict=True)
    doubled = ttft("long TTFT p50", 1.0, 2.5, 0.1)
    verdict, why = judge([doubled, rose])
    assert verdict is Verdict.KEEP_TUNING
    assert "while goodput rose" in why
    assert judge([doubled, fell])[0] is Verdict.ROLL_BACK
    assert judge([ttft("all TTFT p50", 1.0, 1.96, 0.1), rose])[0] is Verdict.ROLL_BACK


def test_better_in_one_lane_and_worse_in_another_is_kept_with_its_price():
    verdict, why = judge([ttft("short TTFT p99", 1.0, 0.5, 0.1), ttft("long TTFT p50", 1.0, 1.5, 0.1)])
    assert verdict is Verdict.KEEP
    assert why == "Better: short TTFT p99. Worse: long TTFT p50."
