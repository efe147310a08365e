"""The engine on a clock: tokens come when their step is due, and lateness does not add up."""

from itertools import pairwise

import pytest

from loadgen.sim.driver import Driver
from loadgen.sim.engine import Engine
from loadgen.sim.exposition import Exposition, Life
from loadgen.sim.nouns import EngineProfile, EngineRequest

STEP_S = 0.02


class Heard:
    """Writes down when its tokens came."""

    def __init__(self, clock):
        self.clock = clock
        self.tokens = []
        self.cached = None
        self.ended = False
        self.finish_reason = "length"

    def admitted(self, cached_tokens):
        self.cached = cached_tokens

    def token(self, *, last):
        self.tokens.append(self.clock[0])
        self.ended = last


class Bench:
    """A driver, its engine, and a clock that only moves when told."""

    def __init__(self, speed=1.0, early_s=0.0, **flags):
        numbers = {"a": STEP_S, "b": 0.0, "c": 0.001, "d": 0.0, "e": 0.0, "kv_blocks": 100, "block_size": 4}
        self.engine = Engine(EngineProfile("bench", **{**numbers, **flags}))
        self.exposition = Exposition(self.engine.profile, "m", self.engine.counters)
        self.driver = Driver(self.engine, self.exposition, speed, early_s)
        self.clock = [0.0]

    def submit(self, number, prompt, output, hashes=None):
        heard = Heard(self.clock)
        request = EngineRequest(number, prompt, output, hashes)
        life = Life(prompt, output, output, 1, self.clock[0])
        self.driver.submit(self.clock[0], request, life, heard)
        return heard

    def run_until(self, end):
        """Advance exactly at every due time up to `end`."""
        while (due := self.driver.advance(self.clock[0])) is not None and due <= end:
            self.clock[0] = due
        self.clock[0] = end

    def sample(self, name):
        return self.exposition._registry.get_sample_value(name, {"model_name": "m", "engine": "0"})

    def lateness(self):
        return self.exposition._registry.get_sample_value("lanewise_sim_lateness_seconds_sum")


def test_a_token_comes_at_the_end_of_its_step():
    bench = Bench()
    heard = bench.submit(1, prompt=10, output=3)
    bench.run_until(1.0)
    assert heard.tokens == pytest.approx([0.03, 0.05, 0.07])
    assert heard.ended


def test_a_faster_engine_divides_every_step():
    bench = Bench(speed=10)
    heard = bench.submit(1, prompt=10, output=3)
    bench.run_until(1.0)
    assert heard.tokens == pytest.approx([0.003, 0.005, 0.007])


def test_nothing_is_delivered_before_it_is_due():
    bench = Bench()
    heard = bench.submit(1, prompt=10, output=2)
    assert bench.driver.advance(0.0) == pytest.approx(0.03)
    bench.driver.advance(0.0299)
    assert not heard.tokens
    bench.driver.advance(0.03)
    assert len(heard.tokens) == 1


def test_a_late_loop_catches_up_and_the_schedule_does_not_move():
    bench = Bench()
    heard = bench.submit(1, prompt=10, output=10)
    bench.driver.advance(0.0)
    bench.clock[0] = 0.1
    due = bench.driver.advance(0.1)
    assert len(heard.tokens) == 4
    assert due == pytest.approx(0.11)
    assert bench.lateness() == pytest.approx(0.07 + 0.05 + 0.03 + 0.01)


def test_a_timer_that_fires_a_little_early_is_good_enough():
    bench = Bench(early_s=0.0005)
    heard = bench.submit(1, prompt=10, output=1)
    bench.driver.advance(0.0)
    assert bench.driver.advance(0.0296) is None
    assert heard.ended
    assert bench.lateness() == 0


def test_an_aborted_sequence_hears_nothing_more_and_leaves_at_the_next_step():
    bench = Bench()
    gone, stays = bench.submit(1, prompt=10, output=50), bench.submit(2, prompt=10, output=50)
    bench.run_until(0.1)
    before = len(gone.tokens)
    bench.driver.abort(1)
    assert bench.driver.in_flight == 1
    bench.run_until(0.2)
    assert len(gone.tokens) == before
    assert len(stays.tokens) > before
    assert bench.engine.counters.aborted == 1
    assert bench.exposition.gauges.running == 1


def test_after_the_last_abort_the_engine_is_idle_again():
    bench = Bench()
    bench.submit(1, prompt=10, output=50)
    bench.run_until(0.1)
    bench.driver.abort(1)
    bench.run_until(0.2)
    assert bench.driver.advance(0.3) is None
    assert bench.exposition.gauges.running == 0
    heard = bench.submit(2, prompt=10, output=1)
    bench.run_until(0.5)
    assert heard.ended


def test_the_prefix_cache_is_reported_to_the_sequence_and_in_the_metrics():
    bench = Bench()
    first = bench.submit(1, prompt=10, output=1, hashes=(11, 12))
    bench.run_until(0.1)
    second = bench.submit(2, prompt=10, output=1, hashes=(11, 12))
    bench.run_until(0.2)
    assert (first.cached, second.cached) == (0, 8)
    assert bench.sample("vllm:prompt_tokens_cached_total") == 8
    assert bench.sample("vllm:prefix_cache_hits_total") == 8


def test_the_histograms_say_what_the_clock_saw():
    bench = Bench()
    bench.submit(1, prompt=10, output=5)
    bench.submit(2, prompt=10, output=5)
    bench.run_until(1.0)
    assert bench.sample("vllm:time_to_first_token_seconds_sum") == pytest.approx(2 * 0.04)
    assert bench.sample("vllm:inter_token_latency_seconds_count") == 8
    assert bench.sample("vllm:inter_token_latency_seconds_sum") == pytest.approx(8 * STEP_S)
    assert bench.sample("vllm:e2e_request_latency_seconds_sum") == pytest.approx(2 * (0.04 + 4 * STEP_S))
    assert bench.sample("vllm:request_time_per_output_token_seconds_sum") == pytest.approx(2 * STEP_S)
    assert bench.sample("vllm:generation_tokens_total") == 10


def test_waiting_shows_as_queue_time():
    bench = Bench(max_num_seqs=1)
    bench.submit(1, prompt=10, output=3)
    bench.submit(2, prompt=10, output=1)
    bench.run_until(1.0)
    assert bench.sample("vllm:request_queue_time_seconds_sum") == pytest.approx(0.07)


def test_a_preempted_sequence_goes_on_and_its_gap_is_counted_whole():
    bench = Bench(kv_blocks=7)
    first, second = bench.submit(1, prompt=8, output=8), bench.submit(2, prompt=8, output=8)
    bench.run_until(2.0)
    assert len(first.tokens) == len(second.tokens) == 8
    assert bench.sample("vllm:num_preemptions_total") >= 1
    assert bench.sample("vllm:request_num_preemptions_sum") >= 1
    gaps = [after - before for heard in (first, second) for before, after in pairwise(heard.tokens)]
    assert bench.sample("vllm:inter_token_latency_seconds_sum") == pytest.approx(sum(gaps))
