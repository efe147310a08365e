"""What can be seen from outside."""

import dataclasses

import pytest

from proxy.policy.installments import Installments
from proxy.policy.limits import BackendLimits


def test_a_fresh_dispatcher_shows_its_limits_and_nothing_else(desk):
    seen = desk(kv_tokens=1000).see()
    lane, backend = seen.lanes[0], seen.backends[0]
    assert (lane.name, lane.limit_requests, lane.waiting_requests, lane.oldest_wait_s) == ("short", 1000, 0, 0.0)
    assert (lane.head_blocked, lane.retry_after_s, lane.prefill_s_per_token) == (None, 1.0, 0.0001)
    assert (backend.name, backend.concurrency, backend.prefill_budget, backend.kv_limit) == ("a", 8, 2048, 900)
    assert (backend.up, backend.installments, seen.live, seen.draining) == (True, None, 0, False)


def test_gauges_show_who_waits_and_for_how_long(desk):
    d = desk(concurrency=1)
    d.offer(10)
    d.offer(100, body_bytes=7)
    d.now = 0.25
    d.offer(50, body_bytes=5)
    lane = d.lane(0)
    assert (lane.waiting_requests, lane.waiting_tokens, lane.waiting_bytes) == (2, 150, 12)
    assert lane.oldest_wait_s == 0.25
    assert (lane.offered, lane.granted_on_time, d.see().live) == (3, 1, 3)


@pytest.mark.parametrize(
    ("options", "first", "second", "reason"),
    [
        ({"concurrency": 1}, 100, 100, "cap"),
        ({"prefill_budget_tokens": 150}, 100, 100, "prefill"),
        ({"kv_tokens": 200}, 100, 100, "kv"),
        ({"installments": Installments()}, 5000, 5000, "started"),
    ],
)
def test_the_head_says_what_it_waits_for(desk, options, first, second, reason):
    d = desk(drop_factor=None, **options)
    d.offer(first, splittable=True)
    d.offer(second, splittable=True)
    assert d.lane(int(first > 2048)).head_blocked == reason


def test_a_head_without_an_engine_says_so(desk):
    d = desk(concurrency=1)
    d.offer()
    d.offer()
    d.up("a", False)
    assert d.lane(0).head_blocked == "none_up"


def test_a_head_that_could_go_but_for_someone_overdue_says_so(desk):
    d = desk(drop_factor=None, concurrency=4)
    d.offer(10)
    d.offer(10, sequences=4, lane=1)
    d.now = 60.0
    d.offer(10)
    assert d.granted == [1]
    assert d.lane(0).head_blocked == "held"
    assert d.lane(1).head_blocked == "cap"


def test_installment_mode_is_shown_where_installments_are_configured(desk):
    assert desk(installments=Installments()).backend().installments == "unknown"


def test_a_snapshot_cannot_be_changed(desk):
    with pytest.raises(dataclasses.FrozenInstanceError):
        desk().see().lanes[0].offered = 5


def test_rejections_and_drops_are_counted(desk):
    d = desk(limits=[BackendLimits("a", 1)], drop_factor=1.0)
    d.offer(10)
    d.offer(10)
    d.now = 2.0
    d.wake()
    d.up("a", False)
    d.offer(10)
    assert (d.lane(0).dropped, d.lane(0).rejected, d.lane(0).offered) == (1, 1, 3)
