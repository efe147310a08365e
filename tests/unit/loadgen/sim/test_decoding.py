"""Decoding sequences as two sums and a calendar."""

from loadgen.sim.decoding import Decoding
from loadgen.sim.jobs import Job
from loadgen.sim.nouns import EngineRequest


def prefilled(prompt, output, blocks):
    job = Job(EngineRequest("r", prompt, output), 1)
    job.computed, job.generated, job.blocks = prompt, 1, blocks
    return job


def test_a_sequence_finishes_in_the_step_of_its_last_token():
    decoding = Decoding(block_size=16)
    job = prefilled(10, 4, 1)
    decoding.join(job, 5)
    assert [number for number in range(5, 12) if decoding.finishing(number)] == [7]


def test_a_sequence_needs_a_block_when_its_context_fills_the_last_one():
    decoding = Decoding(block_size=16)
    job = prefilled(10, 40, 1)
    decoding.join(job, 5)
    assert job.context(11) == 16
    assert [number for number in range(5, 20) if decoding.growing(number)] == [11]


def test_a_sequence_that_ends_before_needs_no_block():
    decoding = Decoding(block_size=16)
    decoding.join(prefilled(10, 7, 1), 5)
    assert not any(decoding.growing(number) for number in range(5, 20))


def test_contexts_grow_by_one_token_per_sequence_and_leave_with_it():
    decoding = Decoding(block_size=16)
    first, second = prefilled(10, 9, 1), prefilled(30, 9, 2)
    decoding.join(first, 1)
    decoding.join(second, 1)
    decoding.advance(2)
    assert decoding.context == 42
    decoding.leave(first, 2)
    assert (decoding.count, decoding.context) == (1, 31)


def test_what_is_left_over_from_an_earlier_stay_does_not_count():
    decoding = Decoding(block_size=16)
    job = prefilled(10, 40, 1)
    decoding.join(job, 5)
    decoding.leave(job, 6)
    assert not decoding.growing(11)
    assert not decoding.finishing(43)
