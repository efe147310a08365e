"""Lane, size and output cap of a request, rule by rule."""

import pytest

from proxy.policy.classify import (
    CapAction,
    CapRule,
    LanePolicy,
    LengthPolicy,
    OutputPolicy,
    TooLong,
    Verdict,
    classify,
)
from proxy.policy.length import Estimate
from proxy.wire.facts import Endpoint, Facts, OutputFields

LANES = (LanePolicy("short", 2048), LanePolicy("long"))


def facts(cap=None, fields=None, endpoint=Endpoint.CHAT, **more):
    names = fields if fields is not None else (("max_tokens",) if cap is not None else ())
    return Facts(endpoint=endpoint, output=OutputFields(cap=cap, cap_fields=names), **more)


def decide(request, policy=None, *, tokens=100, exact=True, context=None, output=256):
    lanes = (LanePolicy("short", 2048, policy or OutputPolicy()), LanePolicy("long", None, policy or OutputPolicy()))
    return classify(request, Estimate(tokens, exact, output), lanes, context)


def cap(request, policy=None, **options):
    verdict = decide(request, policy, **options)
    assert isinstance(verdict, Verdict)
    return verdict.output_cap, verdict.cap_rule


# ---------------------------------------------------------------- lane and size


@pytest.mark.parametrize(("tokens", "lane"), [(1, 0), (2048, 0), (2049, 1), (10**6, 1)])
def test_the_lane_goes_by_the_prompt(tokens, lane):
    assert decide(facts(), tokens=tokens).lane == lane


def test_the_lane_goes_by_all_prompts_together():
    assert decide(facts(prompts=3), tokens=3000).lane == 1


def test_without_any_policy_a_request_is_left_as_it_is():
    request = facts(cap=50, prompts=2, n=3, splittable=True)
    assert decide(request) == Verdict(
        lane=0, prompt_tokens=100, output_tokens=300, output_cap=None, cap_rule=None, sequences=6, splittable=True
    )


def test_expected_output_is_the_smaller_of_the_cap_and_what_the_model_usually_makes():
    assert decide(facts(cap=50)).output_tokens == 50
    assert decide(facts(cap=5000)).output_tokens == 256
    assert decide(facts()).output_tokens == 256
    assert decide(facts(cap=0)).output_tokens == 1


@pytest.mark.parametrize("endpoint", [Endpoint.EMBEDDINGS, Endpoint.POOLING])
def test_an_endpoint_that_generates_nothing_has_no_output_and_no_cap(endpoint):
    verdict = decide(facts(endpoint=endpoint, prompts=4), OutputPolicy(default=10, ceiling=5))
    assert (verdict.output_tokens, verdict.output_cap, verdict.sequences) == (0, None, 4)


# ---------------------------------------------------------------- default and ceiling


def test_the_default_is_for_requests_that_name_no_limit():
    policy = OutputPolicy(default=1000)
    assert cap(facts(), policy) == (1000, CapRule.DEFAULT)
    assert cap(facts(cap=5), policy) == (None, None)
    assert cap(facts(cap=9999), policy) == (None, None)


def test_null_counts_as_no_limit():
    assert cap(facts(fields=("max_tokens",)), OutputPolicy(default=1000)) == (1000, CapRule.DEFAULT)


def test_a_completion_without_the_key_keeps_the_16_of_the_engines():
    request = facts(cap=16, fields=(), endpoint=Endpoint.COMPLETIONS)
    assert cap(request, OutputPolicy(default=1000, ceiling=500)) == (None, None)


def test_a_message_without_its_required_limit_is_left_for_the_engine_to_answer():
    request = facts(endpoint=Endpoint.MESSAGES)
    assert cap(request, OutputPolicy(default=1000, ceiling=500)) == (None, None)


def test_the_ceiling_lowers_what_is_over_it():
    policy = OutputPolicy(ceiling=500)
    assert cap(facts(cap=501), policy) == (500, CapRule.CEILING)
    assert cap(facts(cap=500), policy) == (None, None)
    assert decide(facts(cap=501), OutputPolicy(ceiling=40)).output_tokens == 40


def test_the_ceiling_holds_for_requests_that_name_no_limit_and_for_the_default():
    assert cap(facts(), OutputPolicy(ceiling=500)) == (500, CapRule.CEILING)
    assert cap(facts(), OutputPolicy(default=800, ceiling=500)) == (500, CapRule.CEILING)


def test_reject_answers_what_asks_for_more_with_the_numbers():
    policy = OutputPolicy(ceiling=500, action=CapAction.REJECT)
    assert decide(facts(cap=501), policy) == TooLong(
        "max_tokens asks for 501 output tokens and at most 500 are allowed"
    )
    assert cap(facts(cap=500), policy) == (None, None)
    assert cap(facts(), policy) == (500, CapRule.CEILING)


def test_each_lane_has_its_own_policy():
    lanes = (LanePolicy("short", 2048), LanePolicy("long", None, OutputPolicy(ceiling=7)))
    assert classify(facts(cap=50), Estimate(100), lanes).output_cap is None
    assert classify(facts(cap=50), Estimate(5000), lanes).output_cap == 7


# ---------------------------------------------------------------- context


def test_a_prompt_longer_than_the_context_can_never_fit():
    found = decide(facts(), tokens=4097, context=4096)
    assert found == TooLong("the prompt has 4097 tokens and the model's context holds 4096")
    assert isinstance(decide(facts(), tokens=4096, context=4096), Verdict)


def test_an_estimate_refuses_only_what_is_far_over_the_context():
    assert isinstance(decide(facts(), tokens=6000, exact=False, context=4096), Verdict)
    found = decide(facts(), tokens=6200, exact=False, context=4096)
    assert found == TooLong("the prompt has about 6200 tokens and the model's context holds 4096")


def test_the_context_is_that_of_one_prompt():
    assert isinstance(decide(facts(prompts=4), tokens=8000, context=4096), Verdict)


def test_output_that_does_not_fit_beside_the_prompt_is_lowered_to_what_does():
    policy = OutputPolicy(clamp_to_context=True)
    assert cap(facts(cap=4000), policy, tokens=1000, context=4096) == (3096, CapRule.CONTEXT)
    assert cap(facts(cap=3096), policy, tokens=1000, context=4096) == (None, None)
    assert cap(facts(), policy, tokens=1000, context=4096) == (None, None)
    assert cap(facts(cap=4000), policy, tokens=1000) == (None, None)
    assert cap(facts(cap=4000), OutputPolicy(), tokens=1000, context=4096) == (None, None)


def test_an_estimated_prompt_may_be_15_percent_longer_when_output_is_lowered():
    policy = OutputPolicy(clamp_to_context=True)
    assert cap(facts(cap=4000), policy, tokens=1000, exact=False, context=4096) == (4096 - 1150, CapRule.CONTEXT)


def test_a_cap_is_never_below_one():
    policy = OutputPolicy(clamp_to_context=True)
    assert cap(facts(cap=10), policy, tokens=4096, context=4096) == (1, CapRule.CONTEXT)
    assert cap(facts(cap=10), policy, tokens=4090, exact=False, context=4096) == (1, CapRule.CONTEXT)


def test_context_and_ceiling_together_take_the_smaller():
    policy = OutputPolicy(ceiling=3500, clamp_to_context=True)
    assert cap(facts(cap=9000), policy, tokens=1000, context=4096) == (3096, CapRule.CONTEXT)
    assert cap(facts(cap=9000), policy, tokens=100, context=4096) == (3500, CapRule.CEILING)


# ---------------------------------------------------------------- what is left alone, what never fits


def test_a_request_with_kv_transfer_is_never_touched():
    request = facts(cap=9000, kv_transfer=True, splittable=True)
    policy = OutputPolicy(default=5, ceiling=10, action=CapAction.REJECT, clamp_to_context=True)
    verdict = decide(request, policy, tokens=9000, context=4096)
    assert (verdict.output_cap, verdict.cap_rule, verdict.splittable, verdict.lane) == (None, None, False, 1)


def test_a_prompt_too_long_for_every_lane_can_never_fit():
    lanes = (LanePolicy("short", 2048), LanePolicy("long", 32_000))
    found = classify(facts(), Estimate(32_001), lanes)
    assert found == TooLong("the prompt has about 32001 tokens and the longest lane, long, takes 32000")


# ---------------------------------------------------------------- rules for models, tenants and lanes


def ruled(request, *rules, policy=None, tokens=100, tenant=None, context=None):
    lanes = (LanePolicy("short", 2048, policy or OutputPolicy()), LanePolicy("long", None, policy or OutputPolicy()))
    return classify(request, Estimate(tokens, True, 256), lanes, context, rules=rules, tenant=tenant)


def test_all_sequences_together_share_the_total_and_each_gets_at_least_one():
    policy = OutputPolicy(total=1000)
    assert cap(facts(cap=900), policy) == (None, None)
    assert cap(facts(cap=900, n=4), policy) == (250, CapRule.TOTAL)
    assert cap(facts(prompts=5, n=2), policy) == (100, CapRule.TOTAL)
    assert cap(facts(cap=9, n=5000), policy) == (1, CapRule.TOTAL)


def test_a_total_that_rejects_says_how_many_sequences_ask_for_how_much():
    verdict = decide(facts(cap=300, n=4), OutputPolicy(total=1000, action=CapAction.REJECT))
    assert verdict == TooLong(
        "max_tokens asks for 300 output tokens of each of 4 sequences and at most 1000 are allowed in all"
    )


@pytest.mark.parametrize(
    ("rule", "holds"),
    [
        (LengthPolicy(), True),
        (LengthPolicy(models=frozenset({"m"})), True),
        (LengthPolicy(models=frozenset({"other"})), False),
        (LengthPolicy(tenants=frozenset({"acme", "beta"})), True),
        (LengthPolicy(tenants=frozenset({"beta"})), False),
        (LengthPolicy(lanes=frozenset({"short"})), True),
        (LengthPolicy(lanes=frozenset({"long"})), False),
        (LengthPolicy(models=frozenset({"m"}), tenants=frozenset({"beta"})), False),
    ],
)
def test_a_rule_holds_where_all_its_selectors_do(rule, holds):
    assert rule.holds_for("m", "acme", "short") is holds


def test_of_all_rules_that_hold_the_tightest_wins_knob_by_knob():
    rules = (
        LengthPolicy(models=frozenset({"m"}), output=OutputPolicy(ceiling=400, default=50)),
        LengthPolicy(tenants=frozenset({"acme"}), output=OutputPolicy(ceiling=300, default=80)),
        LengthPolicy(models=frozenset({"other"}), output=OutputPolicy(ceiling=1)),
    )
    lane = OutputPolicy(ceiling=350)
    asked = ruled(facts(cap=1000, model="m"), *rules, policy=lane, tenant="acme")
    assert (asked.output_cap, asked.cap_rule) == (300, CapRule.CEILING)
    silent = ruled(facts(model="m"), *rules, policy=lane, tenant="acme")
    assert (silent.output_cap, silent.cap_rule) == (50, CapRule.DEFAULT)
    stranger = ruled(facts(cap=1000, model="x"), *rules, policy=lane, tenant="beta")
    assert stranger.output_cap == 350


def test_a_ceiling_that_rejects_does_so_only_above_itself():
    rejects = LengthPolicy(output=OutputPolicy(ceiling=1000, action=CapAction.REJECT))
    clamps = LengthPolicy(output=OutputPolicy(ceiling=200))
    assert ruled(facts(cap=900), rejects, clamps).output_cap == 200
    assert ruled(facts(cap=1001), rejects, clamps) == TooLong(
        "max_tokens asks for 1001 output tokens and at most 1000 are allowed"
    )


@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.EMBEDDINGS, Endpoint.POOLING])
def test_a_prompt_over_the_smallest_ceiling_is_refused_with_the_numbers(endpoint):
    rules = (LengthPolicy(prompt_tokens=4000), LengthPolicy(prompt_tokens=3000))
    assert ruled(facts(endpoint=endpoint), *rules, tokens=3000).lane == 1
    assert ruled(facts(endpoint=endpoint), *rules, tokens=3001) == TooLong(
        "the prompt has 3001 tokens and at most 3000 are allowed here"
    )


def test_one_rule_may_clamp_to_the_context_for_a_model():
    rule = LengthPolicy(models=frozenset({"m"}), output=OutputPolicy(clamp_to_context=True))
    assert ruled(facts(cap=950, model="m"), rule, context=1000).output_cap == 900
    assert ruled(facts(cap=950, model="x"), rule, context=1000).output_cap is None


def test_rules_leave_a_request_with_kv_transfer_alone():
    rule = LengthPolicy(prompt_tokens=1, output=OutputPolicy(ceiling=1, action=CapAction.REJECT))
    assert ruled(facts(cap=50, kv_transfer=True), rule).output_cap is None
