"""The rules of the Dispatcher, one by one, with exact values."""

import pytest

from proxy.policy.limits import BackendLimits, BudgetMode, LaneLimits, LaneOrder, QueueOrder
from proxy.policy.outcome import Ending, Outcome, Reason
from proxy.policy.ticket import Grant, Ticket

PLENTY = 10**9


# ---------------------------------------------------------------- grants


def test_a_request_to_an_idle_engine_is_granted_at_once(desk):
    d = desk()
    d.offer(100, 10, body_bytes=7)
    assert d.grants == [
        Grant(Ticket(1, 0, 100, 10, body_bytes=7), backend="a", upto_tokens=100, part=0, final=True),
    ]
    assert d.refusals == []


def test_a_grant_holds_slot_prefill_and_kv_until_each_is_over(desk):
    d = desk()
    d.offer(100, 10)
    assert (d.backend().in_flight, d.backend().prefill_tokens, d.backend().kv_tokens) == (1, 100, 110)
    d.first_token(1)
    assert (d.backend().in_flight, d.backend().prefill_tokens, d.backend().kv_tokens) == (1, 0, 110)
    d.leave(1)
    assert (d.backend().in_flight, d.backend().prefill_tokens, d.backend().kv_tokens) == (0, 0, 0)


def test_a_slot_is_held_until_the_ticket_leaves(desk):
    d = desk(concurrency=1, drop_factor=None)
    d.offer()
    d.offer()
    d.first_token(1)
    assert d.granted == [1]
    d.leave(1)
    assert d.granted == [1, 2]


def test_sequences_count_as_that_many_slots(desk):
    d = desk(concurrency=4)
    d.offer(sequences=3)
    d.offer(sequences=2)
    assert d.granted == [1]
    assert d.backend().in_flight == 3
    d.leave(1)
    assert d.granted == [1, 2]


def test_a_ticket_wider_than_the_cap_runs_alone(desk):
    d = desk(concurrency=4, drop_factor=None)
    d.offer()
    d.offer(sequences=9)
    assert d.granted == [1]
    d.leave(1)
    assert d.granted == [1, 2]
    d.offer()
    assert d.granted == [1, 2]


def test_outstanding_prefill_stays_within_the_budget(desk):
    d = desk(prefill_budget_tokens=1000)
    d.offer(600)
    d.offer(400)
    d.offer(1)
    assert d.granted == [1, 2]
    d.first_token(2)
    assert d.granted == [1, 2, 3]


def test_the_budget_yields_to_one_prompt_that_is_larger_than_it(desk):
    d = desk(prefill_budget_tokens=1000)
    d.offer(5000)
    d.offer(1)
    assert d.granted == [1]


def test_without_a_budget_only_the_cap_counts(desk):
    d = desk(prefill_budget_tokens=None, concurrency=3)
    for _ in range(4):
        d.offer(2000)
    assert d.granted == [1, 2, 3]


def test_separate_budgets_give_short_prompts_four_chunks_and_long_ones_one_request(desk):
    d = desk(budget_mode=BudgetMode.SEPARATE, prefill_budget_tokens=500)
    d.offer(3000)
    d.offer(3000)
    d.offer(1500)
    d.offer(500)
    d.offer(1)
    assert d.granted == [1, 3, 4]
    d.first_token(1)
    assert d.granted == [1, 3, 4, 2]


def test_without_a_budget_separate_mode_bounds_nothing(desk):
    d = desk(budget_mode=BudgetMode.SEPARATE, prefill_budget_tokens=None)
    d.offer(3000)
    d.offer(3000)
    assert d.granted == [1, 2]


def test_a_single_lane_is_never_treated_as_the_long_one(desk):
    one = (LaneLimits("all", None, 1.0, 9, PLENTY, PLENTY),)
    d = desk(lanes=one, budget_mode=BudgetMode.SEPARATE, prefill_budget_tokens=500)
    d.offer(900, lane=0)
    d.offer(900, lane=0)
    assert d.granted == [1, 2]


def test_kv_expected_stays_within_its_share_of_the_cache(desk):
    d = desk(kv_tokens=1000, drop_factor=None)
    d.offer(500, 100)
    d.offer(200, 101)
    assert d.granted == [1]
    d.first_token(1)
    assert d.granted == [1]
    d.leave(1)
    assert d.granted == [1, 2]


def test_the_kv_guard_yields_to_one_request_on_an_idle_engine(desk):
    d = desk(kv_tokens=1000)
    d.offer(2000, 5000)
    assert d.granted == [1]


# ---------------------------------------------------------------- order


def test_the_short_lane_goes_first(desk):
    d = desk(concurrency=1)
    d.offer(10)
    d.offer(3000)
    d.now = 0.1
    d.offer(2000)
    d.leave(1)
    assert d.granted == [1, 3]


def test_in_deadline_order_the_one_that_would_be_late_first_goes_first(desk):
    d = desk(concurrency=1, lane_order=LaneOrder.DEADLINE)
    d.offer(10)
    d.offer(40_000)  # late 5 - 4 = 1 s after arrival
    d.now = 0.3
    d.offer(2000)  # late 1 - 0.2 s after arrival, at 1.1
    d.leave(1)
    assert d.granted == [1, 2]
    d.leave(2)
    assert d.granted == [1, 2, 3]


def test_shorter_requests_of_a_lane_go_first(desk):
    d = desk(concurrency=1)
    for prompt in (10, 900, 300, 600):
        d.offer(prompt)
    d.leave(1)
    d.leave(3)
    d.leave(4)
    assert d.granted == [1, 3, 4, 2]


def test_ageing_lets_a_long_wait_outweigh_a_short_prompt(desk):
    d = desk(concurrency=1, ageing=10, drop_factor=None)
    d.offer(10)
    d.offer(1000)  # key 0 + 10 * 0.1 s
    d.now = 0.96
    d.offer(50)  # key 0.96 + 10 * 0.005 s: just behind
    d.leave(1)
    assert d.granted == [1, 2]


def test_expected_output_counts_in_the_order_of_a_lane(desk):
    d = desk(concurrency=1, decode_weight=8.0)
    d.offer(10)
    d.offer(100, 100)
    d.offer(700, 10)
    d.leave(1)
    assert d.granted == [1, 3]


def test_fifo_serves_in_order_of_arrival(desk):
    d = desk(concurrency=1, queue_order=QueueOrder.FIFO)
    for prompt in (10, 900, 300, 600):
        d.offer(prompt)
    for i in (1, 2, 3):
        d.leave(i)
    assert d.granted == [1, 2, 3, 4]


def test_what_stands_behind_a_blocked_head_does_not_overtake_it(desk):
    d = desk(prefill_budget_tokens=1000, queue_order=QueueOrder.FIFO)
    d.offer(900)
    d.offer(200)
    d.offer(50)
    assert d.granted == [1]


def test_a_blocked_lane_does_not_close_the_other(desk):
    d = desk(prefill_budget_tokens=1000)
    d.offer(900)
    d.offer(3000)
    d.offer(100)
    assert d.granted == [1, 3]


# ---------------------------------------------------------------- deadlines


def test_a_request_that_can_no_longer_be_in_time_is_shed(desk):
    d = desk(concurrency=1, drop_factor=1.0)
    d.offer(10)
    d.offer(1000)
    assert d.dispatcher.next_wake() == pytest.approx(0.9)
    d.now = 0.9
    d.wake()
    assert d.refused == [(2, "expired", "queue_timeout")]
    assert "1000 prompt tokens" in d.refusals[0].detail


def test_a_late_head_is_shed_even_when_its_timer_was_not_called(desk):
    d = desk(concurrency=1)
    d.offer(10)
    d.offer(1000)
    d.now = 0.95
    d.leave(1)
    assert d.granted == [1]
    assert d.refused == [(2, "expired", "queue_timeout")]


def test_the_margin_makes_a_deadline_earlier(desk):
    d = desk(concurrency=1, deadline_margin_s=0.25)
    d.offer(10)
    d.offer(1000)
    assert d.dispatcher.next_wake() == pytest.approx(0.65)


def test_above_one_a_late_request_steps_behind_those_on_time_and_is_dropped_later(desk):
    d = desk(concurrency=1, drop_factor=3.0)
    d.offer(10)
    d.offer(1000)
    d.now = 0.95
    d.wake()
    assert d.refused == []
    assert (d.lane(0).demoted_now, d.lane(0).demoted) == (1, 1)
    d.offer(3000)
    d.leave(1)
    assert d.granted == [1, 3]
    assert d.dispatcher.next_wake() == pytest.approx(2.9)
    d.now = 2.9
    d.wake()
    assert d.refused == [(2, "expired", "queue_timeout")]
    assert (d.lane(0).demoted_now, d.lane(0).dropped) == (0, 1)


def test_a_demoted_request_is_served_when_nobody_is_on_time(desk):
    d = desk(concurrency=1, drop_factor=5.0)
    d.offer(10)
    d.offer(1000)
    d.now = 2.0
    d.leave(1)
    assert d.granted == [1, 2]
    assert (d.lane(0).granted_on_time, d.lane(0).granted_late) == (1, 1)


def test_a_demoted_request_does_not_overtake_a_blocked_head_of_its_lane(desk):
    d = desk(prefill_budget_tokens=1000, drop_factor=5.0)
    d.offer(900)
    d.offer(300)
    d.now = 0.98
    d.wake()
    d.offer(500)
    d.offer(100)  # a shorter one is the head now, and fits
    assert d.granted == [1, 4]
    d.leave(4)
    assert d.granted == [1, 4]
    d.first_token(1)
    assert d.granted == [1, 4, 3, 2]


def test_without_a_drop_factor_nobody_is_ever_dropped_or_demoted(desk):
    d = desk(concurrency=1, drop_factor=None)
    d.offer(10)
    d.offer(1000)
    assert d.dispatcher.next_wake() is None
    d.now = 1e6
    d.wake()
    d.leave(1)
    assert d.granted == [1, 2]
    assert (d.lane(0).demoted, d.lane(0).granted_on_time) == (0, 2)


def test_a_prompt_that_could_never_meet_its_deadline_goes_to_an_idle_engine_only(desk):
    d = desk(drop_factor=1.0)
    d.offer(80_000)  # 8 s of prefill against 5 s
    assert d.granted == [1]
    d.first_token(1)
    d.offer(80_000)
    assert d.granted == [1]
    assert d.refused == [(2, "expired", "queue_timeout")]


# ---------------------------------------------------------------- prefill speed


def test_the_first_token_teaches_the_prefill_speed(desk):
    d = desk(step_s=0.02)
    d.offer(1000)
    d.now = 0.33  # (0.33 - 1.5 * 0.02) / 1000 = 0.0003
    d.first_token(1)
    assert d.lane(0).prefill_s_per_token == pytest.approx(0.0001 + 0.05 * 0.0002)
    assert d.lane(1).prefill_s_per_token == 0.0001


def test_prefill_ahead_is_divided_out_of_the_prefill_speed(desk):
    d = desk(step_s=0.0)
    d.offer(600)
    d.offer(400)
    d.now = 0.2
    d.first_token(2)  # 0.2 s for its own 400 and the 600 ahead
    assert d.lane(0).prefill_s_per_token == pytest.approx(0.0001 + 0.05 * 0.0001)


def test_a_prompt_below_256_tokens_teaches_nothing(desk):
    d = desk()
    d.offer(255)
    d.now = 9.0
    d.first_token(1)
    assert d.lane(0).prefill_s_per_token == 0.0001


@pytest.mark.parametrize(("after", "bound"), [(1e6, 4.0), (0.0, 0.5)])
def test_the_prefill_speed_stays_within_half_and_four_times_the_configured_one(desk, after, bound):
    d = desk(step_s=0.5)
    for _ in range(100):
        i = d.offer(300)
        d.now += after
        d.first_token(i)
        d.leave(i)
    assert d.lane(0).prefill_s_per_token == pytest.approx(bound * 0.0001)


def test_lateness_follows_the_learned_speed(desk):
    d = desk(concurrency=1, step_s=0.0, drop_factor=1.0)
    for _ in range(200):
        i = d.offer(1000)
        d.now += 0.4
        d.first_token(i)
        d.leave(i)
    assert d.lane(0).prefill_s_per_token == pytest.approx(0.0004, rel=1e-3)
    d.offer(10)
    d.offer(1000)
    assert d.dispatcher.next_wake() == pytest.approx(d.now + 0.6, abs=1e-3)


def test_timers_move_when_the_speed_has_moved_far(desk):
    d = desk(step_s=0.0, concurrency=1, drop_factor=1.0)
    d.offer(1000)
    d.offer(1000)
    assert d.dispatcher.next_wake() == pytest.approx(0.9)
    d.now = 0.5
    d.first_token(1)  # 0.5 ms a token: c is 0.12 ms now
    assert d.dispatcher.next_wake() == pytest.approx(0.88)


# ---------------------------------------------------------------- first tokens that cannot be seen


def test_a_budget_without_a_first_token_comes_back_by_the_clock(desk):
    d = desk(prefill_budget_tokens=1000, step_s=0.02, drop_factor=None)
    d.offer(400)
    d.offer(600, streams=False)
    d.offer(700)
    assert d.dispatcher.next_wake() == pytest.approx(1.5 * 0.0001 * 1000 + 0.02)
    d.first_token(1)
    assert d.granted == [1, 2]
    d.now = 0.17
    d.wake()
    assert d.granted == [1, 2, 3]
    assert d.backend().prefill_tokens == 700
    assert d.dispatcher.next_wake() is None


def test_an_unseen_first_token_teaches_nothing(desk):
    d = desk()
    d.offer(1000, streams=False)
    d.now = 3.0
    d.first_token(1)
    assert d.lane(0).prefill_s_per_token == 0.0001
    assert d.backend().prefill_tokens == 0


def test_the_timer_of_a_ticket_that_left_does_nothing(desk):
    d = desk()
    d.offer(1000, streams=False)
    d.leave(1)
    assert d.dispatcher.next_wake() is None
    d.now = 5.0
    assert d.wake() == []


# ---------------------------------------------------------------- hard limits


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ((1, PLENTY, PLENTY), "1 requests wait and at most 1 may"),
        ((9, 150, PLENTY), "100 prompt tokens wait, this request brings 100 and at most 150 may wait"),
        ((9, PLENTY, 1500), "1000 body bytes wait, this request brings 1000 and at most 1500 may wait"),
    ],
)
def test_over_any_limit_of_its_lane_a_request_is_rejected_at_once(desk, limits, sentence):
    lanes = (LaneLimits("short", 2048, 1.0, *limits), LaneLimits("long", None, 5.0, 9, PLENTY, PLENTY))
    d = desk(concurrency=1, lanes=lanes)
    for _ in range(3):
        d.offer(100, body_bytes=1000)
    d.offer(3000, body_bytes=1000)
    assert d.refused == [(3, "rejected", "queue_full")]
    assert sentence in d.refusals[0].detail
    assert (d.lane(0).waiting_requests, d.lane(1).waiting_requests) == (1, 1)


def test_limits_are_about_waiting_and_not_about_running(desk):
    lanes = (LaneLimits("short", 2048, 1.0, 0, 0, 0), LaneLimits("long", None, 5.0, 9, PLENTY, PLENTY))
    d = desk(concurrency=2, lanes=lanes)
    d.offer()
    d.offer()
    d.offer()
    assert d.granted == [1, 2]
    assert d.refused == [(3, "rejected", "queue_full")]


def test_an_arrival_over_the_limits_may_still_go_at_once_past_another_lane(desk):
    lanes = (LaneLimits("short", 2048, 1.0, 0, 0, 0), LaneLimits("long", None, 5.0, 9, PLENTY, PLENTY))
    d = desk(lanes=lanes, prefill_budget_tokens=1000)
    d.offer(500)
    d.offer(3000)
    d.offer(500)
    d.offer(500)
    assert d.granted == [1, 3]
    assert d.refused == [(4, "rejected", "queue_full")]
    assert d.lane(0).waiting_requests == 0


def test_retry_after_is_the_queued_work_over_the_measured_drain_rate(desk):
    lanes = (LaneLimits("short", 2048, 1.0, 100, PLENTY, PLENTY), LaneLimits("long", None, 5.0, 9, PLENTY, PLENTY))
    d = desk(concurrency=1, lanes=lanes, drop_factor=None)
    d.offer(1000)
    for _ in range(100):
        d.offer(1000)
    for i in range(1, 41):  # one request of 0.1 s of work each half second: 0.2 a second
        d.now += 0.5
        d.leave(i)
    d.offer(1000)
    for _ in range(40):
        d.offer(1000)
    refusal = d.refusals[-1]
    assert refusal.reason is Reason.QUEUE_FULL
    assert refusal.retry_after_s == pytest.approx(100 * 0.1 / 0.2, rel=0.1)


def test_retry_after_is_never_below_one_second(desk):
    lanes = (LaneLimits("short", 2048, 1.0, 0, 0, 0), LaneLimits("long", None, 5.0, 9, PLENTY, PLENTY))
    d = desk(concurrency=1, lanes=lanes)
    d.offer()
    d.offer()
    assert d.refusals[0].retry_after_s == 1.0


# ---------------------------------------------------------------- backends


def test_the_backend_with_the_least_outstanding_work_is_chosen(desk):
    d = desk(2, decode_weight=8.0)
    d.offer(1000, 10)
    d.offer(100, 10)
    d.offer(100, 10)
    assert [grant.backend for grant in d.grants] == ["a", "b", "b"]


def test_expected_output_still_to_come_counts_as_outstanding_work(desk):
    d = desk(2, decode_weight=8.0)
    d.offer(100, 1000)
    d.offer(1500, 10)
    d.first_token(1, 2)
    d.offer(100, 10)
    assert [grant.backend for grant in d.grants] == ["a", "b", "b"]


def test_a_faster_backend_takes_more(desk):
    d = desk(limits=[BackendLimits("slow", 8), BackendLimits("fast", 8, weight=3.0)])
    for _ in range(4):
        d.offer(100)
    assert [grant.backend for grant in d.grants] == ["fast", "fast", "slow", "fast"]


def test_a_model_goes_only_where_it_is_served(desk):
    d = desk(limits=[BackendLimits("a", 1, frozenset({"m"})), BackendLimits("b", 1, frozenset({"n"}))])
    d.offer(model="n")
    d.offer(model="n")
    d.offer(model="m")
    assert [(grant.ticket.id, grant.backend) for grant in d.grants] == [(1, "b"), (3, "a")]


def test_a_model_that_nobody_names_goes_to_any_backend(desk):
    d = desk(limits=[BackendLimits("a", 1, frozenset({"m"})), BackendLimits("b", 1, frozenset({"n"}))])
    d.offer(model="x")
    d.offer(model=None)
    assert [grant.backend for grant in d.grants] == ["a", "b"]


def test_a_model_that_waits_for_its_engine_holds_up_no_other(desk):
    d = desk(limits=[BackendLimits("a", 1, frozenset({"m"})), BackendLimits("b", 1, frozenset({"n"}))])
    d.offer(model="m")
    d.offer(10, model="m")
    d.offer(900, model="n")
    assert d.granted == [1, 3]


def test_with_no_backend_up_a_request_is_rejected_at_once(desk):
    d = desk(2)
    d.up("a", False)
    d.offer()
    d.up("b", False)
    d.offer()
    assert d.granted == [1]
    assert d.refused == [(2, "rejected", "no_backend")]
    assert d.refusals[0].detail == "no backend is up"


def test_a_model_whose_backends_are_all_down_is_rejected_by_name(desk):
    d = desk(limits=[BackendLimits("a", 1, frozenset({"m"})), BackendLimits("b", 1, frozenset({"n"}))])
    d.up("a", False)
    d.offer(model="m")
    assert d.refusals[0].detail == "no backend that serves 'm' is up"


def test_waiting_requests_go_when_a_backend_comes_up(desk):
    d = desk(concurrency=1)
    d.offer()
    d.offer()
    d.up("a", False)
    d.leave(1, ending=Ending.DROPPED)
    assert d.granted == [1]
    d.up("a", True)
    assert d.granted == [1, 2]


def test_without_deadlines_nobody_waits_for_an_engine_that_is_gone(desk):
    d = desk(concurrency=1, drop_factor=None)
    for _ in range(3):
        d.offer()
    d.up("a", False)
    assert d.refused == [(2, "rejected", "no_backend"), (3, "rejected", "no_backend")]


def test_a_lower_concurrency_holds_for_what_comes_next(desk):
    d = desk(concurrency=4)
    for _ in range(3):
        d.offer()
    d.dispatcher.set_concurrency(d.now, "a", 2)
    d.offer()
    d.leave(1)
    assert d.granted == [1, 2, 3]
    d.leave(2)
    assert d.granted == [1, 2, 3, 4]


def test_a_higher_concurrency_lets_waiting_requests_go(desk):
    d = desk(concurrency=1)
    for _ in range(3):
        d.offer()
    d.keep(d.dispatcher.set_concurrency(d.now, "a", 2))
    assert d.granted == [1, 2]


def test_concurrency_is_never_below_one(desk):
    d = desk(concurrency=4)
    d.dispatcher.set_concurrency(d.now, "a", 0)
    assert d.backend().concurrency == 1


def test_an_unknown_backend_is_an_error_that_names_the_known_ones(desk):
    d = desk(2)
    with pytest.raises(KeyError, match="'z'; there are a, b"):
        d.up("z", True)


# ---------------------------------------------------------------- giving a grant back


def test_a_grant_given_back_goes_to_another_backend_at_the_head_of_its_lane(desk):
    d = desk(2, concurrency=1)
    d.offer(900)
    d.offer(900)
    d.offer(10)
    assert [grant.backend for grant in d.grants] == ["a", "b"]
    d.give_back(1)
    assert d.granted == [1, 2]  # "a" has room, but it waits for the other one, and at the head: 3 is shorter
    assert d.lane(0).returned == 1
    d.leave(2)
    assert [(grant.ticket.id, grant.backend) for grant in d.grants[2:]] == [(1, "b"), (3, "a")]


def test_with_one_backend_a_grant_given_back_goes_there_again(desk):
    d = desk(1)
    d.offer()
    d.give_back(1)
    assert [(grant.ticket.id, grant.backend) for grant in d.grants] == [(1, "a"), (1, "a")]
    assert d.backend().in_flight == 1


def test_a_second_grant_given_back_is_refused(desk):
    d = desk(2)
    d.offer()
    d.give_back(1)
    d.give_back(1)
    assert d.refused == [(1, "rejected", "no_backend")]
    assert [b.in_flight for b in d.see().backends] == [0, 0]
    assert d.leave(1) == []


def test_a_grant_given_back_by_the_last_backend_that_went_down_is_refused(desk):
    d = desk(1)
    d.offer()
    d.up("a", False)
    d.give_back(1)
    assert d.refused == [(1, "rejected", "no_backend")]


def test_a_ticket_that_waits_again_does_not_count_against_the_limits(desk):
    lanes = (LaneLimits("short", 2048, 1.0, 1, PLENTY, PLENTY), LaneLimits("long", None, 5.0, 9, PLENTY, PLENTY))
    d = desk(2, concurrency=1, lanes=lanes)
    for _ in range(3):
        d.offer()
    d.dispatcher.set_backend_up(0, "a", False)
    d.give_back(1)
    assert (d.lane(0).waiting_requests, d.lane(0).returned) == (1, 1)
    assert d.refused == []


def test_the_deadline_holds_for_a_ticket_that_waits_again(desk):
    d = desk(2, concurrency=1)
    d.offer(1000)
    d.offer(1000)
    d.give_back(1)
    d.now = 0.95
    d.wake()
    assert d.refused == [(1, "expired", "queue_timeout")]


# ---------------------------------------------------------------- leaving, draining


def test_a_waiting_ticket_leaves_the_queue(desk):
    d = desk(concurrency=1)
    d.offer()
    d.offer()
    d.leave(2, ending=Ending.IGNORED)
    assert d.lane(0).waiting_requests == 0
    d.leave(1)
    assert d.granted == [1]


def test_a_head_that_leaves_lets_the_next_one_go(desk):
    d = desk(prefill_budget_tokens=1000, queue_order=QueueOrder.FIFO)
    d.offer(900)
    d.offer(200)
    d.offer(100)
    d.leave(2, ending=Ending.IGNORED)
    assert d.granted == [1, 3]


def test_leaving_again_or_after_a_refusal_is_harmless(desk):
    d = desk(concurrency=1)
    d.offer()
    d.leave(1)
    assert d.leave(1) == []
    assert d.leave(77) == []
    assert d.backend().in_flight == 0


def test_endings_and_output_are_counted_by_backend(desk):
    d = desk()
    for ending, tokens in ((Ending.MEASURED, 30), (Ending.MEASURED, 12), (Ending.IGNORED, None), (Ending.DROPPED, 1)):
        d.leave(d.offer(), ending=ending, output_tokens=tokens)
    assert d.backend().endings == {Ending.MEASURED: 2, Ending.IGNORED: 1, Ending.DROPPED: 1}
    assert d.backend().output_tokens == 43


def test_draining_refuses_what_comes_and_serves_what_waits(desk):
    d = desk(concurrency=1)
    d.offer()
    d.offer()
    d.keep(d.dispatcher.drain(d.now))
    d.offer()
    assert d.refused == [(3, "draining", "draining")]
    assert d.refusals[0].outcome is Outcome.DRAINING
    d.leave(1)
    assert d.granted == [1, 2]
    assert d.see().draining


# ---------------------------------------------------------------- starvation without deadlines


def test_a_giant_without_a_deadline_goes_before_all_once_it_waited_ten_times_its_slo(desk):
    d = desk(drop_factor=None, prefill_budget_tokens=1000)
    d.offer(400)
    d.offer(9000)
    running = [1]
    while d.now < 49.9:  # short ones keep the budget in use all the time
        d.now += 0.1
        running.append(d.offer(400))
        if d.now > 0.15:
            done = running.pop(0)
            d.leave(done)
    assert 2 not in d.granted
    for _ in range(4):
        d.now += 0.1
        running.append(d.offer(400))
        d.leave(running.pop(0))
    assert 2 in d.granted


# ---------------------------------------------------------------- misuse


def test_two_live_tickets_cannot_share_an_id(desk):
    d = desk()
    d.dispatcher.offer(0.0, Ticket(5, 0, 10, 10))
    with pytest.raises(ValueError, match="ticket 5 is live already"):
        d.dispatcher.offer(0.0, Ticket(5, 0, 10, 10))


def test_a_ticket_of_a_lane_that_does_not_exist_is_an_error(desk):
    with pytest.raises(ValueError, match="names lane 2 of 2"):
        desk().offer(lane=2)


@pytest.mark.parametrize("event", ["first_token", "part_ended", "part_failed", "give_back"])
def test_an_event_that_cannot_happen_names_the_stage(desk, event):
    d = desk(concurrency=1)
    d.offer()
    d.offer()
    with pytest.raises(ValueError, match=f"{event} cannot happen to ticket 2, which is waiting"):
        getattr(d.dispatcher, event)(0.0, 2)


@pytest.mark.parametrize("event", ["first_token", "part_ended", "part_failed", "give_back"])
def test_an_event_of_a_ticket_that_has_left_is_ignored(desk, event):
    assert getattr(desk().dispatcher, event)(0.0, 9) == []


def test_a_second_first_token_changes_nothing(desk):
    d = desk()
    d.offer()
    d.first_token(1)
    assert d.first_token(1) == []
    assert d.backend().prefill_tokens == 0


# ---------------------------------------------------------------- repr


def test_the_repr_shows_the_state(desk):
    d = desk(2, concurrency=1)
    for prompt in (100, 100, 100, 3000):
        d.offer(prompt)
    d.up("b", False)
    text = "<Dispatcher short 1/1000 waiting, long 1/1000 waiting; a 1/1 in flight, b 1/1 in flight (down)>"
    assert repr(d.dispatcher) == text
    d.dispatcher.drain(0.0)
    assert repr(d.dispatcher).endswith("; draining>")


# ---------------------------------------------------------------- tickets that nothing holds


def test_a_ticket_that_goes_at_once_goes_over_every_limit_and_counts_as_running(desk):
    d = desk(concurrency=1, prefill_budget_tokens=100, kv_tokens=100)
    d.offer(100, 10)
    d.offer(5000, 10, at_once=True)
    d.offer(100, 10)
    assert d.granted == [1, 2]
    assert (d.backend().in_flight, d.backend().prefill_tokens) == (2, 5100)
    d.leave(1, 2)
    assert d.granted == [1, 2, 3]


def test_a_ticket_that_goes_at_once_does_not_wait_behind_others(desk):
    d = desk(concurrency=1, drop_factor=None)
    d.offer()
    d.offer()
    d.offer(at_once=True)
    assert d.granted == [1, 3]


def test_a_ticket_that_goes_at_once_goes_where_least_is_outstanding(desk):
    d = desk(backends=2)
    for _ in range(4):
        d.offer(at_once=True)
    assert [grant.backend for grant in d.grants] == ["a", "b", "a", "b"]


def test_a_ticket_that_goes_at_once_and_comes_back_goes_elsewhere_at_once_and_then_is_refused(desk):
    d = desk(backends=2, concurrency=1)
    d.offer()
    d.offer()
    d.offer(at_once=True)
    d.give_back(3)
    assert [grant.backend for grant in d.grants if grant.ticket.id == 3] == ["a", "b"]
    d.give_back(3)
    assert [(refused.ticket.id, refused.reason) for refused in d.refusals] == [(3, Reason.NO_BACKEND)]


def test_a_backend_that_is_added_while_it_is_down_gets_nothing_until_it_is_up(desk):
    d = desk(concurrency=1, drop_factor=None)
    d.offer()
    d.offer()
    limits = [BackendLimits("a", 1), BackendLimits("b", 1)]
    d.keep(d.dispatcher.reconfigure(d.now, d.scheduling, limits, down=["b"]))
    assert d.granted == [1]
    d.keep(d.dispatcher.set_backend_up(d.now, "b", True))
    assert d.grants[-1].backend == "b"
