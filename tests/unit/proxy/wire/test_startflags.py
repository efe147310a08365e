"""What an engine was started with: from a command line, from what it says, and from neither."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.startflags import StartFlags, parse_flags, parse_server_info


def test_nothing_written_is_nothing_known():
    assert parse_flags("") == StartFlags()
    assert not StartFlags().known


def test_a_command_without_a_flag_has_its_default_where_that_is_the_same_everywhere():
    flags = parse_flags("vllm serve qwen --port 8000")
    assert (flags.policy, flags.long_prefill_token_threshold, flags.enable_prompt_tokens_details) == ("fcfs", 0, False)
    assert (flags.max_num_seqs, flags.enable_prefix_caching, flags.max_num_queued_reqs) == (None, None, None)
    assert flags.known


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("--max-num-seqs 128", "max_num_seqs", 128),
        ("--max-num-seqs=128", "max_num_seqs", 128),
        ("--max_num_seqs 128", "max_num_seqs", 128),
        ("--max-model-len 32k", "max_model_len", 32_000),
        ("--max-model-len 32K", "max_model_len", 32_768),
        ("--max-num-batched-tokens 25.6k", "max_num_batched_tokens", 25_600),
        ("--long-prefill-token-threshold 256", "long_prefill_token_threshold", 256),
        ("--scheduling-policy priority", "policy", "priority"),
        ("-dp 4 --enforce-eager", "data_parallel_size", 4),
        ("--enable-prefix-caching", "enable_prefix_caching", True),
        ("--no-enable-prefix-caching --enforce-eager", "enable_prefix_caching", False),
        ("--enable-chunked-prefill False", "enable_chunked_prefill", False),
        ("--enable-prompt-tokens-details", "enable_prompt_tokens_details", True),
        ("VLLM_HTTP_TIMEOUT_KEEP_ALIVE=2 vllm serve m", "keep_alive_s", 2.0),
        (
            """--additional-config '{"scheduler_config": {"short_request_first_config": {"enabled": true}}}'""",
            "short_request_first",
            True,
        ),
        ("--additional-config.scheduler_config.short_request_first_config.enabled true", "short_request_first", True),
        ("--additional-config '{broken'", "short_request_first", False),
        ("--max-num-partial-prefills 2", "dead", ("max_num_partial_prefills",)),
        ("--max-num-seqs many", "unreadable", ("max_num_seqs",)),
        ("--max-num-seqs '128", "unreadable", ("max_num_seqs",)),
    ],
)
def test_each_flag_is_read_as_vllm_reads_it(text, name, value):
    assert getattr(parse_flags(text), name) == value


def test_what_an_engine_says_of_itself_comes_from_its_own_configuration():
    flags = parse_server_info(
        {
            "vllm_config": {
                "scheduler_config": {"max_num_seqs": 32, "policy": "fcfs", "max_num_queued_reqs": None},
                "cache_config": {"enable_prefix_caching": True},
                "parallel_config": {"data_parallel_size": 2},
                "additional_config": {"scheduler_config": {"short_request_first_config": {"enabled": True}}},
            },
            "vllm_env": {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": 5},
        }
    )
    assert (flags.max_num_seqs, flags.data_parallel_size, flags.enable_prefix_caching) == (32, 2, True)
    assert (flags.keep_alive_s, flags.short_request_first, flags.max_num_queued_reqs) == (5.0, True, None)


@pytest.mark.parametrize("document", [None, [], {}, {"vllm_config": "VllmConfig(...)"}, {"detail": "Not Found"}])
def test_any_other_document_says_nothing(document):
    assert parse_server_info(document) == StartFlags()


def test_what_the_engine_says_wins_over_what_was_written():
    told = parse_server_info({"vllm_config": {"scheduler_config": {"max_num_seqs": 32}}})
    both = told.over(parse_flags("--max-num-seqs 64 --scheduling-policy priority --max-long-partial-prefills 2"))
    assert (both.max_num_seqs, both.policy, both.dead) == (32, "priority", ("max_long_partial_prefills",))


@given(st.text(max_size=80))
def test_no_text_is_too_odd(text):
    assert isinstance(parse_flags(text), StartFlags)
