import json

import pytest

from loadgen.compare import Verdict, changed_parameters, compare, differing_conditions
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


def test_equal_conditions_are_not_named(made):
    assert differing_conditions(made.manifest, made.manifest | {"salt": "two"}) == []


def test_what_was_set_differently_is_shown():
    a = {"target": "http://a", "parameters": {"cap": "32", "same": "1"}, "engine": {"version": "0.32"}}
    b = {"target": "http://b", "parameters": {"cap": "64", "same": "1", "new": "x"}, "engine": {"version": None}}
    changed = changed_parameters(a, b)
    assert changed == {"target": ("http://a", "http://b"), "cap": ("32", "64"), "new": (None, "x")}


def test_the_document_is_json_with_the_stable_keys(made):
    document = compare(run(made, "a", 0.4), run(made, "b", 0.3, failed=200)).to_json()
    again = json.loads(json.dumps(document, allow_nan=False))
    assert {"verdict", "changed_parameters", "conditions_differ", "metrics"} <= again.keys()
    assert {"name", "unit", "a", "b", "low", "high", "effect", "ratio"} <= again["metrics"][0].keys()
