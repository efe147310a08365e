import re

import pytest

from loadgen.runwords import _WORDS, Language, Words


@pytest.mark.parametrize("key", sorted(_WORDS))
def test_both_languages_take_the_same_values(key):
    english, chinese = _WORDS[key]
    assert english
    assert chinese
    assert set(re.findall(r"\{\w+\}", english)) == set(re.findall(r"\{\w+\}", chinese))


def test_what_has_no_translation_is_left_as_it_is():
    assert Words(Language.ZH)("truncated") == "truncated"
