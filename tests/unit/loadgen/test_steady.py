"""What of a closed loop counts."""

import numpy as np

from loadgen.columns import columns_of
from loadgen.result import Result
from loadgen.steady import full


def shot(index, sent, end, outcome="ok"):
    return Result(index, index, "short", 8, 4, due=0.0, outcome=outcome, sent=sent, end=end)


def test_the_first_wave_and_what_outlasts_the_last_send_do_not_count():
    columns = columns_of(
        [shot(0, 0.0, 1.0), shot(1, 0.0, 2.0), shot(2, 1.0, 3.0), shot(3, 2.0, 4.0), shot(4, 3.5, 5.0)]
    )
    assert full(columns, 2).tolist() == [False, False, True, False, False]
    assert full(columns, 0).tolist() == [True, True, True, False, False]


def test_a_failure_in_the_middle_counts():
    columns = columns_of([shot(0, 0.0, 1.0), shot(1, 1.0, 1.1, "error"), shot(2, 1.1, 2.0), shot(3, 2.0, 3.0)])
    kept = columns.where(full(columns, 1))
    assert kept.index.tolist() == [1, 2]
    assert kept.outcome.tolist() == ["error", "ok"]
    assert len(kept.events) == 2


def test_where_nothing_was_sent_nothing_is_full():
    columns = columns_of([shot(0, None, None, "cancelled"), shot(1, None, None, "cancelled")])
    assert not full(columns, 0).any()
    assert np.isnan(columns.sent).all()
