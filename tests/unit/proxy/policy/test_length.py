"""Prompt lengths: what is assumed at first, and what is learned from the engine's own counts."""

import json
import random
import sys
from functools import cache
from pathlib import Path

import pytest

from proxy.policy.length import MODELS_AT_MOST, START_TOKENS, LengthEstimator
from proxy.wire.census import take_census
from proxy.wire.facts import Endpoint, Facts, TextCensus

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "golden/lengths"))

from length_texts import LAST, text_of


def facts(**fields):
    return Facts(endpoint=Endpoint.CHAT, **fields)


def taught(observations, model="m"):
    """Return an estimator after (census, actual tokens) pairs."""
    estimator = LengthEstimator()
    for census, actual in observations:
        estimated = estimator.estimate(model, facts(census=census)).tokens
        estimator.learn(model, census, estimated, actual)
    return estimator


# About 20 KB each, as a census splits it, and tokens per character of its main class in real vocabularies, extremes
# of both ends among them.
KINDS = {
    "chinese": ({"cjk": 6500, "latin": 300, "digits": 80, "symbols": 120}, "cjk", (0.5, 0.6, 1.3)),
    "code": ({"latin": 14_000, "digits": 900, "symbols": 5000}, "latin", (0.15, 0.3, 0.45)),
    "base64": ({"base64": 19_500, "latin": 300}, "base64", (0.55, 0.72, 1.0)),
    "emoji": ({"other": 5000, "latin": 200}, "other", (0.6, 1.5, 3.0)),
    "prose": ({"latin": 19_000, "symbols": 600}, "latin", (0.18, 0.22, 0.3)),
}


@pytest.mark.parametrize(
    ("kind", "ratio"), [(kind, ratio) for kind, (_, _, ratios) in KINDS.items() for ratio in ratios]
)
def test_twenty_kilobytes_of_one_kind_are_within_15_percent_after_50_observations(kind, ratio):
    counts, main, _ = KINDS[kind]
    rng = random.Random(5)

    def sample():
        scale = rng.uniform(0.5, 1.5)
        scaled = {name: round(count * scale) for name, count in counts.items()}
        true = sum(n * (ratio if name == main else START_TOKENS[name] * 0.8) for name, n in scaled.items())
        return TextCensus(**scaled, messages=3), round(true * rng.uniform(0.97, 1.03)) + 12

    estimator = taught([sample() for _ in range(50)])
    for _ in range(20):
        census, actual = sample()
        assert estimator.estimate("m", facts(census=census)).tokens == pytest.approx(actual, rel=0.15)


@pytest.mark.parametrize("per_image", [85, 765, 2700])
def test_what_an_image_of_a_model_costs_is_learned_beside_the_text_around_it(per_image):
    rng = random.Random(7)

    def sample():
        images, latin = rng.randint(1, 4), rng.randint(100, 2000)
        return TextCensus(media_parts=images, latin=latin, messages=1), round(images * per_image + 0.22 * latin) + 5

    estimator = taught([sample() for _ in range(50)])
    for _ in range(20):
        census, actual = sample()
        assert estimator.estimate("m", facts(census=census)).tokens == pytest.approx(actual, rel=0.15)


def test_kinds_that_come_mixed_do_not_spoil_each_other():
    rng = random.Random(6)
    true = {"latin": 0.2, "cjk": 1.1, "base64": 0.9, "other": 2.0, "symbols": 0.5, "digits": 1.0}

    def sample(kind):
        census = KINDS[kind][0]
        return TextCensus(**census), round(sum(n * true[name] for name, n in census.items()))

    estimator = taught([sample(rng.choice(sorted(KINDS))) for _ in range(250)])
    for kind in KINDS:
        census, actual = sample(kind)
        assert estimator.estimate("m", facts(census=census)).tokens == pytest.approx(actual, rel=0.15)


def test_before_anything_was_learned_each_class_counts_by_its_start_value():
    census = TextCensus(latin=400, digits=10, symbols=10, cjk=100, other=10, base64=100, media_parts=2, messages=2)
    expected = 100 + 7 + 6 + 70 + 8 + 75 + 1600 + 10
    assert LengthEstimator().estimate("m", facts(census=census)).tokens == expected


def test_token_ids_are_exact_and_never_corrected():
    estimator = taught([(TextCensus(latin=4000), 3000)] * 50)
    estimate = estimator.estimate("m", facts(prompt_tokens=777, census=TextCensus(latin=9)))
    assert (estimate.tokens, estimate.exact) == (777, True)


def test_every_prompt_has_at_least_one_token():
    assert LengthEstimator().estimate(None, facts(prompts=3)).tokens == 3
    assert LengthEstimator().estimate(None, facts(prompt_tokens=0)).tokens == 1


def test_a_prompt_that_the_engine_truncates_is_no_longer_than_what_it_keeps():
    census = TextCensus(latin=40_000)
    estimator = LengthEstimator()
    assert estimator.estimate(None, facts(census=census, truncate_prompt_tokens=512, prompts=2)).tokens == 1024
    assert estimator.estimate(None, facts(census=census, truncate_prompt_tokens=-1)).tokens == 10_000


def test_models_learn_apart():
    estimator = taught([(TextCensus(latin=4000), 2000)] * 50, "small vocabulary")
    assert estimator.estimate("other", facts(census=TextCensus(latin=4000))).tokens == 1000
    assert estimator.estimate("small vocabulary", facts(census=TextCensus(latin=4000))).tokens > 1900


def test_one_absurd_report_moves_an_estimate_by_less_than_a_tenth():
    estimator = taught([(TextCensus(latin=4000), 1000)] * 20 + [(TextCensus(latin=4000), 10**9)])
    assert estimator.estimate("m", facts(census=TextCensus(latin=4000))).tokens == pytest.approx(1000, rel=0.1)


@pytest.mark.parametrize("actual", [0, -5])
def test_a_count_below_one_teaches_nothing(actual):
    assert taught([(TextCensus(latin=4000), actual)]).state() == {}


def test_counts_that_cannot_be_teach_nothing():
    estimator = LengthEstimator()
    for count in (10**400, 10**10):
        estimator.learn("m", TextCensus(latin=400), 100, count)
        estimator.learn_output("m", count)
    assert estimator.state() == {}


def test_an_empty_prompt_teaches_nothing():
    assert taught([(TextCensus(), 100)]).state() == {}


def test_the_error_is_the_recent_mean_of_what_estimates_were_off():
    estimator = LengthEstimator()
    assert estimator.error("m") == 0.0
    estimator.learn("m", TextCensus(latin=4000), 1500, 1000)
    assert estimator.error("m") == pytest.approx(0.05 * 0.5)


def test_expected_output_follows_what_a_model_makes():
    estimator = LengthEstimator()
    assert estimator.estimate("m", facts()).output_tokens == 256
    estimator.learn_output("m", 456)
    assert estimator.estimate("m", facts()).output_tokens == 266
    estimator.learn_output("m", -1)
    assert estimator.estimate("m", facts()).output_tokens == 266


def test_the_number_of_models_is_bounded_and_the_one_that_learned_longest_ago_goes():
    estimator = LengthEstimator()
    for number in range(MODELS_AT_MOST):
        estimator.learn_output(f"m{number}", 1000)
    estimator.learn_output("m0", 1000)
    estimator.learn_output("new", 1000)
    assert len(estimator.state()) == MODELS_AT_MOST
    assert "m1" not in estimator.state()
    assert "m0" in estimator.state()


def test_asking_for_a_model_keeps_nothing_of_it():
    estimator = LengthEstimator()
    for number in range(1000):
        estimator.estimate(f"scan{number}", facts())
    assert estimator.state() == {}


def test_what_was_learned_survives_a_restart_as_json():
    estimator = taught([(TextCensus(latin=4000, cjk=300), 2000)] * 9)
    estimator.learn_output("m", 900)
    again = LengthEstimator()
    assert again.restore(json.loads(json.dumps(estimator.state()))) == 1
    assert again.state() == estimator.state()
    assert repr(again) == "<LengthEstimator 1 models>"


@pytest.mark.parametrize(
    "state",
    [
        {"m": None},
        {"m": {"gains": 3}},
        {"m": {"gains": {"latin": "x", "digits": -1, "symbols": 1e9, "nonsense": 2}, "output": float("inf")}},
        {"m": {"gains": {"latin": float("nan")}, "output": 10**400, "error": -1, "observations": 1e300}},
    ],
)
def test_what_cannot_be_restored_is_passed_over(state):
    estimator = LengthEstimator()
    estimator.restore(state)
    estimate = estimator.estimate("m", facts(census=TextCensus(latin=400)))
    assert (estimate.tokens, estimate.output_tokens) == (100, 256)


LENGTHS = Path(__file__).resolve().parents[3] / "golden/lengths"
GOLDEN = json.loads((LENGTHS / "counts.json").read_text(encoding="utf-8"))


@cache
def turns(kind, index):
    """A text as one turn of a chat, counted by class; and what its template adds."""
    return take_census(text_of(GOLDEN["pieces"].get(kind, []), kind, index))._replace(messages=1), 9


def tell(estimator, kind, vocabulary, index):
    census, more = turns(kind, index)
    actual = GOLDEN["counts"][kind][vocabulary][index] + more
    estimated = estimator.estimate("m", facts(census=census)).tokens
    estimator.learn("m", census, estimated, actual)
    return estimated / actual


@pytest.mark.parametrize("vocabulary", ["qwen", "deepseek", "anthropic", "cl100k", "tiny"])
@pytest.mark.parametrize("kind", ["chinese", "code", "base64", "emoji"])
def test_twenty_kilobytes_are_within_15_percent_of_a_real_vocabulary_after_50_observations(kind, vocabulary):
    estimator = LengthEstimator()
    for index in range(LAST):
        tell(estimator, kind, vocabulary, index)
    assert tell(estimator, kind, vocabulary, LAST) == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize("vocabulary", ["qwen", "deepseek", "anthropic", "cl100k", "tiny"])
def test_all_kinds_mixed_in_one_model_are_within_15_percent_of_a_real_vocabulary(vocabulary):
    estimator, kinds = LengthEstimator(), ["chinese", "code", "base64", "emoji"]
    order = [(kind, index) for kind in kinds for index in range(LAST)]
    random.Random(8).shuffle(order)
    for kind, index in order:
        tell(estimator, kind, vocabulary, index)
    assert [tell(estimator, kind, vocabulary, LAST) for kind in kinds] == [pytest.approx(1.0, abs=0.15)] * 4


def test_the_share_of_each_class_adds_up_to_the_estimate():
    estimator = taught([(TextCensus(latin=4000, cjk=300), 2000)] * 9)
    census = TextCensus(latin=4000, cjk=300, messages=1)
    shares = estimator.shares("m", census)
    assert set(shares) == {"latin", "cjk", "messages"}
    assert sum(shares.values()) == pytest.approx(estimator.estimate("m", facts(census=census)).tokens, abs=2)
    assert estimator.observations("m") == 9
    assert estimator.observations("other") == 0
