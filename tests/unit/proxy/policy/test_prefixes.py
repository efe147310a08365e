from hypothesis import given
from hypothesis import strategies as st

from proxy.policy.prefixes import MARKS_WITHOUT_SIZE, TOKENS_PER_MARK, Prefix, PrefixMemory


def prefix(*marks, tokens=100.0):
    return Prefix(marks, tokens)


def test_what_was_sent_is_found_as_far_as_it_is_the_same_from_the_start():
    memory = PrefixMemory()
    memory.note(prefix(1, 2, 3))
    assert memory.cached_tokens(prefix(1, 2, 3, 4)) == 300.0
    assert memory.cached_tokens(prefix(1, 9, 3)) == 100.0
    assert memory.cached_tokens(prefix(9, 2, 3)) == 0.0
    assert memory.cached_tokens(prefix()) == 0.0


def test_when_it_is_full_the_least_recently_sent_goes_first_and_the_end_before_the_beginning():
    memory = PrefixMemory(4 * TOKENS_PER_MARK)
    memory.note(prefix(1, 2, 3))
    memory.note(prefix(7, 8))
    assert memory.cached_tokens(prefix(1, 2, 3)) == 200.0
    assert memory.cached_tokens(prefix(7, 8)) == 200.0
    memory.note(prefix(1, 2, 3))
    assert memory.cached_tokens(prefix(7, 8)) == 100.0
    assert len(memory) == 4


def test_it_shrinks_with_the_cache_it_stands_for_and_can_be_cleared():
    memory = PrefixMemory()
    memory.note(prefix(*range(100)))
    memory.resize(10 * TOKENS_PER_MARK)
    assert len(memory) == 10
    memory.clear()
    assert repr(memory) == "<PrefixMemory 0 of 10 marks>"


@given(st.lists(st.lists(st.integers(0, 9), max_size=8, unique=True)), st.integers(0, 6))
def test_its_size_is_bounded_whatever_is_sent(prompts, marks):
    memory = PrefixMemory(marks * TOKENS_PER_MARK)
    for one in prompts:
        memory.note(prefix(*one))
        assert len(memory) <= max(1, marks) <= MARKS_WITHOUT_SIZE
