"""Lines of engine logs: which stage, which layer, which part."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.diagnose.enginelog import PATTERNS, read_log, read_message

START = "INFO [api_server.py:1044] vLLM API server version 0.18.0"
WEIGHTS = "INFO [loader.py:400] Loading weights took 41.90 seconds"
CACHE = "INFO [kv_cache_utils.py:864] GPU KV cache size: 131,072 tokens"
READY = "INFO:     Application startup complete."
TRACE = "ERROR [core.py:935] RuntimeError: Engine core initialization failed. See root cause above."
NO_ROOM = "RuntimeError: NPU out of memory. Tried to allocate 3.47 GiB (NPU 0; 60.97 GiB total capacity)"

TOO_LONG = (
    "ValueError: The model's max seq len (4096) is larger than the maximum number of tokens that can be stored in KV "
    "cache (3664)."
)
SPLIT_SIZE = "If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation."
OTHER_QUANTISATION = (
    "ValueError: Quantization method specified in the model config (fp8) does not match the quantization method "
    "specified in the `quantization` argument (ascend)."
)


def told(*lines):
    (found,) = read_log([START, *lines])
    return found.stage, str(found.layer), found.part


@pytest.mark.parametrize(
    ("lines", "part"),
    [
        ((NO_ROOM, TRACE), "weights"),
        ((WEIGHTS, NO_ROOM, TRACE), "activations"),
        ((WEIGHTS, CACHE, NO_ROOM, TRACE), "activations"),
        ((WEIGHTS, "ValueError: No available memory for the cache blocks. Try increasing", TRACE), "kv"),
        ((TOO_LONG,), "kv"),
        ((f"{NO_ROOM} {SPLIT_SIZE}",), "fragmentation"),
        (("ValueError: Cannot find any model weights with `/models/a`",), "weights"),
    ],
)  # fmt: skip
def test_memory_that_runs_out_while_loading_is_told_by_how_far_it_came(lines, part):
    assert told(*lines) == ("loading", "memory", part)


@pytest.mark.parametrize(
    ("line", "layer", "part"),
    [
        (OTHER_QUANTISATION, "adaptation", "quantisation"),
        ("KeyError: 'model.layers.3.mlp.experts.weight not in self.quant_description'", "adaptation", "quantisation"),
        ("ValueError: Total number of attention heads (28) must be divisible by tensor parallel size (8).", "parallel",
         "split"),
        ("NotImplementedError: Could not run 'vllm::all_reduce' with arguments from the 'CPU' backend.", "adaptation",
         "operator"),
        ("RuntimeError: call aclnnAddRmsNorm failed, detail:EZ1001", "adaptation", "operator"),
        ("[ERROR] HCCL init timeout on rank 3", "parallel", "communication"),
        ("RuntimeError: error code 207008, Stream resources insufficient", "adaptation", "graph"),
    ],
)  # fmt: skip
def test_what_keeps_an_engine_from_starting_is_named(line, layer, part):
    assert told(line, TRACE) == ("loading", layer, part)


def test_memory_that_runs_out_under_load_is_an_inference_failure():
    assert told(WEIGHTS, CACHE, READY, NO_ROOM) == ("inference", "memory", "activations")


def test_a_preemption_under_load_is_the_kv_cache():
    line = "WARNING Sequence group 3 is preempted by RECOMPUTE mode because there is not enough KV cache space"
    assert told(WEIGHTS, CACHE, READY, line) == ("inference", "memory", "kv")


def test_the_first_cause_counts_and_not_what_follows_from_it():
    found = read_log(
        [
            START,
            "ValueError: Total number of attention heads (28) must be divisible by tensor parallel size (8).",
            NO_ROOM,
        ]
    )
    assert [(str(one.layer), one.where[:7]) for one in found] == [("parallel", "line 2:")]


def test_a_second_start_that_works_clears_what_was_before_it():
    assert read_log([START, WEIGHTS, CACHE, READY, NO_ROOM, START, WEIGHTS, CACHE, READY]) == []


def test_failures_of_both_stages_are_told_in_order():
    found = read_log([START, "WARNING memory fragmentation is high", WEIGHTS, CACHE, READY, NO_ROOM])
    assert [one.stage for one in found] == ["loading", "inference"]


def test_a_healthy_log_says_nothing():
    assert read_log([START, WEIGHTS, CACHE, READY, "INFO Avg prompt throughput: 100.0 tokens/s, Running: 3 reqs"]) == []


def test_an_error_message_of_a_client_is_read_as_inference():
    assert read_message(NO_ROOM).part == "activations"
    assert read_message("EngineCore encountered an issue.") is None


@given(st.lists(st.text()))
def test_any_log_can_be_read(lines):
    assert len(read_log(lines)) <= 2


def test_every_pattern_has_a_stage_and_a_step():
    assert all(one.stages and (one.next_step or one.name == "out of memory") for one in PATTERNS)
