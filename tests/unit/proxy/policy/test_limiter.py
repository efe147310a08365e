"""The limit that follows TPOT: exact steps, bounds that always hold, and where it comes to rest."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.policy.job import NEVER
from proxy.policy.limiter import KEPT_MOVES, POSSIBLE_MOVES, Cause, Direction, Limiter, Move
from proxy.policy.limits import Adaptive, BackendLimits

SLO = Adaptive(tpot_slo_s=0.1, floor=8, ceiling=64)
GOOD, HIGH = 0.09, 0.11


class Watch:
    """A limiter that looks every two seconds."""

    def __init__(self, start=32, settings=SLO):
        self.limiter = Limiter(start, settings)
        self.now = 0.0
        self.limiter.start(0.0)

    def window(self, tpot_s, in_flight, *, tokens=100, widest=1):
        self.now += 2.0
        self.limiter.observe(tpot_s * tokens, tokens)
        self.limiter.look(self.now, in_flight, widest)
        return self.limiter.cap


@pytest.fixture
def watch():
    """Build a watched limiter: start, settings."""
    return Watch


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"floor": 9, "ceiling": 8}, "got floor 9 and ceiling 8"),
        ({"floor": 0}, "at least 1"),
        ({"tpot_slo_s": 0.0}, "above 0"),
        ({"interval_s": 0.0}, "above 0"),
        ({"decrease": 1.0}, "between 0 and 1"),
    ],
)
def test_bounds_that_leave_no_limit_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SLO, **changes)


def test_a_mean_over_the_target_takes_a_twentieth(watch):
    w = watch()
    assert [w.window(HIGH, 32), w.window(HIGH, 30), w.window(HIGH, 28)] == [30, 28, 27]  # 30.4, 28.88, 27.436
    assert w.limiter.moves[0] == Move(2.0, 32, 30, Cause.TPOT_HIGH, 32, pytest.approx(HIGH))
    assert w.limiter.moves[0].direction is Direction.DOWN


@pytest.mark.parametrize(("in_flight", "cap"), [(32, 33), (31, 33), (30, 32), (0, 32)])
def test_a_good_mean_adds_one_only_where_room_was_used_up(watch, in_flight, cap):
    assert watch().window(GOOD, in_flight) == cap


def test_room_is_used_up_when_one_more_of_the_widest_request_just_fits(watch):
    assert watch().window(GOOD, 28, widest=4) == 33
    assert watch().window(GOOD, 27, widest=4) == 32


@pytest.mark.parametrize(("tpot_s", "cap"), [(0.09499, 33), (0.09501, 30)])
def test_the_target_is_a_share_of_the_slo(watch, tpot_s, cap):
    assert watch().window(tpot_s, 32) == cap


def test_the_mean_is_over_tokens_and_not_over_reports(watch):
    w = watch()
    w.limiter.observe(1.0, 1)  # one token that took a second, among a thousand good ones
    assert w.window(GOOD, 32, tokens=1000) == 33


def test_without_samples_nothing_moves(watch):
    w = watch()
    assert [w.window(0.0, 32, tokens=0) for _ in range(10)] == [32] * 10
    assert w.limiter.moves == ()


def test_a_window_counts_half_in_the_next_and_a_quarter_in_the_one_after(watch):
    w = watch()
    assert w.window(0.2, 32) == 30
    assert w.window(0.02, 30) == 31  # (20 / 2 + 2) s over (100 / 2 + 100) tokens: 80 ms
    assert w.window(0.1, 31) == 32  # (20 / 4 + 2 / 2 + 10) s over (25 + 50 + 100) tokens: 91 ms


def test_one_bad_window_among_good_ones_moves_nothing_down(watch):
    w = watch()
    assert [w.window(0.07, 0) for _ in range(5)] == [32] * 5
    assert w.window(0.115, 0) == 32
    assert w.window(0.115, 0) == 30


def test_what_was_seen_before_a_silence_does_not_count_after_it(watch):
    w = watch()
    w.window(0.5, 0)
    assert w.limiter.due_at == NEVER
    w.limiter.start(w.now + 60.0)
    assert w.window(GOOD, 32) == 31


def test_it_stops_at_its_bounds(watch):
    high, low = watch(63), watch(9)
    assert [high.window(GOOD, 64) for _ in range(3)] == [64, 64, 64]
    assert [low.window(HIGH, 9) for _ in range(5)] == [8, 8, 8, 8, 8]
    assert (len(high.limiter.moves), len(low.limiter.moves)) == (1, 1)


@pytest.mark.parametrize(("start", "cap"), [(2, 8), (100, 64)])
def test_a_start_out_of_bounds_becomes_the_nearer_bound(start, cap):
    assert Limiter(start, SLO).cap == cap


def test_a_fixed_limit_never_looks_and_never_moves():
    fixed = Limiter(5)
    fixed.start(0.0)
    fixed.observe(100.0, 10)
    assert fixed.due_at == NEVER
    fixed.look(2.0, 5, 1)
    assert (fixed.cap, fixed.adapts, fixed.due_at) == (5, False, NEVER)


def test_it_looks_only_while_something_runs(watch):
    w = watch()
    assert w.limiter.due_at == 2.0
    w.window(GOOD, 3)
    assert w.limiter.due_at == 4.0
    w.window(GOOD, 0)
    assert w.limiter.due_at == NEVER
    w.limiter.start(100.0)
    w.limiter.start(101.0)
    assert w.limiter.due_at == 102.0


def test_a_limit_set_by_hand_stays_in_bounds_and_adapts_from_there(watch):
    w = watch()
    w.limiter.set(1.0, 40, in_flight=3)
    assert w.window(HIGH, 40) == 38
    w.limiter.set(3.0, 1000, in_flight=3)
    assert w.limiter.cap == 64
    assert w.limiter.moves[0] == Move(1.0, 32, 40, Cause.CONFIGURED, 3, None)
    assert w.limiter.counts == {
        (Direction.UP, Cause.CONFIGURED): 2,
        (Direction.DOWN, Cause.TPOT_HIGH): 1,
        (Direction.UP, Cause.ROOM_USED): 0,
        (Direction.DOWN, Cause.CONFIGURED): 0,
    }


def test_the_last_moves_are_kept_and_all_are_counted(watch):
    w = watch(8)
    for n in range(30):
        w.window(GOOD, 8 + n)
    assert [move.after for move in w.limiter.moves] == list(range(38 - KEPT_MOVES + 1, 39))
    assert w.limiter.counts[Direction.UP, Cause.ROOM_USED] == 30


def test_new_settings_keep_what_was_found_within_the_new_bounds(watch):
    w = watch()
    w.window(HIGH, 32)
    w.limiter.configure(w.now, 32, dataclasses.replace(SLO, tpot_slo_s=0.05), in_flight=1)
    assert w.limiter.cap == 30
    w.limiter.configure(w.now, 32, dataclasses.replace(SLO, ceiling=20), in_flight=1)
    assert w.limiter.cap == 20


def test_a_new_start_begins_there(watch):
    w = watch()
    w.window(HIGH, 32)
    w.limiter.configure(w.now, 48, SLO, in_flight=1)
    assert w.limiter.cap == 48


def test_a_limit_that_no_longer_adapts_is_the_configured_one(watch):
    w = watch()
    w.window(HIGH, 32)
    w.limiter.configure(w.now, 32, None, in_flight=1)
    assert (w.limiter.cap, w.limiter.due_at) == (32, NEVER)
    w.limiter.configure(w.now, 32, SLO, in_flight=1)
    assert w.limiter.due_at == w.now + 2.0


def test_what_was_seen_before_it_adapts_does_not_count():
    limiter = Limiter(32)
    limiter.observe(1000.0, 1)
    limiter.configure(0.0, 32, SLO, in_flight=32)
    limiter.look(2.0, 32, 1)
    assert limiter.cap == 32


WINDOWS = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 50), st.integers(0, 300), st.integers(1, 8)), max_size=60)


@settings(deadline=None)
@given(start=st.integers(1, 400), floor=st.integers(1, 50), more=st.integers(0, 200), windows=WINDOWS)
def test_the_limit_never_leaves_its_bounds_and_moves_by_the_rule_alone(start, floor, more, windows):
    settings = Adaptive(tpot_slo_s=0.1, floor=floor, ceiling=floor + more)
    w = Watch(start, settings)
    limit = float(min(max(start, floor), floor + more))
    seconds = weight = 0.0
    for tpot_s, tokens, in_flight, widest in windows:
        if w.limiter.due_at == NEVER:
            w.limiter.start(w.now)
            seconds = weight = 0.0
        cap = w.window(tpot_s, in_flight, tokens=tokens, widest=widest)
        if tokens:
            total, count = seconds + tpot_s * tokens, weight + tokens
            seconds, weight = 0.5 * total, 0.5 * count
            mean = total / count
        if tokens and mean > 0.095:
            limit = max(floor, 0.95 * limit)
        elif tokens and in_flight >= limit - widest:
            limit = min(floor + more, limit + 1)
        assert floor <= cap <= floor + more
        assert cap == int(limit)
    changes = sum(w.limiter.counts.values())
    assert len(w.limiter.moves) == min(KEPT_MOVES, changes)
    assert set(w.limiter.counts) == set(POSSIBLE_MOVES)


@settings(deadline=None)
@given(start=st.integers(8, 256), knee=st.integers(12, 200))
def test_it_comes_to_rest_where_tpot_meets_the_target(start, knee):
    """TPOT grows with what runs and meets the target at `knee`; there is always more to run."""
    w = Watch(start, Adaptive(tpot_slo_s=0.1))
    seen = [w.window(0.095 * w.limiter.cap / knee, w.limiter.cap) for _ in range(500)]
    assert all(0.95 * knee - 1 <= cap <= knee + 1 for cap in seen[-50:])


def test_an_adaptive_limit_in_the_dispatcher_grants_as_it_grows_and_shows_why(desk):
    d = desk(limits=[BackendLimits("a", 8, adaptive=SLO)])
    for _ in range(10):
        d.offer(10)
    assert (len(d.grants), d.dispatcher.next_wake()) == (8, pytest.approx(1.0 - 10 * 0.0001))
    d.first_token(*d.granted)
    d.dispatcher.pace("a", 0.08 * 50, 50)
    d.now = 2.0
    d.wake()
    seen = d.backend()
    assert (seen.concurrency, seen.adaptive) == (9, True)
    assert seen.limit_moves == (Move(2.0, 8, 9, Cause.ROOM_USED, 8, pytest.approx(0.08)),)
    assert seen.limit_changes[Direction.UP, Cause.ROOM_USED] == 1


def test_room_that_adaptation_makes_is_used_at_once(desk):
    d = desk(limits=[BackendLimits("a", 8, adaptive=SLO)], drop_factor=None)
    for _ in range(10):
        d.offer(10)
    d.first_token(*d.granted)
    d.dispatcher.pace("a", 0.08 * 50, 50)
    d.now = 2.0
    d.wake()
    assert d.granted == list(range(1, 10))
    assert d.backend().in_flight == 9


def test_an_idle_dispatcher_has_no_timer(desk):
    d = desk(limits=[BackendLimits("a", 8, adaptive=SLO), BackendLimits("b", 8)])
    assert d.dispatcher.next_wake() is None
    d.offer(10)
    assert d.dispatcher.next_wake() == 2.0
    d.first_token(1)
    d.now = 1.0
    d.leave(1)
    d.now = 2.0
    d.wake()
    assert d.dispatcher.next_wake() is None


def test_the_pace_of_a_backend_that_has_gone_is_ignored(desk):
    d = desk(limits=[BackendLimits("a", 8, adaptive=SLO)])
    d.offer(10)
    d.dispatcher.pace("z", 10.0, 1)
    d.now = 2.0
    d.wake()
    assert d.backend().limit_moves == ()


def test_a_wide_request_lets_the_limit_grow_past_it(desk):
    d = desk(limits=[BackendLimits("a", 10, adaptive=SLO)], drop_factor=None)
    for _ in range(3):
        d.offer(10, sequences=4)
    d.first_token(*d.granted)
    for seconds in (2.0, 4.0):
        d.now = seconds
        d.dispatcher.pace("a", 0.05, 1)
        d.wake()
    assert d.backend().in_flight == 8
    assert d.backend().concurrency == 11, "the window after the grants knows no wide request any more"


def test_a_reload_keeps_an_adapted_limit_until_another_start_is_configured(desk):
    d = desk(limits=[BackendLimits("a", 8, adaptive=SLO)], drop_factor=None)
    for _ in range(9):
        d.offer(10)
    d.dispatcher.pace("a", 0.05, 1)
    d.now = 2.0
    d.wake()
    d.reconfigure(ageing=1.0)
    assert (d.backend().concurrency, d.dispatcher.next_wake()) == (9, 4.0)
    d.reconfigure(backends=[BackendLimits("a", 12, adaptive=SLO)])
    assert d.backend().concurrency == 12
    d.reconfigure(backends=[BackendLimits("a", 12)])
    assert (d.backend().adaptive, d.dispatcher.next_wake()) == (False, None)
