"""Nine planted situations, two severities each, and two healthy runs: the layer that is named is the planted one."""

import random
from dataclasses import replace

import pytest

from loadgen.diagnose.facts import facts_of
from loadgen.diagnose.rules import diagnose
from loadgen.sim.profile import load_profile
from loadgen.sim.staged import Cards, Situation, play
from loadgen.sim.workloads import Arrival
from loadgen.summary import Slo

ENGINE = load_profile("8b")
FAST_SLO = Slo(ttft_short_s=1.0, ttft_long_s=5.0, tpot_s=0.1)


def traffic(rate, seconds, prompt, output, seed=1):
    """Poisson arrivals; lengths within 20 % of what is asked for, or drawn from several."""
    draw = random.Random(seed)
    prompts = prompt if isinstance(prompt, tuple) else (prompt,)
    at, found = 0.0, []
    while at < seconds:
        tokens = draw.choice(prompts)
        found.append(Arrival(at, round(tokens * draw.uniform(0.8, 1.2)), round(output * draw.uniform(0.8, 1.2))))
        at += draw.expovariate(rate)
    return found


CHAT = traffic(3, 18, 300, 60)
DEEP = traffic(12, 20, 300, 100)


@pytest.fixture
def judged(tmp_path):
    """Play situations in virtual time and diagnose them, the second against the first when there are two."""

    def judge(*played, profile=ENGINE):
        folders = [
            play(Situation(**{"profile": profile, "arrivals": CHAT, "out": tmp_path / str(number), **one}))
            for number, one in enumerate(played)
        ]
        facts = [facts_of(folder, FAST_SLO) for folder in folders]
        return diagnose(facts[-1], facts[0] if len(facts) > 1 else None)

    return judge


def layers(diagnosis):
    return [str(finding.layer) for finding in diagnosis.findings]


def test_a_light_chat_load_is_healthy(judged):
    assert judged({"cards": Cards()}).findings == ()


def test_a_mixed_load_below_its_knee_is_healthy(judged):
    mixed = traffic(1.0, 40, (200, 400, 600, 3000), 80)
    assert judged({"arrivals": mixed, "cards": Cards(loaded=2, working=2), "noise_sigma": 0.1}).findings == ()


@pytest.mark.parametrize("link_s", [0.03, 0.2])
def test_a_slow_link(judged, link_s):
    found = judged({"link_s": link_s})
    assert layers(found) == ["link"]
    assert not found.findings[0].tuning_helps


@pytest.mark.parametrize("lag_s", [0.01, 0.3])
def test_a_client_that_cannot_keep_up(judged, lag_s):
    found = judged({"lag_s": lag_s})
    assert layers(found) == ["client"]
    assert found.invalid is not None


@pytest.mark.parametrize("slots", [3, 2])
def test_too_few_slots(judged, slots):
    found = judged({"facts": {"flags": {"max_num_seqs": str(slots)}}}, profile=replace(ENGINE, max_num_seqs=slots))
    assert layers(found) == ["queue"]
    assert found.findings[0].confidence == "high"


@pytest.mark.parametrize("rate", [1.3, 3.0])
def test_prompts_that_are_computed_too_slowly(judged, rate):
    assert layers(judged({"arrivals": traffic(rate, 20, 9000, 20)})) == ["prefill"]


def test_answers_of_two_tokens_leave_few_running_and_are_still_a_matter_of_prefill(judged):
    """All that runs is one prompt and what follows it: the number running never moves, and no slot is missing."""
    assert layers(judged({"arrivals": traffic(2.5, 15, 6000, 2)})) == ["prefill"]


def test_slots_that_are_missing_are_seen_without_the_flag_too(judged):
    assert layers(judged({}, profile=replace(ENGINE, max_num_seqs=2))) == ["queue"]


def test_idle_cards_of_another_engine_are_no_finding(judged):
    facts = {"flags": {"tensor_parallel_size": "2"}}
    assert judged({"cards": Cards(loaded=4, working=2), "facts": facts}).findings == ()


@pytest.mark.parametrize("b", [0.0012, 0.004])
def test_a_batch_that_is_too_deep(judged, b):
    profile = replace(ENGINE, b=b)
    assert layers(judged({"arrivals": DEEP}, profile=profile)) == ["decode"]


@pytest.mark.parametrize("blocks", [90, 45])
def test_a_cache_that_is_too_small_for_what_runs(judged, blocks):
    profile = replace(ENGINE, kv_blocks=blocks, max_model_len=4096, reserve_full_isl=False)
    found = judged({"arrivals": traffic(4, 18, 400, 300)}, profile=profile)
    assert layers(found) == ["memory"]
    assert (found.findings[0].part, found.findings[0].confidence) == ("kv", "high")
    assert next(one.value for one in found.findings[0].evidence if one.name == "preemptions") > 0


@pytest.mark.parametrize("in_stream", [False, True])
def test_a_model_that_always_fails(judged, in_stream):
    found = judged({"model": "healthy"}, {"model": "broken", "fails": "all", "in_stream": in_stream})
    assert layers(found) == ["adaptation"]
    assert "model healthy answers" in found.findings[0].sentence


def test_prompts_of_one_length_that_always_fail(judged):
    mixed = traffic(1.0, 30, (300, 3000), 40)
    found = judged({"arrivals": mixed, "fails": "long"})
    assert layers(found) == ["adaptation"]
    assert "long requests" in found.findings[0].sentence


def test_an_error_that_names_its_cause(judged):
    found = judged({"fails": "all", "message": "NPU out of memory. Tried to allocate 3.47 GiB"})
    assert (layers(found), found.findings[0].part) == (["memory"], "activations")


@pytest.mark.parametrize(("loaded", "working"), [(4, 2), (8, 1)])
def test_a_split_that_leaves_cards_idle(judged, loaded, working):
    assert layers(judged({"cards": Cards(loaded=loaded, working=working)})) == ["parallel"]


@pytest.mark.parametrize("told", [{"tensor_parallel_size": "2"}, {"tensor-parallel-size": "3"}])
def test_a_split_that_does_not_match_the_cards(judged, told):
    facts = {"flags": told, "premises": {"cards": {"value": 4, "source": "told"}}}
    assert layers(judged({"facts": facts})) == ["parallel"]


@pytest.mark.parametrize("slowdown", [0.93, 1.5])
def test_more_cards_that_bring_nothing(judged, slowdown):
    """Two cards, then four: nearly no gain, and a loss."""
    fast = replace(ENGINE, a=ENGINE.a * slowdown, b=ENGINE.b * slowdown)
    two, four = ({"flags": {"tensor_parallel_size": size}} for size in ("2", "4"))
    found = judged({"facts": two}, {"facts": four, "profile": fast})
    assert layers(found) == ["parallel"]


def test_more_cards_that_bring_what_they_should_are_no_finding(judged):
    fast = replace(ENGINE, a=ENGINE.a * 0.6, b=ENGINE.b * 0.6)
    two, four = ({"flags": {"tensor_parallel_size": size}} for size in ("2", "4"))
    assert judged({"facts": two}, {"facts": four, "profile": fast}).findings == ()


@pytest.mark.parametrize("rate", [12, 20])
def test_cards_that_have_nothing_left(judged, rate):
    profile = replace(ENGINE, b=0.002)
    cards = Cards(loaded=2, working=2, bandwidth_share=0.95)
    found = judged({"arrivals": traffic(rate, 15, 500, 120), "cards": cards}, profile=profile)
    assert layers(found) == ["hardware ceiling"]
    assert not found.findings[0].tuning_helps


@pytest.mark.parametrize("rate", [12, 20])
def test_a_throughput_that_no_setting_moves(judged, rate):
    """Without cards to read: half the slots more, the same plan, the same tokens per second."""
    much = traffic(rate, 8, 500, 100)
    settings = ("64", "96")
    found = judged(
        *(
            {
                "arrivals": much,
                "profile": replace(ENGINE, b=0.004, max_num_seqs=int(slots)),
                "facts": {"parameters": {"max_num_seqs": slots}},
            }
            for slots in settings
        )
    )
    assert layers(found) == ["hardware ceiling"]
