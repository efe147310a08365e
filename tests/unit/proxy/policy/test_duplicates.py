"""Identical requests in flight."""

from proxy.policy.duplicates import InFlight


def test_a_second_identical_request_learns_the_id_of_the_first():
    flight = InFlight()
    assert flight.enter(b"same", "first") is None
    assert flight.enter(b"other", "elsewhere") is None
    assert flight.enter(b"same", "second") == "first"


def test_when_the_first_has_ended_the_next_is_no_duplicate():
    flight = InFlight()
    flight.enter(b"same", "first")
    flight.leave(b"same", "first")
    assert flight.enter(b"same", "second") is None


def test_the_end_of_a_duplicate_leaves_the_first_where_it_is():
    flight = InFlight()
    flight.enter(b"same", "first")
    flight.leave(b"same", "second")
    assert flight.enter(b"same", "third") == "first"


def test_what_is_over_the_bound_passes_unseen_and_leaves_nothing():
    flight = InFlight(at_most=1)
    flight.enter(b"one", "1")
    assert flight.enter(b"two", "2") is None
    assert flight.enter(b"two", "3") is None
    for fingerprint, name in ((b"one", "1"), (b"two", "2"), (b"two", "3")):
        flight.leave(fingerprint, name)
    assert len(flight) == 0
    assert repr(flight) == "<InFlight 0 of 1>"
