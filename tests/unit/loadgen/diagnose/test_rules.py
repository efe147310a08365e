"""Rules at their edges: runs in which nothing, or hardly anything, came back."""

import pytest

from loadgen.diagnose.facts import facts_of
from loadgen.diagnose.rules import diagnose
from loadgen.summary import Slo


@pytest.fixture
def judged(made):
    def judge(results, baseline=None, **manifest):
        sides = [("run", results)] if baseline is None else [("before", baseline), ("run", results)]
        facts = [facts_of(made.folder(name, some, **manifest), Slo()) for name, some in sides]
        return diagnose(facts[-1], facts[0] if baseline is not None else None)

    return judge


def layers(diagnosis):
    return [str(one.layer) for one in diagnosis.findings]


def test_a_run_in_which_everything_was_rejected_is_a_matter_of_the_queue(judged, made):
    found = judged([made.failed(at) for at in range(20)])
    assert layers(found) == ["queue"]
    assert found.to_json()["layer"] == "queue"


def test_a_run_without_a_request_is_invalid(judged):
    assert judged([]).invalid == "the run holds no request"


def test_clients_that_left_are_no_failure_of_the_model(judged, made):
    assert layers(judged([made.failed(at, "cancelled", reason="patience") for at in range(20)])) == []


def test_a_few_errors_are_no_adaptation_problem(judged, made):
    results = [*(made.failed(at, "error", head=at + 0.1) for at in range(4)), *(made.ok(at) for at in range(4, 20))]
    assert "adaptation" not in layers(judged(results))


def test_the_slowest_answers_without_engine_metrics_are_no_guess(judged, made):
    """Nothing tells queue, prefill and decode apart: it is said what would."""
    found = judged([made.ok(at, ttft=9.0, tpot=0.5) for at in range(20)])
    assert layers(found) == []
    assert any("--engine-metrics" in one for one in found.unknown)


def test_answers_that_changed_against_the_baseline_are_told_beside_the_layers(judged, made):
    before = [made.ok(at) for at in range(40)]
    after = [made.ok(at, finish="stop") for at in range(40)]
    assert any("finish reason stop" in one for one in judged(after, before).answers)


def test_a_wrong_canary_is_told(judged, made):
    canaries = {
        "before": [{"name": "c", "text": "a", "wrong": None}],
        "after": [{"name": "c", "text": "", "wrong": "x"}],
    }
    assert "right before the run and wrong after" in judged([made.ok(0)], canaries=canaries).answers[0]
