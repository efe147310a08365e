"""Canaries: their file, and what is wrong with an answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.answers import repeats_itself
from loadgen.canary import Canary, complaints, judge, read_canaries
from loadgen.failure import UsageError


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "canaries.yaml"
        path.write_text(text)
        return path

    return write


def test_prompts_and_chats_are_read_with_what_is_known_of_the_answer(written):
    text = """
- {name: capital, prompt: "The capital of France is", contains: Paris, max_tokens: 8}
- messages: [{role: user, content: "2+2?"}]
  matches: "\\\\b4\\\\b"
"""
    one, two = read_canaries(written(text))
    assert (one.name, one.path, one.contains, one.max_tokens) == ("capital", "/v1/completions", "Paris", 8)
    assert (two.name, two.path) == ("canary 2", "/v1/chat/completions")
    assert two.request("m")["temperature"] == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "must be a list"),
        ("[]", "1 to 50"),
        ("- 3", "entry 1: is no mapping"),
        ("- {prompt: a, answr: b}", "unknown key 'answr'"),
        ("- {answer: b}", "needs prompt or messages"),
        ("- {prompt: a, messages: [b]}", "one of the two"),
        ("- {prompt: ''}", "prompt must be text"),
        ("- {prompt: a, answer: 4}", "answer must be text"),
        ("- {prompt: a, max_tokens: 0}", "max_tokens"),
        ("- {prompt: a, matches: '('}", "no regular expression"),
        ("- [", "is not YAML"),
    ],
)
def test_a_wrong_file_is_one_sentence_with_entry_and_key(written, text, said):
    with pytest.raises(UsageError, match="--canaries") as stopped:
        read_canaries(written(text))
    assert said in str(stopped.value)


@pytest.mark.parametrize(
    ("known", "text", "wrong"),
    [
        ({"answer": "Paris"}, " Paris\n", None),
        ({"answer": "Paris"}, "Rome", "is not 'Paris'"),
        ({"contains": "Par"}, "in Paris", None),
        ({"contains": "Par"}, "in Rome", "does not contain"),
        ({"matches": r"\d"}, "four", "does not match"),
        ({}, "anything", None),
        ({}, "  ", "empty"),
        ({}, "go on and on " * 20, "repeats itself"),
        ({}, None, "no answer"),
    ],
)
def test_an_answer_is_held_against_what_is_known(known, text, wrong):
    sung = judge(Canary("c", {"prompt": "p"}, 8, **known), text, "stop")
    assert (sung.wrong is None) == (wrong is None)
    assert wrong is None or wrong in sung.wrong


def test_texts_without_spaces_repeat_themselves_too():
    assert repeats_itself("你好世界" * 10)
    assert not repeats_itself("床前明月光疑是地上霜举头望明月低头思故乡")


@given(st.text())
def test_any_text_can_be_judged(text):
    assert repeats_itself(text) in {True, False}


def one(text="a", wrong=None):
    return {"name": "c", "text": text, "wrong": wrong}


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (one(), one(), None),
        (one(wrong="x"), one(), "wrong before the run"),
        (one(), one(text="b", wrong="y"), "right before the run and wrong after"),
        (one(), one(text="b"), "answered otherwise"),
    ],
)
def test_what_changed_over_the_run_is_told_from_what_was_wrong_before(before, after, said):
    found = complaints([before], [after])
    assert len(found) == (said is not None)
    assert said is None or said in found[0]
