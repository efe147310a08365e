"""Identical requests in flight."""

from proxy.policy.duplicates import InFlight

FIRST, SECOND, THIRD = object(), object(), object()


def test_a_second_identical_request_learns_the_id_of_the_first():
    flight = InFlight()
    assert flight.enter(b"same", "first", FIRST) is None
    assert flight.enter(b"other", "elsewhere", THIRD) is None
    assert flight.enter(b"same", "second", SECOND) == "first"


def test_when_the_first_has_ended_the_next_is_no_duplicate():
    flight = InFlight()
    flight.enter(b"same", "first", FIRST)
    flight.leave(b"same", FIRST)
    assert flight.enter(b"same", "second", SECOND) is None


def test_the_end_of_a_duplicate_leaves_the_first_where_it_is_also_when_both_have_one_id():
    flight = InFlight()
    flight.enter(b"same", "id", FIRST)
    assert flight.enter(b"same", "id", SECOND) == "id"
    flight.leave(b"same", SECOND)
    assert flight.enter(b"same", "id", THIRD) == "id"


def test_what_is_over_the_bound_passes_unseen_and_leaves_nothing():
    flight = InFlight(at_most=1)
    flight.enter(b"one", "1", FIRST)
    assert flight.enter(b"two", "2", SECOND) is None
    assert flight.enter(b"two", "3", THIRD) is None
    for fingerprint, owner in ((b"one", FIRST), (b"two", SECOND), (b"two", THIRD)):
        flight.leave(fingerprint, owner)
    assert len(flight) == 0
    assert repr(flight) == "<InFlight 0 of 1>"


def test_one_that_passed_unseen_takes_nobody_elses_place():
    flight = InFlight(at_most=1)
    flight.enter(b"one", "1", FIRST)
    flight.enter(b"two", "2", SECOND)
    flight.leave(b"one", FIRST)
    flight.enter(b"two", "2", THIRD)
    flight.leave(b"two", SECOND)
    assert flight.enter(b"two", "4", object()) == "2"
