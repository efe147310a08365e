"""The KV cache: blocks by number, found by hash, evicted in the order of release."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.sim.kv import KvCache


def filled(cache, hashes):
    assert cache.take(len(hashes))
    assert all(cache.store(key) for key in hashes)


def test_blocks_that_are_taken_are_no_longer_free():
    cache = KvCache(10)
    assert cache.take(4)
    assert cache.free == 6


def test_too_few_free_blocks_take_nothing():
    cache = KvCache(3)
    assert not cache.take(4)
    assert cache.free == 3


def test_a_released_hashed_block_is_free_and_can_still_be_found():
    cache = KvCache(4)
    filled(cache, [1, 2])
    cache.release(0, [1, 2])
    assert cache.free == 4
    assert cache.match([1, 2, 3], 9) == 2


def test_a_match_ends_at_the_first_block_that_is_missing():
    cache = KvCache(4)
    filled(cache, [1, 3])
    assert cache.match([1, 2, 3], 9) == 1
    assert cache.match([2, 1], 9) == 0
    assert cache.match([1], 0) == 0


def test_empty_blocks_are_taken_before_cached_ones():
    cache = KvCache(4)
    filled(cache, [1, 2])
    cache.release(0, [1, 2])
    assert cache.take(2)
    assert cache.match([1, 2], 9) == 2


def test_the_tail_of_a_prompt_is_evicted_before_its_head():
    cache = KvCache(3)
    filled(cache, [1, 2, 3])
    cache.release(0, [1, 2, 3])
    assert cache.take(1)
    assert cache.match([1, 2, 3], 9) == 2


def test_the_prompt_released_first_is_evicted_first():
    cache = KvCache(4)
    filled(cache, [1, 2])
    filled(cache, [8, 9])
    cache.release(0, [1, 2])
    cache.release(0, [8, 9])
    assert cache.take(2)
    assert cache.match([1], 9) == 0
    assert cache.match([8, 9], 9) == 2


def test_a_held_block_is_not_evicted():
    cache = KvCache(2)
    filled(cache, [1, 2])
    cache.release(0, [1, 2])
    assert cache.idle_among([1, 2]) == 2
    cache.hold([1])
    assert cache.free == 1
    assert not cache.take(2)
    assert cache.take(1)
    assert cache.match([1], 9) == 1


def test_a_block_held_twice_is_free_after_its_second_release():
    cache = KvCache(2)
    filled(cache, [1])
    cache.hold([1])
    cache.release(0, [1])
    assert cache.free == 1
    cache.release(0, [1])
    assert cache.free == 2


def test_a_second_copy_of_a_block_stays_anonymous():
    cache = KvCache(4)
    filled(cache, [1])
    assert cache.take(1)
    assert not cache.store(1)
    cache.release(1, [])
    cache.release(0, [1])
    assert cache.free == 4
    assert cache.cached == 1


def test_a_block_that_is_not_cached_cannot_be_held():
    with pytest.raises(KeyError):
        KvCache(2).hold([7])


def test_forgetting_drops_what_nobody_holds():
    cache = KvCache(3)
    filled(cache, [1, 2])
    cache.release(0, [2])
    cache.forget()
    assert cache.match([1], 9) == 1
    assert cache.match([2], 9) == 0
    assert cache.free == 2


@given(st.lists(st.lists(st.integers(0, 12), max_size=5, unique=True), max_size=20), st.integers(1, 12))
def test_every_block_comes_back_whatever_was_held_and_evicted(prompts, blocks):
    cache = KvCache(blocks)
    running = []
    for number, hashes in enumerate(prompts):
        found = cache.match(hashes, len(hashes))
        need = len(hashes) - found + cache.idle_among(hashes[:found])
        if need <= cache.free:
            cache.hold(hashes[:found])
            assert cache.take(len(hashes) - found)
            stored = [key for key in hashes[found:] if cache.store(key)]
            running.append((len(hashes) - found - len(stored), hashes[:found] + stored))
        if running and number % 2:
            cache.release(*running.pop(0))
        assert 0 <= cache.free <= blocks
    for held in running:
        cache.release(*held)
    assert cache.free == blocks
    assert cache.cached <= blocks
