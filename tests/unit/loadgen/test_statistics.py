"""Intervals hold together, know that neighbours share their luck, and are silent where they know nothing."""

import numpy as np
import pytest

from loadgen.statistics import Contrast, intervals

RNG = np.random.default_rng


def one(before, after, *shares, family=True):
    return Contrast((before,), (after,), shares or (0.5,), family)


def test_a_shift_of_every_row_is_found_with_its_size():
    before = RNG(1).exponential(1.0, 500)
    (((found),),) = intervals([one(before, before + 0.1)], seed=1)
    assert found.difference == pytest.approx(0.1)
    assert found.low - 1e-9 <= 0.1 <= found.high + 1e-9
    assert found.pairs == 500


def test_equal_runs_differ_by_nothing():
    values = RNG(1).exponential(1.0, 500)
    ((median, tail),) = intervals([one(values, values, 0.5, 0.99)], seed=1)
    assert (median.difference, median.low, median.high) == (0, 0, 0)
    assert (tail.low, tail.high) == (0, 0)


def test_too_few_rows_beyond_a_quantile_have_no_interval():
    values = RNG(1).exponential(1.0, 200)
    ((median, tail),) = intervals([one(values, values + 1, 0.5, 0.99)], seed=1)
    assert median.low is not None
    assert (tail.low, tail.high, tail.difference) == (None, None, 1.0)


def test_a_tail_that_is_one_event_has_no_interval():
    values = np.linspace(0.1, 0.2, 1000)
    values[300:320] = 5.0  # one burst: ten or more rows, one witness
    shuffled = values + RNG(2).normal(0, 0.001, 1000)
    burst = np.where(np.arange(1000) // 100 == 3, 1.0, 0.0) * RNG(3).normal(1, 0.1, 1000)
    ((tail,),) = intervals([one(shuffled, shuffled + burst, 0.99)], seed=1)
    assert tail.low is None


def test_rows_that_do_not_count_in_every_run_are_left_out():
    before, after = np.arange(100.0), np.arange(100.0)
    after[::2] = np.nan
    ((found,),) = intervals([one(before, after)], seed=1)
    assert found.pairs == 50


def test_no_row_at_all_says_nothing():
    nothing = np.full(10, np.nan)
    ((found,),) = intervals([one(nothing, nothing)], seed=1)
    assert (found.low, found.pairs) == (None, 0)
    assert np.isnan(found.difference)


def test_the_mean_of_a_share_is_compared_too():
    before, after = np.repeat([0.0, 1.0], 200), np.repeat([0.0, 1.0], [100, 300])
    ((found,),) = intervals([Contrast((before,), (after,), (None,))], seed=1)
    assert found.difference == pytest.approx(0.25)
    assert found.low > 0


def test_repeats_are_averaged():
    before = RNG(1).exponential(1.0, 400)
    ((found,),) = intervals([Contrast((before - 0.1, before + 0.1), (before + 0.5,), (0.5,))], seed=1)
    assert found.difference == pytest.approx(0.5)


def test_neighbours_that_share_their_luck_widen_the_interval():
    def width(noise):
        base = RNG(0).exponential(1.0, 2000)
        ((found,),) = intervals([one(base, base + noise, None)], seed=1)
        return found.high - found.low

    alone = RNG(1).normal(0, 1, 2000)
    together = np.repeat(RNG(2).normal(0, 1, 40), 50)
    assert width(together) > 3 * width(alone)


def test_a_family_misses_together_no_more_often_than_one_alone_would():
    """Twelve noisy numbers, nothing changed: together they cry wolf in about one of twenty comparisons."""
    wolves = {True: 0, False: 0}
    for seed in range(30):
        draw = RNG(seed)
        pairs = [(draw.normal(0, 1, 150), draw.normal(0, 1, 150)) for _ in range(12)]
        for family in wolves:
            found = intervals([one(a, b, None, family=family) for a, b in pairs], seed=1)
            wolves[family] += any(not each.low <= 0 <= each.high for (each,) in found)
    assert wolves[True] <= 5
    assert wolves[False] >= 9
