"""What one sequence answers and why it ends."""

from hypothesis import given
from hypothesis import strategies as st

from loadgen.sim.http_requests import Sampling
from loadgen.sim.speech import speech_for
from loadgen.sim.text import EOS


def said(sampling, prompt="p", index=0, seed=0):
    speech = speech_for(sampling, prompt, index, seed)
    return speech, [speech.next() for _ in range(speech.length)]


@given(st.integers(1, 400), st.integers(0, 5))
def test_a_forced_answer_takes_its_whole_cap(cap, index):
    speech, words = said(Sampling(cap=cap, forced=True), index=index)
    assert (len(words), speech.finish_reason, speech.stop_reason) == (cap, "length", None)
    assert all(word.text for word in words)


@given(st.integers(0, 1000))
def test_an_answer_that_ends_by_itself_ends_with_an_empty_token(seed):
    speech, words = said(Sampling(cap=100_000), seed=seed)
    assert speech.finish_reason == "stop"
    assert words[-1] == (EOS, "")
    assert all(word.text for word in words[:-1])


def test_the_same_request_gets_the_same_answer_and_any_other_another():
    same = said(Sampling(cap=50, forced=True))[1]
    assert same == said(Sampling(cap=50, forced=True))[1]
    assert same != said(Sampling(cap=50, forced=True), prompt="q")[1]
    assert same != said(Sampling(cap=50, forced=True), index=1)[1]
    assert same != said(Sampling(cap=50, forced=True), seed=1)[1]
    assert same != said(Sampling(cap=50, forced=True, seed=3))[1]


@given(st.integers(0, 300))
def test_a_stop_string_ends_the_text_before_it(seed):
    whole = "".join(word.text for word in said(Sampling(cap=200, forced=True), seed=seed)[1])
    speech, words = said(Sampling(cap=200, forced=True, stops=("e", "on t")), seed=seed)
    where = min(at for stop in ("e", "on t") if (at := whole.find(stop)) >= 0)
    assert "".join(word.text for word in words) == whole[:where]
    assert speech.finish_reason == "stop"
    assert whole[where:].startswith(speech.stop_reason)
    assert (speech.length - 1) * 4 < where + len(speech.stop_reason) <= speech.length * 4


def test_a_stop_string_does_not_count_before_the_least_length():
    speech, words = said(Sampling(cap=200, forced=True, floor=100, stops=("e",)))
    assert speech.length > 100
    assert len(words) == speech.length


def test_a_stop_token_ends_the_answer_and_is_named():
    _, words = said(Sampling(cap=50, forced=True))
    third = words[2].id
    speech, cut = said(Sampling(cap=50, forced=True, stop_tokens=frozenset({third})))
    assert speech.stop_reason == third
    assert "".join(word.text for word in cut) == "".join(word.text for word in words[: speech.length - 1])


def test_an_answer_biased_to_its_end_is_one_empty_token():
    speech, words = said(Sampling(cap=8, ends_at_once=True))
    assert (words, speech.finish_reason) == ([(EOS, "")], "stop")


def test_a_json_object_is_one():
    speech, words = said(Sampling(cap=16, json_object=True))
    assert "".join(word.text for word in words) == "{}"
    assert speech.finish_reason == "stop"
    assert said(Sampling(cap=1, json_object=True))[0].finish_reason == "length"


@given(st.integers(1, 60), st.integers(0, 60), st.integers(0, 200))
def test_no_answer_is_longer_than_its_cap_or_shorter_than_its_floor(cap, floor, seed):
    speech, _ = said(Sampling(cap=cap, floor=min(cap, floor)), seed=seed)
    assert min(cap, floor) <= speech.length <= cap
