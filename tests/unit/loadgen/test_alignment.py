import re

import pytest

from loadgen.alignment import CHECKED_WORDS, WORDS, Calibration, align
from loadgen.options import Endpoint
from loadgen.prompts import Asking, Prompts


def text(asked, words):
    return Prompts(Asking(Endpoint.CHAT, "m", "s", asked)).sample(words)


def engine(tokens_of_word, template=12):
    async def count(said):
        return template + sum(tokens_of_word(word) for word in said.split())

    return count


async def test_words_that_are_one_token_each_make_prompts_exact():
    found = await align(engine(lambda _: 1), text)
    assert (found.source, found.worst_error_tokens, found.template_tokens) == ("aligned", 0, 12)
    assert found.words(1012) == 1000


async def test_words_that_are_more_than_one_token_are_left_out():
    odd = set(WORDS[::3])
    found = await align(engine(lambda word: 2 if word in odd else 1), text)
    assert (found.source, found.worst_error_tokens) == ("aligned", 0)
    assert len(found.alphabet) == 64
    assert not odd & set(found.alphabet)


async def test_text_that_cannot_be_aligned_says_how_wrong_it_was_found_to_be():
    async def count(said):
        return 7 + len(re.findall(r"..", said))

    found = await align(count, text)
    assert found.source == "tokenize"
    assert found.tokens_per_word == 2
    assert found.worst_error_tokens == 0
    rough = await align(engine(lambda word: 1 + (word < "f")), text)
    assert rough.source in {"tokenize", "aligned"}
    assert rough.worst_error_tokens is not None


async def test_what_turns_out_wrong_at_another_length_is_not_called_aligned():
    async def count(said):
        words = len(said.split())
        return 5 + words + (words == CHECKED_WORDS[3])

    found = await align(count, text)
    assert (found.source, found.worst_error_tokens) == ("tokenize", 1)


async def test_an_engine_that_cannot_count_leaves_the_assumption():
    async def count(_):
        return None

    assert await align(count, text) == Calibration()


@pytest.mark.parametrize("size", [32, 64, 128])
def test_prompts_of_any_alphabet_differ_at_once_and_agree_where_they_should(size):
    prompts = Prompts(Asking(Endpoint.CHAT, "m", "s", Calibration(alphabet=WORDS[:size])))
    heads = {prompts._block(b"%d" % n, 40)[:60] for n in range(2000)}
    assert len(heads) == 2000
    assert prompts._block(b"x", 900)[: 4 * 500] == prompts._block(b"x", 500)
