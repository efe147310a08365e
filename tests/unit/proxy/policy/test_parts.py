"""The steps between two parts, seen from the Dispatcher that calls them."""

import pytest


def test_after_a_part_the_ticket_waits_holding_only_its_place_at_the_engine(desk, parts):
    d = desk(installments=parts)
    d.offer(8000, splittable=True)
    d.offer(100)
    d.now = 1.0
    d.part_ended(1, 0)
    assert (d.backend().in_flight, d.backend().started, d.lane(1).parked) == (1, 1, 1)
    d.now = 2.0
    d.wake()
    assert [grant.part for grant in d.grants if grant.ticket.id == 1] == [0, 1]


def test_after_a_failed_part_the_rest_goes_whole(desk, parts):
    d = desk(installments=parts)
    d.offer(8000, splittable=True)
    d.part_failed(1)
    assert (d.grants[-1].final, d.grants[-1].part, d.grants[-1].upto_tokens) == (True, 1, 8000)


def test_a_part_that_broke_its_backend_starts_anew_on_another_once_and_then_goes_whole(desk, parts):
    d = desk(2, installments=parts)
    d.offer(8000, splittable=True)
    first = d.grants[-1].backend
    d.part_ended(1, 0)
    d.keep(d.dispatcher.part_failed(d.now, 1, broken=True))
    other = d.grants[-1]
    assert (other.backend != first, other.part, other.final) == (True, 0, False)
    assert [state.started for state in d.see().backends if state.name == first] == [None]
    d.keep(d.dispatcher.part_failed(d.now, 1, broken=True))
    assert (d.grants[-1].backend, d.grants[-1].final) == (other.backend, True)


def test_a_part_that_broke_the_only_backend_leaves_the_rest_to_it(desk, parts):
    d = desk(installments=parts)
    d.offer(8000, splittable=True)
    d.keep(d.dispatcher.part_failed(d.now, 1, broken=True))
    assert (d.grants[-1].final, d.grants[-1].part, d.grants[-1].upto_tokens) == (True, 1, 8000)


def test_a_miss_charges_again_what_the_cache_lost(desk, parts):
    d = desk(installments=parts)
    d.offer(8000, splittable=True)
    first = d.grants[0].upto_tokens
    d.part_ended(1, 0)
    assert d.grants[-1].upto_tokens == 2 * first
    d.part_ended(1, 0)
    assert (d.grants[-1].final, d.backend().prefill_tokens) == (True, 8000 - first)


def test_an_engine_that_lost_its_cache_starts_the_parked_prompt_anew(desk, parts):
    d = desk(installments=parts)
    d.offer(8000, splittable=True)
    d.offer(100)
    d.now = 1.0
    d.part_ended(1, 0)
    d.keep(d.dispatcher.set_prefix_cache(d.now, "a", enabled=True, granularity=16))
    assert [grant.part for grant in d.grants if grant.ticket.id == 1] == [0, 0]


@pytest.mark.parametrize("event", ["part_ended", "part_failed"])
def test_a_ticket_without_a_part_in_flight_is_an_error_that_says_where_it_stands(desk, event):
    d = desk()
    d.offer(100)
    with pytest.raises(ValueError, match=f"{event} cannot happen to ticket 1, which is prefill"):
        getattr(d, event)(1)
