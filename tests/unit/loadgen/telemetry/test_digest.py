"""Peaks, counts and means; what is missing, stale or restarted is unknown and never zero."""

import pytest

from loadgen.telemetry.digest import Telemetry, card_digests, engine_digest
from loadgen.telemetry.samples import Sample


def reading(t, **numbers):
    return Sample(t, numbers={name.replace("__", "."): value for name, value in numbers.items()})


def test_peaks_are_of_all_readings_and_differences_of_the_first_and_last():
    samples = [
        reading(-1, running=0, kv_usage=0.0, preemptions=5, finished__stop=10),
        reading(1, running=8, kv_usage=0.6, preemptions=6, finished__stop=11),
        reading(2, running=4, kv_usage=0.3, preemptions=9, finished__stop=14),
    ]
    digest = engine_digest(samples, span_s=2.0)
    assert (digest.running_peak, digest.kv_peak, digest.preemptions) == (8, 0.6, 4)
    assert digest.finished == {"stop": 4}


def test_what_the_engine_does_not_export_is_unknown():
    digest = engine_digest([reading(-1, running=0), reading(1, running=2)])
    assert (digest.kv_peak, digest.preemptions, digest.waiting_peak, digest.ttft_s) == (None,) * 4


def test_readings_that_mostly_failed_leave_the_peaks_unknown():
    samples = [reading(-1, running=0), *(Sample(float(t), error="no answer") for t in range(1, 5))]
    digest = engine_digest(samples)
    assert (digest.readings, digest.missing, digest.running_peak) == (5, 4, None)


def test_no_reading_at_all_is_unknown():
    digest = engine_digest([])
    assert (digest.readings, digest.kv_peak, digest.preemptions) == (0, None, None)


@pytest.mark.parametrize(
    ("before", "after"),
    [({"preemptions": 9}, {"preemptions": 2}), ({"started_at": 1.0}, {"started_at": 2.0})],
)
def test_a_restart_leaves_differences_unknown(before, after):
    digest = engine_digest([reading(-1, **{"preemptions": 9, **before}), reading(1, **{"preemptions": 9, **after})])
    assert (digest.restarted, digest.preemptions) == (True, None)


def test_mean_times_are_of_what_came_during_the_run_and_follow_the_speed():
    samples = [reading(-1, ttft_s=10.0, ttft_n=10), reading(1, ttft_s=12.0, ttft_n=14)]
    assert engine_digest(samples, speed=5.0).ttft_s == pytest.approx(2.5)


def test_a_mean_without_a_new_sample_is_unknown():
    samples = [reading(-1, ttft_s=10.0, ttft_n=10), reading(1, ttft_s=10.0, ttft_n=10)]
    assert engine_digest(samples).ttft_s is None


def test_shares_of_waiting_tell_full_slots_from_a_full_cache():
    samples = [
        reading(-1, running=0, waiting=0, kv_usage=0),
        reading(1, running=8, waiting=3, kv_usage=0.95),
        reading(2, running=8, waiting=2, kv_usage=0.5),
        reading(3, running=4, waiting=1, kv_usage=0.5),
        reading(4, running=4, waiting=0, kv_usage=0.5),
    ]
    digest = engine_digest(samples, span_s=4.0)
    assert digest.waiting_share == 0.75
    assert digest.pinned_share == pytest.approx(2 / 3)
    assert digest.full_share == pytest.approx(1 / 3)


def card(t, chip="0", **numbers):
    return Sample(t, cards={chip: numbers})


def test_a_card_shows_its_peaks_as_shares_and_megabytes():
    samples = [
        card(-1, hbm_used_mb=100, hbm_total_mb=400, ai_core_percent=0),
        card(1, hbm_used_mb=300, hbm_total_mb=400, ai_core_percent=90),
    ]
    (digest,) = card_digests(samples, span_s=1.0)
    assert (digest.hbm_peak_mb, digest.hbm_peak, digest.ai_core_peak, digest.ai_core_median) == (300, 0.75, 0.9, 0.9)
    assert digest.hbm_bandwidth_peak is None


def test_cards_that_were_mostly_stale_are_unknown():
    samples = [card(-1, ai_core_percent=5), Sample(1.0, error="stale"), Sample(2.0, error="stale")]
    assert card_digests(samples) == []


def test_one_engine_without_a_number_makes_the_sum_unknown():
    known = engine_digest([reading(-1, kv_usage=0.1, preemptions=0), reading(1, kv_usage=0.2, preemptions=3)])
    other = engine_digest([reading(-1, running=0), reading(1, running=0)])
    assert Telemetry(engines=(known,)).preemptions == 3
    both = Telemetry(engines=(known, other))
    assert (both.preemptions, both.kv_peak, both.engine) == (None, None, None)
    assert both.to_json()["preemptions"] is None
