import logging

import pytest

from proxy.metrics.lag import SAID_EVERY_S, SAID_FROM_S, LoopLag


@pytest.fixture
def lag(caplog):
    caplog.set_level(logging.WARNING, "lanewise")
    return LoopLag()


def test_a_loop_that_stood_still_for_long_is_told_in_the_log(lag, caplog):
    lag.note(0.52, 100.0)
    assert [record.getMessage()[:44] for record in caplog.records] == ["the event loop stood still for 0.52 s, and e"]
    assert lag.histogram.count == 1


def test_usual_lateness_is_only_counted(lag, caplog):
    lag.note(0.9 * SAID_FROM_S, 100.0)
    assert caplog.records == []
    assert lag.histogram.count == 1


def test_a_loop_that_stays_late_does_not_fill_the_log(lag, caplog):
    for second in range(int(2 * SAID_EVERY_S)):
        lag.note(1.0, 100.0 + second)
    assert len(caplog.records) == 2
