"""Shares of a plan, and readings of a clock that is not one's own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.failure import UsageError
from loadgen.shards.nouns import ClockReading, Shard, best, read_shard


@pytest.mark.parametrize(("text", "shard"), [("0/1", Shard(0, 1)), ("0/4", Shard(0, 4)), ("3/4", Shard(3, 4))])
def test_a_shard_is_read(text, shard):
    assert read_shard(text) == shard
    assert str(shard) == text


@pytest.mark.parametrize("text", ["4/4", "1", "/", "-1/4", "1/0", "a/b", "1/4 ", "1/2/3", ""])
def test_what_is_no_shard_is_refused_with_the_form_that_is_allowed(text):
    with pytest.raises(UsageError, match="INDEX/COUNT"):
        read_shard(text)


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 200))
def test_the_workers_of_all_shards_together_own_every_shot_once(of, workers, shot):
    parts = [Shard(index, of).part(worker, workers) for index in range(of) for worker in range(workers)]
    assert sorted(part for part, _ in parts) == list(range(of * workers))
    assert {count for _, count in parts} == {of * workers}
    owner = [part for part, count in parts if shot % count == part]
    assert len(owner) == 1
    assert owner[0] % of == shot % of, "a worker sends of its own shard"


@given(st.floats(-1e3, 1e3), st.floats(0, 0.5), st.floats(0, 1))
def test_a_reading_is_wrong_by_at_most_half_its_round_trip(offset, trip, share):
    """`share` of the round trip passes before the clock is read."""
    asked, common = 100.0, 5_000.0
    reading = ClockReading(asked, asked + trip, common + offset - share * trip + trip / 2, common)
    truth = asked + share * trip
    assert abs(reading.monotonic_at(common) - truth) <= trip / 2 + 1e-9
    facts = reading.facts()
    assert abs(facts["offset_s"] - offset) <= facts["within_s"] + 2e-6


def test_the_quickest_reading_is_the_best_one():
    slow, quick = ClockReading(0.0, 0.2, 1.0, 2.0), ClockReading(5.0, 5.001, 6.0, 7.0)
    assert best([slow, quick, slow]) is quick
