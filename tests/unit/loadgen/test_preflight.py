import resource

import numpy as np
import pytest

from loadgen.client import read_target
from loadgen.failure import UsageError
from loadgen.preflight import OTHER_FILES, api_key, cache_config, check_file_limit, guard, prefix_cache


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1", "http://127.3.2.1:1"])
def test_this_machine_may_be_loaded(url):
    assert guard(read_target(url), (), yes_production=False) is None


@pytest.mark.parametrize("allow", [(), ("other",), ("engine:8001",), ("engin",)])
def test_another_machine_may_not(allow):
    with pytest.raises(UsageError, match="--allow-target engine"):
        guard(read_target("http://engine:8000"), allow, yes_production=False)


@pytest.mark.parametrize(("allow", "yes"), [(("engine",), False), (("engine:8000",), False), ((), True)])
def test_unless_it_is_named_or_production_is_meant(allow, yes):
    assert guard(read_target("http://engine:8000"), allow, yes_production=yes) is None


def test_prefix_cache_counters_are_summed_over_engines_whatever_the_version_calls_them():
    new = (
        'vllm:prefix_cache_queries_total{engine="0"} 10.0\nvllm:prefix_cache_queries_total{engine="1"} 5.0\n'
        'vllm:prefix_cache_hits_total{engine="0"} 4.0\nvllm:prefix_cache_hits_created{engine="0"} 1.7e9\n'
    )
    assert prefix_cache(new) == {"queries": 15.0, "hits": 4.0}
    assert prefix_cache("vllm:gpu_prefix_cache_hits_total 3\n") == {"hits": 3.0}
    assert prefix_cache("up 1\n") is None


def test_the_cache_configuration_is_read_from_its_labels():
    page = 'vllm:cache_config_info{block_size="16",name="a \\"b\\"",num_gpu_blocks="99"} 1.0\n'
    assert cache_config(page) == {"block_size": "16", "name": 'a \\"b\\"', "num_gpu_blocks": "99"}
    assert cache_config("") is None


@pytest.mark.shared
def test_the_metrics_of_a_real_engine_are_read(shared):
    page = (shared / "fixtures/metrics_after_runs.txt").read_text()
    counted = prefix_cache(page)
    assert counted["queries"] >= counted["hits"] >= 0
    assert cache_config(page)["block_size"].isdigit()


def test_the_api_key_comes_from_the_file_else_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("LANEWISE_API_KEY", "from-env")
    (tmp_path / "key").write_text("from-file\n")
    assert api_key(tmp_path / "key") == "from-file"
    assert api_key(None) == "from-env"
    monkeypatch.delenv("LANEWISE_API_KEY")
    assert api_key(None) is None


@pytest.mark.parametrize("text", ["two words", "line\nbreak", "ümlaut"])
def test_a_key_that_would_break_the_head_is_refused_without_repeating_it(tmp_path, text):
    (tmp_path / "key").write_text(text)
    with pytest.raises(UsageError) as refused:
        api_key(tmp_path / "key")
    assert text not in str(refused.value)


@pytest.mark.parametrize(
    ("gap_s", "speed", "at_once"),
    [(0.001, 1.0, 400), (0.01, 1.0, 100), (0.01, 3.0, 300), (2.0, 1.0, 1), (0.0, 1.0, 400)],
)
def test_a_plan_that_needs_more_open_files_than_there_are_is_refused_with_the_number(gap_s, speed, at_once):
    due = np.rint(np.arange(400) * gap_s * 1e9).astype(np.int64)
    needed = at_once + OTHER_FILES
    assert check_file_limit(needed, due, speed) is None
    assert check_file_limit(resource.RLIM_INFINITY, due, speed) is None
    with pytest.raises(UsageError, match=rf"needs at least {needed}: {at_once} requests"):
        check_file_limit(needed - 1, due, speed)
