from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.certify import LEAST_SHOTS, LONGEST_GAP_S, MOST_SHOTS, WARM_UP_S, busiest, measured_shots
from loadgen.options import ReplayOptions
from loadgen.plan import Window, make_plan
from loadgen.tracefile.row import Row


def test_the_busiest_stretch_is_the_one_with_most_shots():
    due = np.array([0, 10, 20, 21, 22, 23, 40, 41], dtype=np.int64)
    assert busiest(due, 3) == (2, 6)


def test_no_more_shots_are_taken_than_a_short_certificate_needs():
    assert busiest(np.zeros(3 * MOST_SHOTS, dtype=np.int64), 5) == (0, MOST_SHOTS)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=50), st.integers(0, 10**5))
def test_no_other_stretch_of_that_length_holds_more(dues, window):
    due = np.array(sorted(dues), dtype=np.int64)
    first, end = busiest(due, window)
    assert due[end - 1] - due[first] <= window
    assert end - first == max(int(((due >= at) & (due <= at + window)).sum()) for at in due)


def measured(times_s, workers=1, **more):
    rows = [Row(number + 1, round(at * 1e9), 100 + number, 5) for number, at in enumerate(times_s)]
    options = ReplayOptions(target="http://127.0.0.1:1", out=Path("run"), **more)
    return measured_shots(make_plan(rows, Window(), border=2048, dequantise_seed=None), options, workers)


def test_the_first_shot_is_sent_before_the_others_and_again_in_its_place():
    shots = measured([0.01 * number for number in range(100)])
    assert [shot.index for shot in shots] == list(range(101))
    assert [shot.prompt_tokens for shot in shots[:3]] == [100, 100, 101]
    assert [shot.due_s for shot in shots[:3]] == pytest.approx([0.0, WARM_UP_S, WARM_UP_S + 0.01])


@pytest.mark.parametrize("speed", [1.0, 4.0])
def test_a_slow_plan_is_measured_with_enough_shots_that_wait_no_longer_than_they_must(speed):
    shots = measured([60.0 * number for number in range(9)], speed=speed)
    assert len(shots) == 1 + LEAST_SHOTS
    gaps = [(after.due_s - before.due_s) / speed for before, after in pairwise(shots[1:])]
    assert gaps == pytest.approx([LONGEST_GAP_S] * (LEAST_SHOTS - 1))


def test_a_worker_is_measured_with_its_own_share_of_the_stretch():
    assert len(measured([0.01 * number for number in range(100)], workers=4)) == 1 + 25
    assert len(measured([60.0 * number for number in range(100)], workers=4)) == 1 + LEAST_SHOTS
