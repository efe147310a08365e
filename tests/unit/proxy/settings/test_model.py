"""Settings become what the scheduling core reads; their hash follows every value but the secrets."""

import pytest

from proxy.policy.classify import CapAction
from proxy.policy.limits import Adaptive, BudgetMode, Installments, LaneOrder
from proxy.settings import LANES, Settings


def settings(**more):
    return Settings.model_validate({"backends": ["http://a:8000"], **more})


def test_the_scheduling_core_gets_seconds_tokens_and_bytes():
    scheduling = settings(
        lanes={"short": {"max_prompt_tokens": "1k", "ttft_slo": "750ms", "queue": {"requests": 7}}},
        scheduling={"drop_factor": "never", "prefill_budget_tokens": "unlimited", "budget_mode": "separate"},
    ).to_scheduling()
    short, long = scheduling.lanes
    assert (short.max_prompt_tokens, short.ttft_slo_s, short.queue_requests) == (1000, 0.75, 7)
    assert (long.max_prompt_tokens, long.ttft_slo_s) == (None, 5.0)
    assert (scheduling.drop_factor, scheduling.prefill_budget_tokens) == (None, None)
    assert scheduling.budget_mode is BudgetMode.SEPARATE


def test_a_key_of_a_queue_leaves_its_other_limits_as_they_are():
    queue = settings(lanes={"long": {"queue": {"requests": 3}}}).lanes.long.queue
    default = settings().lanes.long.queue
    assert (queue.requests, queue.tokens, queue.bytes) == (3, default.tokens, default.bytes)


@pytest.mark.parametrize(("preset", "order", "drop"), [("strict", "short_first", 1.0), ("gentle", "deadline", 5.0)])
def test_a_preset_sets_lane_order_and_drop_factor(preset, order, drop):
    scheduling = settings(scheduling={"preset": preset}).to_scheduling()
    assert (scheduling.lane_order, scheduling.drop_factor) == (LaneOrder(order), drop)


def test_backends_take_the_common_concurrency_unless_they_name_their_own():
    limits = settings(
        backends=["http://a:1", {"url": "http://b:2", "concurrency": 4, "models": ["m"], "name": "b"}],
        scheduling={"concurrency": 9},
    ).to_backend_limits()
    assert [(of.name, of.concurrency, of.models) for of in limits] == [("a:1", 9, None), ("b", 4, frozenset({"m"}))]


def adaptive(*, backend=None, scheduling=None, **more):
    url = {"url": "http://a:1", **(backend or {})}
    return settings(backends=[url], scheduling=scheduling or {}, **more).to_backend_limits()[0].adaptive


def test_concurrency_adapts_between_8_and_256_by_default():
    assert adaptive() == Adaptive(tpot_slo_s=0.1, floor=8, ceiling=256)


def test_the_smallest_tpot_slo_of_the_lanes_is_what_concurrency_follows():
    assert adaptive(lanes={"long": {"tpot_slo": "60ms"}, "short": {"tpot_slo": "80ms"}}).tpot_slo_s == 0.06


@pytest.mark.parametrize(
    ("backend", "scheduling", "floor", "ceiling"),
    [
        ({"concurrency": 4}, {}, 4, 256),
        ({"concurrency": 300}, {}, 8, 300),
        ({"max_num_seqs": 64}, {"adaptive": {"ceiling": 100}}, 8, 64),
        ({}, {"adaptive": {"ceiling": 100, "floor": 16}}, 16, 100),
    ],
)
def test_bounds_that_nobody_wrote_make_room_for_the_start(backend, scheduling, floor, ceiling):
    found = adaptive(backend=backend, scheduling=scheduling)
    assert (found.floor, found.ceiling) == (floor, ceiling)


def test_adaptation_can_be_switched_off():
    assert adaptive(scheduling={"adaptive": {"enabled": False, "floor": 100}}) is None


@pytest.mark.parametrize(
    ("written", "mode"),
    [("auto", "auto"), (True, "on"), (False, "off"), ({"mode": False}, "off"), ({"pause": 1}, "auto")],
)
def test_installments_may_be_one_word_which_yaml_reads_as_true_or_false(written, mode):
    assert settings(installments=written).installments.mode == mode


def test_the_scheduling_core_gets_installments_unless_they_are_off_or_the_engine_cuts_prefills_itself():
    chosen = settings(installments={"part_tokens": "1K", "parts_at_most": 8, "pause": 1}).to_scheduling()
    assert chosen.installments == Installments(part_tokens=1024, parts_at_most=8, pause=1.0)
    assert settings().to_scheduling().installments == Installments()
    separate = {"budget_mode": "separate"}
    assert settings(installments="off").to_scheduling().installments is None
    assert settings(scheduling=separate).to_scheduling().installments is None
    assert settings(installments="on", scheduling=separate).to_scheduling().installments == Installments()


def test_lane_policies_carry_the_output_rules_and_the_longest_prompt():
    policies = settings(
        lanes={"long": {"output": {"ceiling": "4k", "action": "reject"}}}, limits={"prompt_tokens": "100k"}
    ).to_lane_policies()
    assert [of.name for of in policies] == list(LANES)
    assert [of.max_prompt_tokens for of in policies] == [2048, 100_000]
    assert (policies[1].output.ceiling, policies[1].output.action) == (4000, CapAction.REJECT)


def test_the_hash_follows_values_and_not_the_way_they_are_written():
    one = settings(timeouts={"drain": "60s"})
    assert one.hash == settings(timeouts={"drain": "1m"}).hash
    assert one.hash != settings(timeouts={"drain": "61s"}).hash
    assert len(one.hash) == 12


def test_neither_secrets_nor_reasons_change_the_hash():
    plain = settings().hash
    assert settings(recorder={"salt": "s"}, probes={"api_key": "k"}, why={"listen": "because"}).hash == plain


def test_secrets_are_not_printed():
    shown = settings(recorder={"salt": "grain"}, probes={"api_key": "token"})
    assert "grain" not in repr(shown) + shown.model_dump_json()
    assert "token" not in repr(shown.probes)


def test_settings_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        settings().mode = "observe"


def test_only_configured_models_get_labels():
    named = settings(backends=[{"url": "http://a:1", "models": ["m1", "m2"]}, {"url": "http://b:1", "models": ["m2"]}])
    assert named.model_labels == ("m1", "m2")
    assert settings().model_labels == ()


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("--max-num-seqs 9", "--max-num-seqs 9"),
        ("--api-key s3cret --max-num-seqs 9", "--api-key (hidden) --max-num-seqs 9"),
        ("--api_key=s3cret", "--api_key=(hidden)"),
        ("--api-key one two --port 1", "--api-key (hidden) --port 1"),
        ("VLLM_API_KEY=s3cret vllm serve m", "VLLM_API_KEY=(hidden) vllm serve m"),
    ],
)
def test_an_api_key_in_a_start_command_is_not_kept(written, kept):
    settings = Settings.model_validate({"backends": [{"url": "http://a:1", "engine_flags": written}]})
    assert settings.backends[0].engine_flags == kept
