"""How the backends stood when a ticket got its grant."""

import pytest

from proxy.policy.dispatch import Dispatcher
from proxy.policy.limits import BackendLimits, LaneLimits, Scheduling
from proxy.policy.standing import LISTED_AT_MOST
from proxy.policy.ticket import Ticket

LANES = (LaneLimits("short", 2048, 1.0, 100, 10**6, 10**6), LaneLimits("long", None, 5.0, 100, 10**7, 10**6))


def dispatcher(*names, cap=4):
    return Dispatcher(Scheduling(LANES), [BackendLimits(name, cap) for name in names])


def ticket(number, tokens=100):
    return Ticket(number, 0, tokens, 50)


def test_the_chosen_one_is_seen_as_it_was_before_the_ticket():
    one = dispatcher("a")
    one.offer(0.0, ticket(1))
    one.offer(0.0, ticket(2, 300))
    seen = one.standing(2)
    assert (seen.chosen.name, seen.chosen.in_flight, seen.chosen.cap, seen.chosen.prefill_tokens) == ("a", 1, 4, 100)
    assert (seen.others, seen.more, seen.budget_tokens, seen.kept) == ((), 0, 2048, False)


def test_the_chosen_one_had_the_least_outstanding_work():
    one = dispatcher("a", "b")
    one.offer(0.0, ticket(1, 900))
    one.offer(0.0, ticket(2))
    seen = one.standing(2)
    assert (seen.chosen.name, [other.name for other in seen.others]) == ("b", ["a"])
    assert seen.chosen.work_s < seen.others[0].work_s
    assert seen.chosen.work_s == pytest.approx(100 * seen.prefill_s_per_token)


def test_who_holds_no_grant_has_none():
    one = dispatcher("a", cap=1)
    one.offer(0.0, ticket(1))
    one.offer(0.0, ticket(2))
    assert (one.standing(2), one.standing(3)) == (None, None)


def test_of_many_backends_a_few_are_kept():
    one = dispatcher(*(f"b{number}" for number in range(20)))
    one.offer(0.0, ticket(1))
    seen = one.standing(1)
    assert (len(seen.others), seen.more) == (LISTED_AT_MOST - 1, 20 - LISTED_AT_MOST)
