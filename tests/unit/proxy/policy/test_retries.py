from hypothesis import given
from hypothesis import strategies as st

from proxy.policy.retries import WINDOW_S, RetryBudget


def taken(budget, now, tries):
    return sum(budget.take(now) for _ in range(tries))


def test_a_quiet_proxy_has_its_floor():
    assert taken(RetryBudget(ratio=0.2, floor=3), 0.0, 10) == 3


def test_requests_add_their_share():
    budget = RetryBudget(ratio=0.2, floor=3)
    for _ in range(50):
        budget.request(1.0)
    assert taken(budget, 1.0, 100) == 13


def test_the_budget_is_there_again_when_its_window_has_passed():
    budget = RetryBudget(ratio=0.0, floor=2)
    assert taken(budget, 0.0, 5) == 2
    assert taken(budget, WINDOW_S / 2, 5) == 0
    assert taken(budget, WINDOW_S + 1.0, 5) == 2


def test_a_budget_of_nothing_allows_nothing():
    budget = RetryBudget(ratio=0.0, floor=0)
    budget.request(0.0)
    assert not budget.take(0.0)


def test_other_limits_count_what_was_taken_before():
    budget = RetryBudget(ratio=0.0, floor=2)
    taken(budget, 0.0, 2)
    budget.configure(0.0, 3)
    assert taken(budget, 0.0, 5) == 1
    assert repr(budget) == "<RetryBudget 0 of requests and 3>"


@given(st.lists(st.tuples(st.floats(0, 2), st.booleans()), max_size=200), st.floats(0, 1), st.integers(0, 5))
def test_it_never_gives_more_than_its_floor_and_its_share(steps, ratio, floor):
    budget, now, events = RetryBudget(ratio, floor), 0.0, []
    for gap, is_request in steps:
        now += gap
        if is_request:
            budget.request(now)
            events.append((now, "request"))
        elif budget.take(now):
            events.append((now, "retry"))
    requests = sum(1 for at, what in events if what == "request" and at > now - WINDOW_S - 1)
    retries = sum(1 for at, what in events if what == "retry" and at > now - WINDOW_S)
    earlier = sum(1 for _, what in events if what == "request")
    assert retries <= floor + ratio * max(requests, earlier)
