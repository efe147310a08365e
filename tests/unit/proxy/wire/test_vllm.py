"""Engine metrics under the names of every version."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.wire.vllm import ALIASES, EngineMetrics, parse_labels, parse_metrics

LABELS = '{engine="0",model_name="demo"}'


def page(*lines: str) -> str:
    return "\n".join(["# HELP vllm:num_requests_running Number of requests.", *lines, "# EOF", ""])


def test_what_is_not_exported_is_none_and_not_zero() -> None:
    assert parse_metrics("") == EngineMetrics()
    assert parse_metrics(page(f"vllm:num_requests_running{LABELS} 0.0")) == EngineMetrics(running=0.0)


@pytest.mark.parametrize(("field", "name"), [(field, name) for field, names in ALIASES.items() for name in names])
def test_every_alias_is_read(field: str, name: str) -> None:
    assert getattr(parse_metrics(page(f"{name}{LABELS} 3.0")), field) == 3.0


def test_the_newest_name_wins_where_an_engine_exports_two() -> None:
    text = page(f"vllm:gpu_cache_usage_perc{LABELS} 0.1", f"vllm:kv_cache_usage_perc{LABELS} 0.2")
    assert parse_metrics(text).kv_usage == 0.2


def test_counts_are_summed_over_engines_and_cache_use_is_that_of_the_fullest() -> None:
    text = page(
        *(f'vllm:num_requests_running{{engine="{i}",model_name="demo"}} {i + 1}' for i in range(3)),
        *(f'vllm:kv_cache_usage_perc{{engine="{i}",model_name="demo"}} 0.{i + 1}' for i in range(3)),
        *(f'vllm:request_success_total{{engine="0",finished_reason="{why}"}} 2' for why in ("stop", "length")),
        *(f'vllm:cache_config_info{{block_size="128",engine="{i}",num_gpu_blocks="100"}} 1.0' for i in range(3)),
    )
    found = parse_metrics(text)
    assert (found.running, found.kv_usage, found.success_total) == (6.0, 0.3, 4.0)
    assert (found.engines, found.kv_tokens) == (3, 38_400)


def test_the_cache_configuration_is_read_from_labels() -> None:
    text = page(
        'vllm:cache_config_info{block_size="16",enable_prefix_caching="True",gpu_memory_utilization="0.9",'
        'num_gpu_blocks="2000",sliding_window="None"} 1.0'
    )
    cache = parse_metrics(text).cache
    assert cache is not None
    assert (cache.block_size, cache.num_gpu_blocks, cache.enable_prefix_caching) == (16, 2000, True)
    assert (cache.gpu_memory_utilization, cache.size_tokens) == (0.9, 32_000)
    assert (cache.labels or {})["sliding_window"] == "None"


def test_a_configuration_that_does_not_say_leaves_it_open() -> None:
    found = parse_metrics(page('vllm:cache_config_info{num_gpu_blocks="None",enable_prefix_caching="None"} 1.0'))
    assert found.cache is not None
    assert found.cache.enable_prefix_caching is None
    assert found.kv_tokens is None
    assert found.engines == 1


def test_the_told_size_of_the_cache_is_believed_before_the_computed_one() -> None:
    text = page('vllm:cache_config_info{block_size="16",num_gpu_blocks="10",kv_cache_size_tokens="159"} 1')
    assert parse_metrics(text).kv_tokens == 159


def test_label_values_may_hold_anything() -> None:
    text = page(
        r'vllm:num_requests_running{model_name="a \"b\" } 7 \\",engine="0"} 4',
        'vllm:num_requests_waiting { engine = "0" , } 5 1700000000000',
        'vllm:num_preemptions_total{engine="0"} 6 # {trace_id="x"} 1.0 1700000000.0',
        "process_start_time_seconds 1.7e+09",
    )
    found = parse_metrics(text)
    assert (found.running, found.waiting, found.preemptions_total) == (4.0, 5.0, 6.0)
    assert found.process_start_time_s == 1.7e9
    assert parse_labels(r'a="x\"y",b="\\n",c="\n"') == {"a": 'x"y', "b": "\\n", "c": "\n"}


def test_broken_lines_and_values_that_are_no_number_are_passed_over() -> None:
    text = page(
        'vllm:num_requests_running{engine="0"',
        f"vllm:num_requests_waiting{LABELS} NaN",
        f"vllm:kv_cache_usage_perc{LABELS} much",
        f"vllm:num_preemptions_total{LABELS} +Inf",
        f"vllm:num_requests_runningX{LABELS} 5",
        "vllm:num_requests_running",
    )
    assert parse_metrics(text) == EngineMetrics()


@settings(deadline=None)
@given(st.lists(st.sampled_from(["vllm:num_requests_running", "{", "}", '"', "\\", " ", "1", "\n", "#", "=", ","])))
def test_no_text_whatever_makes_the_parser_raise(pieces: list[str]) -> None:
    running = parse_metrics("".join(pieces)).running
    assert running is None or running >= 0


@pytest.mark.shared
def test_the_page_of_a_real_engine_is_read(shared: Path) -> None:
    text = (shared / "fixtures" / "metrics_after_runs.txt").read_text()
    found = parse_metrics(text)
    missing = {field for field in ALIASES if getattr(found, field) is None}
    assert missing == set()
    assert (found.prompt_tokens_total, found.prefix_hits_total) == (419_853.0, 47_616.0)
    assert (found.engines, found.kv_tokens) == (1, 131_072)
    busy = parse_metrics((shared / "fixtures" / "x_metrics_busy.resp").read_text())
    assert (busy.running, busy.waiting) == (2.0, 2.0)
