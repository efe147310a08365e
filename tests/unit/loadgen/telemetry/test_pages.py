"""Metrics pages of several versions become the same named numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.telemetry.pages import card_numbers, engine_numbers

NEW = """# HELP vllm:num_requests_running Running.
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:num_preemptions_total{engine="0",model_name="m"} 2.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 5.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 7.0
vllm:inter_token_latency_seconds_sum{engine="0"} 1.5
vllm:inter_token_latency_seconds_count{engine="0"} 30.0
vllm:iteration_tokens_total_sum{engine="0"} 640
vllm:iteration_tokens_total_count{engine="0"} 10
"""
OLD = """vllm:gpu_cache_usage_perc{model_name="m"} 0.5
vllm:time_per_output_token_seconds_sum{model_name="m"} 2.0
vllm:time_per_output_token_seconds_count{model_name="m"} 20
"""


def test_counts_are_summed_over_ranks_and_the_fullest_cache_counts():
    numbers = engine_numbers(NEW)
    assert (numbers["running"], numbers["kv_usage"], numbers["preemptions"]) == (7, 0.75, 2)
    assert (numbers["finished"], numbers["finished.stop"], numbers["finished.length"]) == (12, 5, 7)
    assert (numbers["gap_s"], numbers["gap_n"], numbers["step_tokens"], numbers["steps"]) == (1.5, 30, 640, 10)


def test_names_of_older_engines_are_read_too():
    assert engine_numbers(OLD) == {"kv_usage": 0.5, "gap_s": 2.0, "gap_n": 20}


def test_what_is_not_on_the_page_is_absent_and_not_zero():
    assert "waiting" not in engine_numbers(OLD)
    assert engine_numbers("") == {}


def test_a_page_that_is_no_engines_holds_nothing():
    assert engine_numbers("process_start_time_seconds 1e9\nlanewise_requests_total 3\n") == {}


@given(st.text())
def test_any_page_can_be_read(page):
    assert isinstance(engine_numbers(page), dict)
    assert isinstance(card_numbers(page, at_s=0.0), dict)


OLD_CARD = """npu_chip_info_hbm_used_memory{id="0"} 32255 1700000000000
npu_chip_info_hbm_total_memory{id="0"} 65536 1700000000000
npu_chip_info_utilization{id="0"} 87 1700000000000
npu_chip_info_health_status{id="0"} 1 1700000000000
"""
LABELS = (
    'id="2",model_name="910B3",vdie_id="8D4",pcie_bus_info="0000:c1:00.0",namespace="",pod_name="",container_name=""'
)
NEW_CARD = f"""npu_chip_info_hbm_used_memory{{{LABELS}}} 60000
npu_chip_info_hbm_total_memory{{{LABELS}}} 65536
npu_chip_info_hbm_bandwidth_utilization{{{LABELS}}} 71
npu_chip_info_utilization{{{LABELS}}} -1
"""


def test_both_label_sets_name_the_chip():
    assert card_numbers(OLD_CARD)["0"]["hbm_used_mb"] == 32255
    assert card_numbers(NEW_CARD)["2"]["hbm_bandwidth_percent"] == 71


def test_a_negative_value_was_not_read_by_the_exporter_and_is_absent():
    assert "ai_core_percent" not in card_numbers(NEW_CARD)["2"]


@pytest.mark.parametrize(("after_s", "chips"), [(5, 1), (31, 0)])
def test_a_page_whose_stamps_are_old_counts_as_empty(after_s, chips):
    assert len(card_numbers(OLD_CARD, at_s=1_700_000_000 + after_s)) == chips


def test_dies_of_one_card_are_told_apart():
    page = 'npu_chip_info_utilization{id="0",vdie_id="0"} 10\nnpu_chip_info_utilization{id="0",vdie_id="1"} 20\n'
    assert {chip: numbers["ai_core_percent"] for chip, numbers in card_numbers(page).items()} == {"0": 10, "0/1": 20}


def test_a_chip_without_hbm_shows_its_ddr():
    page = 'npu_chip_info_used_memory{id="0"} 900\nnpu_chip_info_total_memory{id="0"} 21527\n'
    assert card_numbers(page) == {"0": {"hbm_used_mb": 900, "hbm_total_mb": 21527}}


def test_a_chip_with_hbm_shows_its_hbm_alone():
    page = OLD_CARD + 'npu_chip_info_used_memory{id="0"} 900\nnpu_chip_info_total_memory{id="0"} 21527\n'
    assert card_numbers(page)["0"]["hbm_total_mb"] == 65536
