"""What differs between two configurations, as an operator would say it."""

import pytest

from proxy.settings import Settings
from proxy.settings.change import changes, need_restart, steering, with_secrets_of


def settings(**more):
    return Settings.model_validate({"backends": [{"url": "http://a:1", "name": "a"}], **more})


def keys(new, old=None):
    return [change.key for change in changes(old or settings(), new)]


def counted(new, old=None):
    old = old or settings()
    return steering(changes(old, new), old, new)


def test_two_equal_configurations_differ_in_nothing():
    assert keys(settings()) == []


def test_a_why_is_no_change():
    assert keys(settings(why={"mode": "because"})) == []


def test_a_change_is_told_as_an_operator_writes_it():
    old, new = settings(), settings(lanes={"short": {"ttft_slo": "750ms"}}, limits={"prompt_tokens": "100k"})
    assert [str(change) for change in changes(old, new)] == [
        "lanes.short.ttft_slo: 1s -> 750ms",
        "limits.prompt_tokens: unlimited -> 100000",
    ]


def test_booleans_and_lists_are_told_in_words():
    old, new = settings(), settings(trusted_networks="10.0.0.0/8, fd00::/8", probes={"scrape_metrics": False})
    assert [str(change) for change in changes(old, new)] == [
        "probes.scrape_metrics: true -> false",
        "trusted_networks: none -> 10.0.0.0/8, fd00::/8",
    ]


def test_backends_are_compared_by_name_and_not_by_place():
    two = [{"url": "http://a:1", "name": "a"}, {"url": "http://b:1", "name": "b"}]
    old = settings(backends=two)
    assert keys(settings(backends=two[::-1]), old) == []
    weighed = settings(backends=[two[0], {**two[1], "weight": 2}])
    assert [str(change) for change in changes(old, weighed)] == ["backends[b].weight: 1.0 -> 2.0"]
    assert [str(change) for change in changes(old, settings(backends=two[:1]))] == ["backends[b]: http://b:1 -> none"]
    assert [str(change) for change in changes(settings(), old)] == ["backends[b]: none -> http://b:1"]


def test_tenants_are_told_without_the_digests_of_their_keys():
    first, second = "59" * 32, "7a" * 32
    search, batch = {"name": "search", "keys": [first], "weight": 2}, {"name": "batch", "keys": [second, first[::-1]]}
    alone, both = (settings(tenants={"by": "key", "named": named}) for named in ([search], [search, batch]))
    here, there = "{weight: 2.0, name: search, keys: 1 hidden}", "{weight: 1.0, name: batch, keys: 2 hidden}"
    assert [str(change) for change in changes(alone, both)] == [f"tenants.named: {here} -> {here}, {there}"]
    moved = settings(tenants={"by": "key", "named": [{**search, "keys": [second]}]})
    assert keys(moved, alone) == ["tenants.named"]
    assert not any(digest in str(changes(alone, moved)[0]) for digest in (first, second))


def test_a_rule_is_told_as_yaml_has_it_without_what_is_not_set():
    rule = {"models": ["none"], "prompt_tokens": "4k", "output": {"ceiling": 512}}
    told = str(changes(settings(), settings(length_policies=[rule]))[0])
    assert told.startswith("length_policies: none -> {")
    assert "models: [none]" in told
    assert "None" not in told


def test_a_secret_that_changed_is_noticed_and_not_shown():
    old, new = settings(probes={"api_key": "one"}), settings(probes={"api_key": "two"})
    assert [str(change) for change in changes(old, new)] == ["probes.api_key: (hidden) -> (hidden)"]
    assert keys(settings(probes={"api_key": "one"})) == ["probes.api_key"]


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"listen": "127.0.0.1:1"}, "listen"),
        ({"admin": "127.0.0.1:1"}, "admin"),
        ({"state_dir": "there"}, "state_dir"),
        ({"recorder": {"directory": "there"}}, "recorder.directory"),
        ({"recorder": {"salt": "grain"}}, "recorder.salt"),
    ],
)
def test_what_is_bound_or_opened_at_the_start_needs_a_restart(more, key):
    found = changes(settings(), settings(**more))
    assert [change.key for change in need_restart(found)] == [key]


def test_nothing_else_needs_a_restart():
    new = settings(mode="observe", timeouts={"drain": "1m"}, metrics={"models": ["m"]}, scheduling={"concurrency": 9})
    assert need_restart(changes(settings(), new)) == ()


def test_scheduling_parameters_are_counted_and_the_rest_is_not():
    new = settings(
        mode="observe",
        scheduling={"concurrency": 9, "adaptive": {"enabled": False}},
        lanes={"short": {"ttft_slo": "2s", "first_byte_timeout": "2m"}, "long": {"output": {"ceiling": 100}}},
        timeouts={"drain": "1m"},
        one_change="strict",
    )
    assert counted(new) == (
        "mode",
        "lanes.short.ttft_slo",
        "lanes.long.output.ceiling",
        "scheduling.concurrency",
        "scheduling.adaptive.enabled",
    )


def test_a_preset_is_one_change_with_all_it_brings():
    assert counted(settings(scheduling={"preset": "gentle"})) == ("scheduling.preset",)
    own = settings(scheduling={"preset": "gentle", "drop_factor": 3})
    assert counted(own) == ("scheduling.preset", "scheduling.drop_factor")


def test_a_fleet_that_changes_is_one_change_and_its_tuning_another():
    new = settings(
        backends=[{"url": "http://a:2", "name": "a", "kv_tokens": 1000}, "http://b:1", {"url": "http://c:1"}]
    )
    assert counted(new) == ("backends", "backends[a].kv_tokens")


def test_who_sends_and_what_comes_twice_count_and_what_only_describes_does_not():
    new = settings(
        backends=[{"url": "http://a:1", "name": "a", "engine_flags": "--max-num-seqs 9"}],
        repeats={"duplicates": "reject"},
        tenants={"by": "key", "salt": "s"},
        estimate={"tokenize": "border", "timeout": "100ms"},
        measured={"date": "2026-11-30", "concurrency": 32},
        explain={"keep": 9},
    )
    assert set(counted(new)) == {"estimate.tokenize", "tenants.by", "repeats.duplicates"}


def test_whether_lengths_are_remembered_is_decided_at_the_start():
    found = changes(settings(), settings(estimate={"remember": False}))
    assert [change.key for change in need_restart(found)] == ["estimate.remember"]


def test_every_secret_can_be_carried_over_or_left_out():
    sections = {"recorder": {"salt": "a"}, "probes": {"api_key": "b"}, "tenants": {"salt": "c"}}
    known = settings(**sections)
    kept = with_secrets_of(settings(), known)
    assert [getattr(getattr(kept, name), key).get_secret_value() for name, one in sections.items() for key in one] == [
        *"abc"
    ]
    bare = with_secrets_of(known, known, hidden=True)
    assert [getattr(getattr(bare, name), key) for name, one in sections.items() for key in one] == [None] * 3
    assert bare.hash == known.hash
