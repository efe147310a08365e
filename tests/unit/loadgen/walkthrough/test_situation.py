"""The four situations, each with a preset that is there."""

import pytest

from loadgen.walkthrough.situation import Situation, name_situation


@pytest.mark.parametrize(
    ("long_share", "concurrency", "cards", "situation"),
    [
        (0.0, 8, None, "single card"),
        (0.0, 8, 1, "single card"),
        (0.0, None, None, "single card"),
        (0.5, 8, 1, "long context"),
        (0.0, 40, 1, "high concurrency"),
        (0.5, 40, 4, "several cards"),
    ],
)
def test_a_situation_is_named_with_its_reason(long_share, concurrency, cards, situation):
    named = name_situation(long_share=long_share, concurrency=concurrency, cards=cards)
    assert named.situation == situation
    assert named.why


def test_every_situation_has_a_preset(root):
    assert [one for one in Situation if not (root / one.preset).exists()] == []
