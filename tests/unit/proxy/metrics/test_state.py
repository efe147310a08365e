"""Gauges of the moment: from the Dispatcher, the probes, the recorder."""

import pytest

from proxy.backends import BackendView, State
from proxy.metrics.exposition import render_at_once
from proxy.metrics.state import backend_families, recorder_families, scheduler_families
from proxy.policy.dispatch import Dispatcher
from proxy.policy.ticket import Ticket
from proxy.recorder import Counts, Dropped
from proxy.settings import Settings


def lines(families):
    return [line for line in render_at_once(families).decode().splitlines() if not line.startswith("#")]


def test_waiting_running_and_budget_are_shown():
    settings = Settings.model_validate(
        {"backends": [{"url": "http://a:1", "name": "npu"}], "scheduling": {"concurrency": 1}}
    )
    dispatcher = Dispatcher(settings.to_scheduling(), settings.to_backend_limits())
    for number in (1, 2):
        dispatcher.offer(0.0, Ticket(number, lane=0, prompt_tokens=100, output_tokens=10, body_bytes=900))
    seen = lines(scheduler_families(dispatcher.snapshot(0.0)))
    assert {
        'lanewise_queue_depth{lane="short"} 1.0',
        'lanewise_queue_tokens{lane="short"} 100.0',
        'lanewise_queue_bytes{lane="short"} 900.0',
        'lanewise_queue_limit{lane="long"} 256.0',
        'lanewise_inflight_requests{backend="npu"} 1.0',
        'lanewise_concurrency_limit{backend="npu"} 1.0',
        'lanewise_prefill_budget_used_tokens{backend="npu",lane="short"} 100.0',
        'lanewise_prefill_budget_limit_tokens{backend="npu"} 2048.0',
        'lanewise_deadline_outcomes_total{lane="short",outcome="on_time"} 1.0',
        'lanewise_prefix_affinity_total{lane="short",result="hit"} 0.0',
    } <= set(seen)


def test_the_limit_of_the_kv_guard_is_shown_where_the_size_of_the_cache_is_known():
    settings = Settings.model_validate(
        {"backends": [{"url": "http://a:1", "name": "npu", "kv_tokens": 1000}, {"url": "http://b:1", "name": "mute"}]}
    )
    dispatcher = Dispatcher(settings.to_scheduling(), settings.to_backend_limits())
    seen = [line for line in lines(scheduler_families(dispatcher.snapshot(0.0))) if "inflight_limit_tokens" in line]
    assert seen == ['lanewise_inflight_limit_tokens{backend="npu"} 900.0']


def test_a_limit_that_moved_shows_where_it_is_and_why():
    settings = Settings.model_validate(
        {"backends": [{"url": "http://a:1", "name": "npu"}], "scheduling": {"concurrency": 40}}
    )
    dispatcher = Dispatcher(settings.to_scheduling(), settings.to_backend_limits())
    dispatcher.offer(0.0, Ticket(1, lane=0, prompt_tokens=100, output_tokens=10))
    dispatcher.pace("npu", 3.0, 20)
    dispatcher.wake(2.0)
    seen = [line for line in lines(scheduler_families(dispatcher.snapshot(2.0))) if "concurrency_limit" in line]
    assert seen == [
        'lanewise_concurrency_limit{backend="npu"} 38.0',
        'lanewise_concurrency_limit_changes_total{backend="npu",cause="tpot_high",direction="down"} 1.0',
        'lanewise_concurrency_limit_changes_total{backend="npu",cause="room_used",direction="up"} 0.0',
        'lanewise_concurrency_limit_changes_total{backend="npu",cause="configured",direction="down"} 0.0',
        'lanewise_concurrency_limit_changes_total{backend="npu",cause="configured",direction="up"} 0.0',
    ]


def test_parts_of_long_prompts_are_counted_and_the_mode_of_every_backend_is_shown():
    settings = Settings.model_validate({"backends": [{"url": "http://a:1", "name": "npu"}]})
    dispatcher = Dispatcher(settings.to_scheduling(), settings.to_backend_limits())
    before = lines(scheduler_families(dispatcher.snapshot(0.0)))
    assert 'lanewise_installments_total{backend="npu",outcome="miss"} 0.0' in before
    assert not any("hit_ratio" in line for line in before)
    dispatcher.offer(0.0, Ticket(1, lane=1, prompt_tokens=9000, output_tokens=10, splittable=True))
    for cached in (0, 1024, 2040):
        dispatcher.part_ended(1.0, 1, cached)
    seen = lines(scheduler_families(dispatcher.snapshot(1.0)))
    assert {
        'lanewise_installments_total{backend="npu",outcome="first"} 1.0',
        'lanewise_installments_total{backend="npu",outcome="hit"} 2.0',
        'lanewise_installment_recomputed_tokens_total{backend="npu"} 8.0',
        'lanewise_installment_mode{backend="npu",mode="on"} 1.0',
        'lanewise_installment_mode{backend="npu",mode="off"} 0.0',
    } <= set(seen)
    assert any(line.startswith('lanewise_installment_hit_ratio{backend="npu"} 0.99') for line in seen)


def test_without_installments_there_is_no_mode():
    settings = Settings.model_validate({"backends": ["http://a:1"], "installments": "off"})
    dispatcher = Dispatcher(settings.to_scheduling(), settings.to_backend_limits())
    assert not any("installment_mode" in line for line in lines(scheduler_families(dispatcher.snapshot(0.0))))


def test_without_a_budget_there_is_no_limit_series():
    settings = Settings.model_validate(
        {"backends": ["http://a:1"], "scheduling": {"prefill_budget_tokens": "unlimited"}}
    )
    dispatcher = Dispatcher(settings.to_scheduling(), settings.to_backend_limits())
    seen = lines(scheduler_families(dispatcher.snapshot(0.0)))
    assert not [line for line in seen if "prefill_budget_limit" in line]


def test_an_unknown_engine_value_has_no_series():
    unknown = BackendView("npu", "http://a:1", State.DOWN, scrape_age_s=90.0)
    known = BackendView("gpu", "http://b:1", State.UP, waiting=0.0, kv_usage=0.5, scrape_age_s=1.0)
    shown = [line for line in lines(backend_families((unknown, known))) if "backend_state" not in line]
    assert shown == [
        'lanewise_backend_up{backend="npu"} 0.0',
        'lanewise_backend_up{backend="gpu"} 1.0',
        'lanewise_backend_waiting_requests{backend="gpu"} 0.0',
        'lanewise_backend_kv_cache_usage_ratio{backend="gpu"} 0.5',
        'lanewise_backend_scrape_age_seconds{backend="npu"} 90.0',
        'lanewise_backend_scrape_age_seconds{backend="gpu"} 1.0',
    ]


def test_lost_records_are_counted_by_reason():
    counts = Counts(written=7)
    counts.dropped[Dropped.DISK_ERROR] = 2
    assert lines(recorder_families(counts)) == [
        "lanewise_recorder_records_total 7.0",
        'lanewise_recorder_dropped_total{reason="queue_full"} 0.0',
        'lanewise_recorder_dropped_total{reason="disk_error"} 2.0',
        'lanewise_recorder_dropped_total{reason="fault"} 0.0',
    ]


@pytest.mark.parametrize(
    ("state", "drained", "word"),
    [
        (State.UP, False, "closed"),
        (State.SLOW_START, False, "closed"),
        (State.HALF_OPEN, False, "half_open"),
        (State.TRIPPED, False, "open"),
        (State.DOWN, False, "open"),
        (State.STARTING, False, "open"),
        (State.UP, True, "draining"),
    ],
)
def test_what_a_backend_gets_is_one_word_of_four(state, drained, word):
    view = BackendView("npu", "http://a:1", state, drained=drained, entered={state: 3})
    shown = lines(backend_families((view,)))
    assert [line for line in shown if line.startswith("lanewise_backend_state{") and line.endswith(" 1.0")] == [
        f'lanewise_backend_state{{backend="npu",state="{word}"}} 1.0'
    ]
    assert f'lanewise_backend_state_changes_total{{backend="npu",state="{state.value}"}} 3.0' in shown
