"""The engine's own waiting queue."""

import pytest

from loadgen.sim.jobs import Job, Stage, WaitingQueue
from loadgen.sim.nouns import EngineRequest, SchedulingPolicy


def jobs(*priorities):
    return [Job(EngineRequest(f"r{n}", 10, 1, priority=p), n) for n, p in enumerate(priorities)]


def drained(queue):
    order = []
    while (job := queue.head()) is not None:
        order.append(job.request.id)
        queue.leave(job, Stage.PREFILL)
    return order


def test_the_first_to_come_is_the_first_to_go():
    queue = WaitingQueue(SchedulingPolicy.FCFS)
    for job in jobs(2, 0, 1):
        queue.push(job)
    assert len(queue) == 3
    assert drained(queue) == ["r0", "r1", "r2"]
    assert not queue


def test_a_smaller_priority_goes_first_and_then_the_earlier():
    queue = WaitingQueue(SchedulingPolicy.PRIORITY)
    for job in jobs(2, 0, 1, 0):
        queue.push(job)
    assert drained(queue) == ["r1", "r3", "r2", "r0"]


def test_a_preempted_job_waits_at_the_front():
    queue = WaitingQueue(SchedulingPolicy.FCFS)
    first, second = jobs(0, 0)
    queue.push(first)
    queue.push(second, front=True)
    assert drained(queue) == ["r1", "r0"]


@pytest.mark.parametrize("policy", list(SchedulingPolicy))
def test_an_aborted_job_is_passed_over(policy):
    queue = WaitingQueue(policy)
    all_jobs = jobs(0, 0, 0)
    for job in all_jobs:
        queue.push(job)
    queue.leave(all_jobs[1], Stage.GONE)
    assert len(queue) == 2
    assert [job.request.id for job in queue] == ["r0", "r2"]
    assert drained(queue) == ["r0", "r2"]


@pytest.mark.parametrize("policy", list(SchedulingPolicy))
def test_a_job_that_left_from_the_middle_waits_once_when_it_comes_back(policy):
    queue = WaitingQueue(policy)
    all_jobs = jobs(0, 0, 0)
    for job in all_jobs:
        queue.push(job)
    queue.leave(all_jobs[1], Stage.PREFILL)
    queue.push(all_jobs[1], front=True)
    assert len(queue) == 3
    assert sorted(drained(queue)) == ["r0", "r1", "r2"]
