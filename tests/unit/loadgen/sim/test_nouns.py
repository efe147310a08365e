"""What an engine profile refuses, and its step formula."""

from dataclasses import replace

import pytest

from loadgen.sim.nouns import EngineProfile

PROFILE = EngineProfile("p", a=0.02, b=3e-5, c=9e-5, d=1.2e-7, e=5e-9, kv_blocks=100)


def test_the_step_formula_adds_every_part():
    seconds = PROFILE.step_s(decodes=10, prefill_tokens=100, decode_context=5000, attention=100 * (1000 + 50))
    assert seconds == pytest.approx(0.02 + 10 * 3e-5 + 100 * 9e-5 + 5000 * 1.2e-7 + 105_000 * 5e-9)


def test_the_kv_cache_in_tokens_is_blocks_times_block_size():
    assert PROFILE.kv_tokens == 12_800


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_num_batched_tokens": 100}, "at least max_num_seqs"),
        ({"kv_blocks": 0}, "at least 1"),
        ({"c": -1.0}, "must not be negative"),
        ({"a": 0.0}, "a must be above 0"),
        ({"kv_fraction": 1.5}, "kv_fraction"),
    ],
)
def test_a_profile_that_no_engine_could_have_is_refused(change, words):
    with pytest.raises(ValueError, match=words):
        replace(PROFILE, **change)
