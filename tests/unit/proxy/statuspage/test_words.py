"""Both languages, and which one somebody gets."""

import pytest

from proxy.policy.backend import Blocked
from proxy.policy.health import State
from proxy.policy.installments import Mode
from proxy.policy.limiter import Cause
from proxy.policy.outcome import Reason
from proxy.statuspage.words import _MEANINGS, _WORDS, LANGUAGES, choose, meaning, say


def test_every_text_is_there_in_both_languages():
    assert [key for key, texts in _WORDS.items() if len(texts) != len(LANGUAGES) or not all(texts)] == []
    assert [key for key, (_, chinese) in _MEANINGS.items() if not chinese] == []


@pytest.mark.parametrize("words", [Blocked, State, Mode, Cause, Reason])
def test_every_word_of_a_closed_set_has_a_meaning(words):
    assert [word.value for word in words if not meaning("zh", word.value)] == []


def test_a_word_of_no_set_means_nothing():
    assert meaning("en", "nonsense") == ""


def test_a_text_that_is_not_there_is_a_fault():
    with pytest.raises(KeyError):
        say("en")("nonsense")


@pytest.mark.parametrize(
    ("asked", "accepted", "language"),
    [
        (None, "", "en"),
        ("zh", "en", "zh"),
        ("en", "zh-CN,zh;q=0.9", "en"),
        ("fr", "zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        (None, "en-GB,en;q=0.9,zh;q=0.8", "en"),
        (None, "fr-FR, ZH-Hans;q=0.7, en;q=0.3", "zh"),
        (None, "fr,de;q=0.5", "en"),
        (None, "zh;q=0", "en"),
        (None, "zh;q=many,;;,=", "en"),
        (None, "*", "en"),
    ],
)
def test_the_address_decides_and_then_what_the_browser_would_rather_read(asked, accepted, language):
    assert choose(asked, accepted) == language
