"""The study's workloads from small trace files."""

import json
from statistics import fmean, pstdev

import pytest

from loadgen.failure import UsageError
from loadgen.sim.workloads import CYCLE_S, SURGE_AT_S, SURGE_S, Workload, load_workload, workload_names


@pytest.fixture
def traces(tmp_path):
    for folder in ("azure", "mooncake"):
        (tmp_path / folder).mkdir()
    head = "TIMESTAMP,ContextTokens,GeneratedTokens"

    def csv(rows):
        return "\n".join([head, *(f"2023-11-16 18:{m:02}:{s:02}.0000000,{p},{o}" for m, s, p, o in rows)]) + "\n"

    conversation = [(10 + n // 60, n % 60, 100 + n, 20) for n in range(90)]
    code = [(10 + n // 2, 30 * (n % 2), 40_000, 5) for n in range(3)]
    (tmp_path / "azure/AzureLLMInferenceTrace_conv.csv").write_text(csv(conversation))
    (tmp_path / "azure/AzureLLMInferenceTrace_code.csv").write_text(csv(code))
    (tmp_path / "mooncake/conversation_trace.jsonl").write_text(
        "".join(
            json.dumps(
                {
                    "timestamp": 3000 * (n // 4),
                    "input_length": 30_000,
                    "output_length": 300,
                    "hash_ids": list(range(59)),
                }
            )
            + "\n"
            for n in range(40)
        )
    )
    return tmp_path


def test_mixed_has_one_document_for_nine_conversations_and_cuts_prompts(traces):
    mixed = load_workload("mixed", traces)
    prompts = [prompt for prompt, _ in mixed.lengths]
    assert len(prompts) == 90 + 10
    assert prompts.count(24_000) == 10
    assert list(mixed.times) == sorted(mixed.times)


def test_documents_are_stretched_over_the_whole_span_and_off_their_ticks(traces):
    mixed = load_workload("mixed", traces)
    begin, end = mixed.times[0], mixed.times[-1]
    at = [time for time, (prompt, _) in zip(mixed.times, mixed.lengths, strict=True) if prompt == 24_000]
    assert min(at) == pytest.approx(begin)
    assert max(at) == pytest.approx(end)
    assert len({round(time, 3) for time in at}) == 10


def test_the_same_seed_draws_the_same_documents(traces):
    assert load_workload("mixed", traces, 3) == load_workload("mixed", traces, 3)
    assert load_workload("mixed", traces, 3) != load_workload("mixed", traces, 4)


def test_azure_merges_both_files_by_their_clock_and_cuts_at_32000(traces):
    azure = load_workload("azure", traces)
    assert len(azure.times) == 93
    assert max(prompt for prompt, _ in azure.lengths) == 32_000
    assert [prompt for prompt, _ in azure.lengths][:2] == [100, 32_000]


def test_conv_is_conversation_alone(traces):
    assert len(load_workload("conv", traces).times) == 90


def test_burst_has_the_lengths_of_mixed_in_another_order_and_gusty_gaps(traces):
    burst, mixed = load_workload("burst", traces), load_workload("mixed", traces)
    assert sorted(burst.lengths) == sorted(mixed.lengths)
    assert burst.lengths != mixed.lengths
    gaps = [b - a for a, b in zip(burst.times, burst.times[1:], strict=False)]
    assert pstdev(gaps) / fmean(gaps) > 1.4


def test_the_four_names_are_known():
    assert workload_names() == ("mixed", "azure", "burst", "conv")


def test_an_unknown_workload_or_a_missing_file_is_said(traces, tmp_path):
    with pytest.raises(UsageError, match="one of mixed, azure, burst, conv"):
        load_workload("chat", traces)
    (traces / "mooncake/conversation_trace.jsonl").unlink()
    with pytest.raises(UsageError, match=r"conversation_trace.jsonl: no such trace file"):
        load_workload("mixed", traces)


STEADY = Workload("steady", tuple(float(n) for n in range(0, 2000, 2)), ((100, 10),) * 1000)


def test_a_rate_stretches_the_times():
    window = STEADY.cut(100, 50)
    arrivals = window.arrivals(rate=4.0)
    assert [arrival.at_s for arrival in arrivals[:3]] == [0.0, 0.25, 0.5]
    assert (arrivals[0].prompt_tokens, arrivals[0].output_tokens) == (100, 10)


def test_a_busy_window_stays_busier_than_a_calm_one():
    times = [*range(0, 500, 5), *range(500, 600)]
    uneven = Workload("uneven", tuple(float(t) for t in times), ((100, 10),) * 200)
    calm, busy = uneven.cut(0, 100), uneven.cut(100, 100)
    assert calm.arrivals(1.0)[-1].at_s > 4 * busy.arrivals(1.0)[-1].at_s


def test_windows_lie_one_in_each_stretch_of_the_workload_and_repeat_by_seed():
    windows = STEADY.windows(3, 400, seed=7)
    assert windows == STEADY.windows(3, 400, seed=7)
    assert [len(window.lengths) for window in windows] == [400, 400, 400]


def test_a_workload_shorter_than_a_window_is_taken_whole():
    assert len(STEADY.windows(1, 4000)[0].lengths) == 1000


def test_no_windows_cannot_be_cut():
    with pytest.raises(UsageError, match="cannot be cut"):
        STEADY.windows(0, 100)


def test_surges_run_at_three_times_the_rate_and_keep_the_mean():
    even = Workload("even", tuple(float(n) for n in range(3600)), ((1, 1),) * 3600, surges=True)
    at = [arrival.at_s for arrival in even.cut(0, 3600).arrivals(rate=4.0)]
    assert at == sorted(at)
    assert at[-1] == pytest.approx(6 * CYCLE_S, rel=0.01)
    inside = sum(1 for time in at if SURGE_AT_S <= time % CYCLE_S < SURGE_AT_S + SURGE_S)
    seconds = at[-1] / CYCLE_S
    surge_rate, calm_rate = inside / (seconds * SURGE_S), (len(at) - inside) / (seconds * (CYCLE_S - SURGE_S))
    assert surge_rate / calm_rate == pytest.approx(3.0, rel=0.05)
