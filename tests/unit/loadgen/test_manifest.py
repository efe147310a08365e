"""What a result depends on, flat and classed, and what differs between two runs."""

import shlex

import pytest

from loadgen.manifest import Kind, changes, kind_of, parameters, premise, read_flags, told_by_flags, told_by_name


def manifest(**more):
    return {"target": "http://a:1", **more}


def counted(a, b):
    return [change.name for change in changes(a, b) if change.counts]


def engine(flags=None, version="0.32", **cache):
    return {"version": version, "cache_config": cache or None, "flags": flags or {}}


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        (
            "vllm serve Qwen/Qwen3-32B -tp 2 --max-num-seqs=64 --enable-prefix-caching --api-key secret --port 8000",
            {
                "model": "Qwen/Qwen3-32B",
                "tensor_parallel_size": "2",
                "max_num_seqs": "64",
                "enable_prefix_caching": "True",
            },
        ),
        (
            "VLLM_USE_V1=1 python3 -m vllm.entrypoints.openai.api_server --model m --no-enable-chunked-prefill",
            {"model": "m", "enable_chunked_prefill": "False"},
        ),
        (
            "vllm serve m --swap-space -1 --lora-modules a=1 b=2",
            {"model": "m", "swap_space": "-1", "lora_modules": "a=1 b=2"},
        ),
    ],
)
def test_start_flags_are_read_from_a_command_line_without_its_secrets(command, flags):
    assert read_flags(shlex.split(command)) == flags


def test_parallel_sizes_say_how_many_cards_and_names_say_size_and_quantisation():
    assert told_by_flags({"tensor_parallel_size": "4", "data_parallel_size": "2", "quantization": "ascend"}) == {
        "cards": 8,
        "quantisation": "ascend",
    }
    assert told_by_flags({"max_num_seqs": "4"}) == {}
    assert told_by_name("Qwen/Qwen3-30B-A3B-W8A8") == {"size": "30B-A3B", "quantisation": "w8a8"}
    assert told_by_name("llama3.1_8b_awq") == {"size": "8B", "quantisation": "awq"}
    assert told_by_name("my-model") == {}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("engine.tensor_parallel_size", Kind.HARDWARE),
        ("premise.card", Kind.HARDWARE),
        ("engine.max_num_seqs", Kind.LOAD),
        ("proxy.scheduling.concurrency", Kind.LOAD),
        ("cap", Kind.LOAD),
        ("premise.quantisation", Kind.MODEL),
        ("engine.kv-cache-dtype", Kind.MODEL),
    ],
)
def test_parameters_have_a_class(name, kind):
    assert kind_of(name) is kind


def test_one_changed_flag_counts_once_and_what_the_engine_works_out_from_it_does_not():
    a = manifest(engine=engine({"gpu_memory_utilization": "0.8"}, gpu_memory_utilization="0.8", num_gpu_blocks="900"))
    b = manifest(engine=engine({"gpu_memory_utilization": "0.9"}, gpu_memory_utilization="0.9", num_gpu_blocks="1024"))
    assert counted(a, b) == ["engine.gpu_memory_utilization"]
    assert [change.name for change in changes(a, b)][1:] == ["engine.num_gpu_blocks"]


def test_a_flag_that_only_one_start_command_has_is_a_change():
    a, b = manifest(engine=engine({"model": "m"})), manifest(engine=engine({"model": "m", "enforce_eager": "True"}))
    assert counted(a, b) == ["engine.enforce_eager"]
    assert counted(manifest(engine=engine()), b) == []


def test_more_cards_follow_from_the_parallel_size():
    a = manifest(
        engine=engine({"tensor_parallel_size": "1"}), premises={"cards": {"value": 1, "source": "engine flags"}}
    )
    b = manifest(
        engine=engine({"tensor_parallel_size": "2"}), premises={"cards": {"value": 2, "source": "engine flags"}}
    )
    assert counted(a, b) == ["engine.tensor_parallel_size"]


def test_quantisation_told_twice_is_one_change_of_class_model():
    a = manifest(engine=engine({"quantization": "awq"}), premises={"quantisation": {"value": "awq"}})
    b = manifest(engine=engine({"quantization": "ascend"}), premises={"quantisation": {"value": "ascend"}})
    assert [(one.name, one.kind) for one in changes(a, b) if one.counts] == [("premise.quantisation", Kind.MODEL)]


def test_a_proxy_put_in_front_is_one_change_with_its_other_target():
    proxy = {"config": "abc", "version": "1", "settings": {"mode": "enforce", "scheduling.concurrency": 40}}
    assert counted(manifest(), {"target": "http://b:2", "proxy": proxy}) == ["proxy"]
    other = {"config": "def", "version": "1", "settings": {"mode": "enforce", "scheduling.concurrency": 48}}
    assert counted(manifest(proxy=proxy), manifest(proxy=other)) == ["proxy.scheduling.concurrency"]
    hashes = {"config": "abc"}, {"config": "def"}
    assert counted(manifest(proxy=hashes[0]), manifest(proxy=hashes[1])) == ["proxy.config"]


def test_another_target_counts_only_when_nothing_else_explains_it():
    assert counted(manifest(), {"target": "http://b:2"}) == ["target"]
    declared = manifest(parameters={"cap": "32"}), {"target": "http://b:2", "parameters": {"cap": "64"}}
    assert counted(*declared) == ["cap"]
    assert {change.name for change in changes(*declared)} == {"cap", "target"}


def test_what_one_run_does_not_know_is_no_change_unless_it_was_declared():
    assert counted(manifest(engine=engine(version=None)), manifest(engine=engine())) == []
    assert counted(manifest(parameters={}), manifest(parameters={"new": "x"})) == ["new"]


def test_parameters_are_flat_and_premises_have_values():
    held = manifest(engine=engine({"max-num-seqs": "8"}), premises={"card": {"value": "910B4", "source": "told"}})
    assert parameters(held)["engine.max_num_seqs"] == "8"
    assert premise(held, "card") == parameters(held)["premise.card"] == "910B4"
    assert premise(held, "size") is None
