"""The text of /metrics: names, buckets and totals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from loadgen.sim.exposition import Exposition, Life, Tally
from loadgen.sim.nouns import Counters, EngineProfile, Gauges, Step

PROFILE = EngineProfile("p", a=0.02, b=0, c=0, d=0, e=0, kv_blocks=10, block_size=128, max_model_len=640)


def samples(exposition):
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(exposition.render().decode())
        for sample in family.samples
    }


def of(exposition, name, **labels):
    both = {"model_name": "m", "engine": "0", **labels}
    return samples(exposition)[(f"vllm:{name}", *sorted(both.items()))]


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 5)), max_size=20))
def test_a_tally_counts_every_value_in_the_bucket_that_holds_it(values):
    tally = Tally((0.5, 1, 10))
    for value, times in values:
        tally.add(value, times)
    found = {
        sample.labels["le"]: sample.value
        for sample in tally.family("x", "help", {}).samples
        if sample.name == "x_bucket"
    }
    for bound in ("0.5", "1.0", "10.0", "+Inf"):
        assert found[bound] == sum(times for value, times in values if value <= float(bound))


def test_a_finished_request_is_in_every_request_histogram():
    exposition = Exposition(PROFILE, "m", Counters())
    life = Life(100, 11, 20, 2, arrived=1.0, admitted=1.5, first=2.0, last=3.0, cached_tokens=64, preemptions=1)
    exposition.finished(life, "stop")
    assert of(exposition, "request_success_total", finished_reason="stop") == 1
    for name, value in {
        "request_queue_time_seconds": 0.5,
        "request_prefill_time_seconds": 0.5,
        "request_decode_time_seconds": 1.0,
        "request_inference_time_seconds": 1.5,
        "e2e_request_latency_seconds": 2.0,
        "request_time_per_output_token_seconds": 0.1,
        "request_prompt_tokens": 100,
        "request_generation_tokens": 11,
        "request_params_max_tokens": 20,
        "request_params_n": 2,
        "request_num_preemptions": 1,
        "request_prefill_kv_computed_tokens": 36,
    }.items():
        assert of(exposition, f"{name}_sum") == pytest.approx(value), name
        assert of(exposition, f"{name}_count") == 1


def test_gauges_are_those_of_the_latest_step_and_zero_when_idle():
    exposition = Exposition(PROFILE, "m", Counters())
    exposition.began(Step(decodes=3, prefill_tokens=13), Gauges(running=4, waiting=2, kv_usage=0.5))
    assert of(exposition, "num_requests_running") == 4
    assert of(exposition, "num_requests_waiting_by_reason", reason="capacity") == 2
    assert of(exposition, "kv_cache_usage_perc") == 0.5
    assert of(exposition, "iteration_tokens_total_sum") == 16
    exposition.idle()
    assert of(exposition, "num_requests_running") == 0


def test_counters_are_read_from_the_engine_at_every_scrape():
    counters = Counters()
    exposition = Exposition(PROFILE, "m", counters)
    assert of(exposition, "generation_tokens_total") == 0
    counters.generation_tokens = 7
    counters.rejected_requests = 2
    assert of(exposition, "generation_tokens_total") == 7
    rejected = samples(exposition)[
        ("vllm:admission_rejections_total", ("model_name", "m"), ("reason", "max_num_queued_reqs"))
    ]
    assert rejected == 2


def test_the_cache_configuration_is_told_as_labels():
    text = Exposition(PROFILE, "m", Counters()).render().decode()
    line = next(line for line in text.splitlines() if line.startswith("vllm:cache_config_info{"))
    for label in ('block_size="128"', 'num_gpu_blocks="10"', 'kv_cache_size_tokens="1280"', 'engine="0"'):
        assert label in line
    assert line.endswith("} 1.0")


def test_a_name_with_quotes_does_not_break_the_text():
    text = Exposition(PROFILE, 'a"b\\c\nd', Counters()).render().decode()
    labels = {
        sample.labels["model_name"]
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "model_name" in sample.labels
    }
    assert labels == {'a"b\\c\nd'}
