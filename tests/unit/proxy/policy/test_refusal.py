"""What a refused client is told."""

from proxy.policy import refusal
from proxy.policy.job import Job
from proxy.policy.lane import Lane, LaneQueue
from proxy.policy.limits import LaneLimits, Scheduling
from proxy.policy.outcome import Outcome, Reason
from proxy.policy.ticket import Refuse, Ticket


def job():
    scheduling = Scheduling((LaneLimits("short", None, 2.0, 9, 9, 9),), prefill_s_per_token=0.001)
    return Job(Ticket(1, 0, 300, 0), LaneQueue(Lane(0, scheduling), []), 10.0)


def test_a_rejection_carries_reason_detail_and_retry_after():
    one = job()
    found = refusal.reject(one, 10.0, Reason.QUEUE_FULL, "full")
    assert found == Refuse(one.ticket, Outcome.REJECTED, Reason.QUEUE_FULL, 1.0, "full")
    assert one.queue.lane.rejected == 1


def test_draining_is_an_outcome_of_its_own():
    assert refusal.reject(job(), 10.0, Reason.DRAINING, "bye").outcome is Outcome.DRAINING


def test_an_expiry_says_how_long_it_waited_and_what_it_would_have_needed():
    found = refusal.expire(job(), 11.75)
    assert (found.outcome, found.reason) == (Outcome.EXPIRED, Reason.QUEUE_TIMEOUT)
    assert found.detail == (
        "lane short: waited 1.75 s; the 300 prompt tokens take about 0.30 s, "
        "and the first token is due 2 s after arrival"
    )


def test_a_model_that_nobody_serves_is_named():
    assert refusal.nobody_serves(Ticket(1, 0, 1, 1)) == "no backend is up"
    assert refusal.nobody_serves(Ticket(1, 0, 1, 1, model="m")) == "no backend that serves 'm' is up"
