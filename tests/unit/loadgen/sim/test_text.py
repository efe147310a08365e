"""The simulated engine's tokens: reversible, prefix-stable, of the usual size; its text: the same for the same seed."""

from statistics import mean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.sim import text

ENGLISH = "The quick brown fox jumps over the lazy dog while the operator reads the queue and the engine runs. " * 20
CHINESE = "我们的目标是在不改变引擎的情况下让短的请求不再等待长的请求同时长的请求也能够完成。" * 20


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_decoding_gives_back_every_text(words):
    assert text.decode(text.encode(words)) == words


@given(st.lists(st.integers(0, text.VOCABULARY - 1), max_size=50))
def test_every_token_id_decodes_to_some_text(ids):
    assert bool(text.decode(ids)) == bool(ids)


@given(st.integers(16, text.VOCABULARY - 1 - 0x10000))
def test_a_piece_is_encoded_as_the_token_it_came_from(token):
    assert text.encode(text.decode([token])) == [token]


@given(st.text("abc XYZ019é漢的一是.\n", max_size=60), st.text("abc XYZ019é漢的一是.\n", max_size=60))
def test_a_longer_text_begins_with_the_tokens_of_the_shorter_one_except_for_the_last(prefix, rest):
    assert text.encode(prefix + rest)[: max(0, len(text.encode(prefix)) - 1)] == text.encode(prefix)[:-1]


def test_english_is_about_four_characters_a_token_and_chinese_about_one_and_a_half():
    assert 3.3 < len(ENGLISH) / len(text.encode(ENGLISH)) < 4.1
    assert 1.2 < len(CHINESE) / len(text.encode(CHINESE)) < 1.8


def test_an_id_outside_the_vocabulary_is_named():
    with pytest.raises(ValueError, match="Token id 999999 is out of vocabulary"):
        text.decode([100, 999999])


def test_a_chat_costs_a_few_tokens_for_each_turn_and_opens_the_answer():
    ids = text.encode_chat([("user", "Hello, who are you?")])
    assert len(ids) == 17
    assert ids[0] == text.IM_START
    assert text.decode(ids).endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert len(text.encode_chat([("user", "Hello, who are you?")], answer=False)) == 17 - 5


@given(st.lists(st.integers(0, 9), min_size=8, max_size=40), st.integers(0, 39))
def test_blocks_are_equal_up_to_the_first_token_that_differs(ids, where):
    other = list(ids)
    other[where % len(ids)] += 10
    ours, theirs = text.block_hashes(ids, 4), text.block_hashes(other, 4)
    same = where % len(ids) // 4
    assert len(ours) == len(ids) // 4
    assert ours[:same] == theirs[:same]
    assert not set(ours[same:]) & set(theirs[same:])


def test_a_salt_makes_equal_prompts_different():
    ids = list(range(256))
    assert text.block_hashes(ids, 128) == text.block_hashes(ids, 128)
    assert not set(text.block_hashes(ids, 128, "a")) & set(text.block_hashes(ids, 128, "b"))


def test_an_answer_sent_back_as_a_prompt_has_as_many_tokens_as_it_cost():
    voice = text.Voice(7)
    spoken = [voice.next() for _ in range(300)]
    assert text.encode("".join(word.text for word in spoken)) == [word.id for word in spoken]


def test_the_same_seed_speaks_the_same_words_and_another_seed_others():
    first, again, other = text.Voice(1), text.Voice(1), text.Voice(2)
    words = [first.next() for _ in range(50)]
    assert words == [again.next() for _ in range(50)]
    assert words != [other.next() for _ in range(50)]


def test_natural_lengths_are_spread_like_conversation():
    lengths = [text.natural_length(text.seed_of("request", number)) for number in range(4000)]
    assert min(lengths) == 16
    assert 130 < median(lengths) < 150
    assert 190 < mean(lengths) < 230
