"""Where a ticket waits, by the models that backends serve."""

from proxy.policy.backend import Backend
from proxy.policy.lane import Lane
from proxy.policy.limits import BackendLimits, LaneLimits, Scheduling
from proxy.policy.pools import Pools
from proxy.policy.ticket import Ticket

LANES = (LaneLimits("short", 2048, 1.0, 9, 9, 9), LaneLimits("long", None, 1.0, 9, 9, 9))


def pools(**models):
    backends = [
        Backend(BackendLimits(name, 1, None if served is None else frozenset(served)), 2)
        for name, served in models.items()
    ]
    return Pools([Lane(index, Scheduling(LANES)) for index in range(2)], backends)


def names(found, model, lane=0):
    return [backend.name for backend in found.queue_for(Ticket(1, lane, 1, 1, model=model)).pool]


def test_backends_without_a_list_are_one_pool_for_every_model():
    found = pools(a=None, b=None)
    assert names(found, "x") == names(found, None) == ["a", "b"]
    assert len(found.queues) == 2


def test_a_model_waits_for_the_backends_that_serve_it():
    found = pools(a={"m"}, b={"m", "n"}, c=None)
    assert names(found, "m") == ["a", "b", "c"]
    assert names(found, "n") == ["b", "c"]


def test_an_unknown_model_goes_to_backends_without_a_list_or_else_to_any():
    assert names(pools(a={"m"}, b=None), "x") == ["b"]
    assert names(pools(a={"m"}, b={"n"}), "x") == ["a", "b"]


def test_models_served_by_the_same_backends_wait_in_one_queue():
    found = pools(a={"m", "n"}, b={"m", "n"})
    assert found.queue_for(Ticket(1, 0, 1, 1, model="m")) is found.queue_for(Ticket(2, 0, 1, 1, model="n"))


def test_queues_that_share_a_backend_are_rivals():
    found = pools(a={"m"}, b={"n"})
    short, long = (found.queue_for(Ticket(1, lane, 1, 1, model="m")) for lane in (0, 1))
    other = found.queue_for(Ticket(1, 0, 1, 1, model="n"))
    assert short in long.rivals
    assert other not in short.rivals
    assert found.queue_for(Ticket(1, 0, 1, 1)) in other.rivals


def test_without_backends_there_are_still_queues():
    assert names(pools(), "m") == []
