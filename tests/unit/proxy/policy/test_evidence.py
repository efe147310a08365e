"""What a part found, read from the engine's counter or from the clock."""

import pytest

from proxy.policy.evidence import PartClock, found_by_counter


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [(0, 1024, 1024), (500, 1524, 1024), (500, 9000, 1024), (500, 600, 100), (500, 500, 0)],
)
def test_the_counter_shows_what_was_found_and_never_more_than_was_sent(before, after, found):
    assert found_by_counter(1024, before, after) == found


@pytest.mark.parametrize(("before", "after"), [(None, 5.0), (5.0, None), (5.0, 4.0)])
def test_without_two_readings_of_one_process_the_counter_says_nothing(before, after):
    assert found_by_counter(1024, before, after) is None


def engine(found, tokens, done, *, c=1e-4, e=5e-9, a=0.02):
    """Seconds of a part: a step, and every computed token with its context."""
    computed = done + tokens - found
    return a + c * computed + e * computed * (done + tokens - computed / 2)


@pytest.mark.parametrize("k", [512, 1024, 1536])
def test_the_clock_tells_a_cache_that_works_from_none_over_a_whole_prompt(k):
    works, fails = PartClock(), PartClock()
    works.found(0, k, engine(0, k, 0), alone=True)
    fails.found(0, k, engine(0, k, 0), alone=True)
    for part in range(1, 16):
        done = part * k
        hit = works.found(done, k, engine(done, k, done), alone=True)
        assert hit is not None and hit > 0.5 * done
        miss = fails.found(done, k, engine(0, k, done), alone=True)
        assert miss is None if part == 1 else miss < 0.3 * done


def test_one_slow_part_is_no_verdict_and_a_fast_one_forgives_it():
    clock = PartClock()
    clock.found(0, 1000, 0.1, alone=True)
    assert clock.found(1000, 1000, 0.25, alone=True) is None
    assert clock.found(2000, 1000, 0.11, alone=True) == 1900
    assert clock.found(3000, 1000, 0.4, alone=True) is None
    assert clock.found(4000, 1000, 0.5, alone=True) == 0


def test_a_part_beside_others_says_nothing_nor_does_one_without_a_pace():
    clock = PartClock()
    clock.found(0, 1000, 0.1, alone=False)
    assert clock.found(1000, 1000, 0.1, alone=True) is None
    clock.found(0, 1000, 0.009, alone=True)
    assert clock.found(1000, 1000, 9.9, alone=True) is None
    clock.found(0, 1000, 0.1, alone=True)
    assert clock.found(1000, 1000, 9.9, alone=False) is None
    assert clock.found(1000, 1000, 0.0, alone=True) is None
