import random

import pytest

from loadgen.reuse import PrefixReuse


def test_the_first_time_is_not_a_repetition():
    reuse = PrefixReuse()
    reuse.add((1, 2), 512, 1024)
    reuse.add((1, 3), 512, 700)
    reuse.add((1, 3), 512, 700)
    assert reuse.repeated_tokens == 512 + 700
    assert reuse.exact


def test_with_more_ids_than_are_remembered_the_share_is_estimated():
    draw = random.Random(5)
    prompts = [tuple(range(base, base + 8)) for base in (draw.randrange(20_000) * 8 for _ in range(30_000))]
    exact, sampled = PrefixReuse(), PrefixReuse(most_ids=20_000)
    for prompt in prompts:
        exact.add(prompt, 16, 128)
        sampled.add(prompt, 16, 128)
    assert exact.exact
    assert not sampled.exact
    assert sampled.repeated_tokens == pytest.approx(exact.repeated_tokens, rel=0.05)
