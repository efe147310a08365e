"""What a study compares with: no proxy, and static lanes."""

import pytest

from loadgen.sim.front import Lost, Send
from loadgen.sim.policies import Balance, Direct, StaticLanes


def sent(orders):
    return [(order.index, order.backend) for order in orders if isinstance(order, Send)]


def test_direct_sends_at_once_and_whole():
    assert Direct(1).arrive(0.0, 7, 24_000, 10) == (Send(7, 0, 24_000, final=True),)


def test_direct_takes_the_backend_with_the_fewest_in_flight():
    direct = Direct(2)
    first, second = (sent(direct.arrive(0.0, index, 10, 10))[0][1] for index in (0, 1))
    assert {first, second} == {0, 1}
    direct.finished(1.0, 1, 10, 0)
    assert sent(direct.arrive(1.0, 2, 10, 10)) == [(2, second)]


def test_direct_takes_idle_backends_in_turn():
    direct, used = Direct(3), []
    for index in range(3):
        used += sent(direct.arrive(0.0, index, 10, 10))
        direct.gone(0.0, index)
    assert sorted(backend for _, backend in used) == [0, 1, 2]


def test_static_lanes_hold_their_slots_apart():
    lanes = StaticLanes(1, slots=(2, 1), queues=(9, 9))
    assert len(sent(lanes.arrive(0.0, 0, 100, 1))) == 1
    assert len(sent(lanes.arrive(0.0, 1, 100, 1))) == 1
    assert lanes.arrive(0.0, 2, 100, 1) == []
    assert sent(lanes.arrive(0.0, 3, 5000, 1)) == [(3, 0)]
    assert lanes.arrive(0.0, 4, 5000, 1) == []
    assert sent(lanes.finished(1.0, 3, 1, 0)) == [(4, 0)]
    assert sent(lanes.finished(1.0, 0, 1, 0)) == [(2, 0)]


def test_a_full_static_lane_rejects_at_once():
    lanes = StaticLanes(1, slots=(1, 1), queues=(1, 1))
    lanes.arrive(0.0, 0, 100, 1)
    assert lanes.arrive(0.0, 1, 100, 1) == []
    assert lanes.arrive(0.0, 2, 100, 1) == (Lost(2, "rejected", "queue_full"),)


def test_a_client_that_leaves_the_static_queue_leaves_its_place():
    lanes = StaticLanes(1, slots=(1, 1), queues=(1, 1))
    lanes.arrive(0.0, 0, 100, 1)
    lanes.arrive(0.0, 1, 100, 1)
    lanes.gone(1.0, 1)
    assert lanes.arrive(1.0, 2, 100, 1) == []
    assert sent(lanes.finished(2.0, 0, 1, 0)) == [(2, 0)]


@pytest.mark.parametrize("front", [Direct(1), StaticLanes(1, (1, 1), (1, 1))])
def test_nothing_is_ever_due_and_no_part_was_ever_sent(front):
    assert front.next_wake() is None
    assert front.wake(1.0) == ()
    assert front.first_token(1.0, 0) == ()
    with pytest.raises(AssertionError, match="never sent in parts"):
        front.part_ended(1.0, 0, 0)


@pytest.mark.parametrize(
    ("balance", "backends"),
    [
        (Balance.ROUND_ROBIN, [1, 2, 0, 1]),
        (Balance.PARTITION, [0, 2, 1, 0]),
        (Balance.LEAST_WORK, [1, 2, 0, 2]),
        (Balance.LEAST_REQUESTS, [1, 2, 0, 1]),
    ],
)
def test_a_balancer_without_a_queue_chooses_by_its_rule(balance, backends):
    """A long prompt, two short ones, the first of them with a long answer, and one more long."""
    direct = Direct(3, balance)
    lengths = [(9000, 10), (100, 10), (500, 400), (3000, 10)]
    assert [sent(direct.arrive(0.0, index, *both))[0][1] for index, both in enumerate(lengths)] == backends


def test_whoever_ends_gives_back_what_it_weighed():
    direct = Direct(2, Balance.LEAST_WORK)
    first = sent(direct.arrive(0.0, 0, 5000, 1))[0][1]
    sent(direct.arrive(0.0, 1, 100, 1))
    direct.finished(1.0, 0, 1, 0)
    assert sent(direct.arrive(1.0, 2, 10, 1)) == [(2, first)]
