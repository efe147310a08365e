"""Budgets that come back by the clock."""

import pytest

from proxy.policy.job import NEVER, Job, Stage
from proxy.policy.lane import Lane, LaneQueue
from proxy.policy.limits import LaneLimits, Scheduling
from proxy.policy.refunds import Refunds
from proxy.policy.ticket import Ticket


def granted(prefill, ahead=0):
    scheduling = Scheduling((LaneLimits("only", None, 1.0, 9, 9, 9),), prefill_s_per_token=0.001, step_s=0.1)
    job = Job(Ticket(1, 0, prefill, 0, streams=False), LaneQueue(Lane(0, scheduling), []), 0.0)
    job.stage, job.held_prefill, job.ahead = Stage.PREFILL, prefill, ahead
    return job


def test_a_budget_comes_back_after_one_and_a_half_times_the_prefill_ahead_and_its_own():
    refunds = Refunds()
    refunds.add(granted(100, ahead=300), 10.0)
    assert refunds.next() == pytest.approx(10 + 1.5 * 0.4 + 0.1)


def test_each_comes_once_in_order_of_time():
    refunds, late, early = Refunds(), granted(200), granted(100)
    refunds.add(late, 0.0)
    refunds.add(early, 0.0)
    assert refunds.due(0.3) == [early]
    assert refunds.due(9.0) == [late]
    assert refunds.due(9.0) == []
    assert refunds.next() == NEVER


def test_a_grant_that_ended_or_was_made_anew_is_passed_over():
    refunds, ended, again, seen = Refunds(), granted(100), granted(100), granted(100)
    for job in (ended, again, seen):
        refunds.add(job, 0.0)
    ended.refund = 0
    seen.stage = Stage.DECODE
    refunds.add(again, 5.0)
    assert refunds.due(1.0) == []
    assert refunds.next() == pytest.approx(5 + 0.15 + 0.1)
