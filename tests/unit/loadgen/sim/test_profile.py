"""Engine profiles: the shipped ones, and errors that name file and key."""

from pathlib import Path

import pytest
import yaml

from loadgen.failure import UsageError
from loadgen.sim.nouns import SchedulingPolicy
from loadgen.sim.profile import load_profile, parse_profile, profile_names

WHERE = Path("mine.yaml")


def document(**changes):
    steps = {"a_ms": 20, "b_ms": 0.03, "c_ms": 0.09, "d_ms": 0, "e_ms": 0}
    return {"source": "a guess", "step_time": steps, "kv_blocks": 100, "concurrency_cap": 8, **changes}


def test_every_shipped_profile_loads_and_says_where_its_constants_come_from():
    assert profile_names() == ["14b", "8b", "910b-like", "tiny-cpu"]
    assert all(len(load_profile(name).source) > 40 for name in profile_names())


def test_computed_and_assumed_constants_are_labelled_so():
    assert "not measured" in load_profile("8b").source
    assert "not measured" in load_profile("14b").source
    assert "assumption" in load_profile("910b-like").source


def test_constants_are_read_as_milliseconds():
    profile = load_profile("8b")
    assert (profile.a, profile.b, profile.c, profile.d, profile.e) == pytest.approx((0.02, 3e-5, 9e-5, 1.2e-7, 5e-9))
    assert profile.kv_tokens == 249_600


def test_limits_that_are_left_out_are_the_engines_defaults():
    profile = parse_profile(document(), WHERE)
    assert (profile.name, profile.max_num_batched_tokens, profile.max_num_seqs) == ("mine", 2048, 256)
    assert profile.prefix_caching
    assert profile.reserve_full_isl
    assert profile.scheduling_policy is SchedulingPolicy.FCFS
    assert profile.max_num_queued_reqs is None


def test_a_profile_from_a_path_is_called_after_its_file(tmp_path):
    path = tmp_path / "lab.yaml"
    path.write_text(yaml.safe_dump(document(scheduling_policy="priority")))
    assert load_profile(str(path)).name == "lab"
    assert load_profile(str(path)).scheduling_policy is SchedulingPolicy.PRIORITY


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (document(kv_block=5), r"mine.yaml: unknown key 'kv_block'; allowed here are .*kv_blocks"),
        (document(step_time={"a_ms": 20, "bb": 1}), r"mine.yaml: key 'step_time.b_ms' is missing"),
        (document(kv_blocks=0), r"mine.yaml: kv_blocks: .*greater than or equal to 1, got 0"),
        (document(max_num_batched_tokens=8), r"mine.yaml: max_num_batched_tokens \(8\) must be at least max_num_seqs"),
        (document(scheduling_policy="lifo"), r"mine.yaml: scheduling_policy: .*'fcfs' or 'priority'"),
        ([1, 2], r"mine.yaml: an engine profile is a mapping"),
    ],
)
def test_a_wrong_profile_is_said_in_one_sentence_with_file_and_key(wrong, words):
    with pytest.raises(UsageError, match=words) as error:
        parse_profile(wrong, WHERE)
    assert "\n" not in str(error.value)


def test_an_unknown_constant_is_named_with_the_allowed_ones():
    steps = {"a_ms": 20, "b_ms": 0.03, "c_ms": 0.09, "d_ms": 0, "e_ms": 0, "f_ms": 1}
    with pytest.raises(UsageError, match=r"unknown key 'step_time.f_ms'; allowed here are a_ms, b_ms"):
        parse_profile(document(step_time=steps), WHERE)


def test_a_file_that_is_not_yaml_is_named_with_its_line(tmp_path):
    path = tmp_path / "broken.yaml"
    path.write_text("source: x\nstep_time: [1,\n")
    with pytest.raises(UsageError, match=r"broken.yaml: line \d is not YAML"):
        load_profile(str(path))
