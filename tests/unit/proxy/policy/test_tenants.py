"""Accounts: what each tenant has had, what it may hold, and where one starts that was away."""

import pytest

from proxy.policy.limits import Fairness, TenantLimits
from proxy.policy.outcome import Outcome, Reason

HEAVY = TenantLimits(weight=2.0)


def fair(**tenants):
    return Fairness(tenants=tenants)


def limited(**limits):
    return Fairness(by_tokens=False, others=TenantLimits(**limits))


def account(d, name):
    return next(tenant for tenant in d.see().tenants if tenant.name == name)


def test_the_first_grant_charges_prompt_and_twice_the_expected_output(desk):
    d = desk(fairness=Fairness())
    d.offer(100, 10, tenant="a")
    assert account(d, "a").counter == 120


def test_the_end_corrects_what_the_answer_was_longer_or_shorter(desk):
    d = desk(fairness=Fairness())
    d.offer(100, 10, tenant="a")
    d.leave(1, output_tokens=25)
    assert account(d, "a").counter == 150
    d.offer(100, 10, tenant="a")
    d.leave(2, output_tokens=0)
    assert account(d, "a").counter == 250


def test_a_weight_divides_what_is_charged(desk):
    d = desk(fairness=fair(a=HEAVY))
    d.offer(100, 10, tenant="a")
    assert account(d, "a").counter == 60


def test_a_ticket_that_never_ran_costs_nothing(desk):
    d = desk(concurrency=1, fairness=Fairness())
    d.offer(100, 10, tenant="a")
    d.offer(100, 10, tenant="b")
    d.leave(2)
    assert (account(d, "b").counter, account(d, "b").granted) == (0, 0)


def test_a_grant_given_back_is_taken_off_the_bill_and_charged_once_when_it_runs(desk):
    d = desk(fairness=Fairness())
    d.offer(100, 10, tenant="a")
    d.give_back(1)
    assert len(d.grants) == 2
    assert (account(d, "a").counter, account(d, "a").granted, account(d, "a").running) == (120, 1, 1)


def test_a_prompt_in_parts_is_charged_once_and_runs_until_it_leaves(desk, parts):
    d = desk(fairness=Fairness(), installments=parts)
    d.offer(4096, 10, tenant="a", splittable=True)
    assert (d.grants[0].final, account(d, "a").counter, account(d, "a").running) == (False, 4116, 1)
    while not d.grants[-1].final:
        d.now += 1.0
        d.part_ended(1, d.grants[-2].upto_tokens if len(d.grants) > 1 else 0)
        d.wake()
    assert (account(d, "a").counter, account(d, "a").running) == (4116, 1)
    d.leave(1)
    assert account(d, "a").running == 0


def test_who_comes_back_starts_where_those_are_that_wait(desk):
    d = desk(concurrency=1, drop_factor=None, fairness=Fairness())
    d.offer(1000, 0, tenant="a")
    d.leave(1)
    d.offer(1000, 0, tenant="a")
    d.offer(1000, 0, tenant="a")
    d.offer(10, 0, tenant="newcomer")
    assert account(d, "newcomer").counter == account(d, "a").counter == 2000


def test_who_used_an_idle_engine_does_not_pay_for_it_later(desk):
    d = desk(concurrency=1, drop_factor=None, fairness=Fairness())
    for number in range(1, 51):
        d.offer(2000, 0, tenant="night shift")
        d.leave(number)
    d.offer(100, 0, tenant="day shift")
    d.offer(100, 0, tenant="night shift")
    d.offer(100, 0, tenant="day shift")
    gap = account(d, "night shift").counter - account(d, "day shift").counter
    assert abs(gap) <= 2000


def test_tickets_without_a_tenant_share_one_account(desk):
    d = desk(fairness=Fairness())
    d.offer(100, 0)
    d.offer(100, 0)
    assert account(d, "").counter == 200


def test_without_fairness_there_are_no_tenants(desk):
    d = desk()
    d.offer(tenant="a")
    assert d.see().tenants == ()


# ---------------------------------------------------------------- limits


def test_a_tenant_over_its_waiting_requests_is_rejected_and_others_wait(desk):
    d = desk(concurrency=1, fairness=limited(waiting_requests=1))
    d.offer(tenant="running")
    d.offer(tenant="a")
    d.offer(tenant="a")
    d.offer(tenant="b")
    assert d.refused == [(3, "rejected", "tenant_limit")]
    assert d.refusals[0].detail == "tenant a: 1 of its requests wait and at most 1 may"
    assert [account(d, name).rejected for name in "ab"] == [1, 0]


def test_what_a_deadline_takes_is_counted_for_its_tenant(desk):
    d = desk(concurrency=1, drop_factor=1.0, fairness=Fairness())
    d.offer(10, tenant="running")
    d.offer(1000, tenant="a")
    d.now = 0.9
    d.wake()
    assert d.refused == [(2, "expired", "queue_timeout")]
    assert [account(d, name).dropped for name in ("a", "running")] == [1, 0]


def test_waiting_requests_of_both_lanes_count(desk):
    d = desk(concurrency=1, fairness=limited(waiting_requests=1))
    d.offer(tenant="running")
    d.offer(100, tenant="a")
    d.offer(3000, tenant="a")
    assert d.refused == [(3, "rejected", "tenant_limit")]


def test_a_tenant_over_its_waiting_tokens_is_rejected_with_the_numbers(desk):
    d = desk(concurrency=1, fairness=limited(waiting_tokens=1000))
    d.offer(tenant="running")
    d.offer(600, tenant="a")
    d.offer(500, tenant="a")
    d.offer(400, tenant="a")
    assert d.refused == [(3, "rejected", "tenant_limit")]
    assert d.refusals[0].detail == (
        "tenant a: 600 of its prompt tokens wait, this request brings 500 and at most 1000 may wait"
    )


def test_what_is_over_the_sequences_of_a_tenant_waits_and_lets_others_pass(desk):
    d = desk(fairness=limited(sequences=2))
    d.offer(tenant="a")
    d.offer(tenant="a")
    d.offer(tenant="a")
    d.offer(tenant="b")
    assert d.granted == [1, 2, 4]
    assert d.lane(0).head_blocked == "tenant"
    d.leave(1)
    assert d.granted == [1, 2, 4, 3]


def test_one_request_always_may_run_however_wide(desk):
    d = desk(fairness=limited(sequences=2))
    d.offer(tenant="a", sequences=5)
    assert d.granted == [1]


def test_a_tenant_over_its_tokens_per_minute_is_told_when_to_come_back(desk):
    d = desk(fairness=limited(tokens_per_minute=600))
    d.offer(600, tenant="a")
    d.offer(100, tenant="a")
    d.offer(100, tenant="b")
    assert d.refused == [(2, "rejected", "tenant_limit")]
    assert d.refusals[0].retry_after_s == pytest.approx(10.0)
    d.now = 10.0
    d.offer(100, tenant="a")
    assert d.granted == [1, 3, 4]


def test_waiting_tokens_are_set_aside_from_the_minute(desk):
    d = desk(concurrency=1, fairness=limited(tokens_per_minute=1000))
    d.offer(400, tenant="a")
    d.offer(400, tenant="a")
    d.offer(400, tenant="a")
    assert d.refused == [(3, "rejected", "tenant_limit")]


def test_a_prompt_longer_than_a_minutes_worth_takes_the_whole_minute(desk):
    d = desk(fairness=limited(tokens_per_minute=600))
    d.offer(1200, tenant="a")
    d.leave(1)
    d.now = 59.0
    d.offer(10, tenant="a")
    d.now = 61.5
    d.offer(10, tenant="a")
    assert (d.granted, [i for i, *_ in d.refused]) == ([1, 3], [2])


def test_tenant_limits_do_not_hold_what_goes_at_once(desk):
    d = desk(fairness=limited(sequences=1, tokens_per_minute=1))
    d.offer(tenant="a", at_once=True)
    d.offer(tenant="a", at_once=True)
    assert d.granted == [1, 2]


def test_a_refusal_for_a_tenant_without_a_name_says_so(desk):
    d = desk(fairness=limited(tokens_per_minute=1))
    d.offer(100)
    d.offer(100)
    refusal = d.refusals[0]
    assert (refusal.outcome, refusal.reason) == (Outcome.REJECTED, Reason.TENANT_LIMIT)
    assert refusal.detail.startswith("requests without a tenant: it may send 1 prompt tokens per minute")


# ---------------------------------------------------------------- reload


def test_a_reload_takes_new_limits_and_keeps_the_counters(desk):
    d = desk(fairness=Fairness())
    d.offer(100, 10, tenant="a")
    d.reconfigure(fairness=fair(a=HEAVY))
    d.offer(100, 10, tenant="a")
    assert account(d, "a").counter == 120 + 60


def test_fairness_switched_on_under_way_knows_what_runs_and_what_waits(desk):
    d = desk(concurrency=1, drop_factor=None)
    d.offer(tenant="a")
    d.offer(tenant="a")
    d.offer(tenant="b")
    d.reconfigure(fairness=Fairness())
    assert (account(d, "a").running, account(d, "a").waiting_requests, account(d, "b").waiting_requests) == (1, 1, 1)
    d.leave(1, 2, 3)
    assert [(t.running, t.waiting_requests, t.waiting_tokens) for t in d.see().tenants] == [(0, 0, 0), (0, 0, 0)]


def test_fairness_switched_off_under_way_forgets_the_tenants(desk):
    d = desk(concurrency=1, drop_factor=None, fairness=Fairness())
    d.offer(tenant="a")
    d.offer(tenant="a")
    d.reconfigure(fairness=None)
    assert d.see().tenants == ()
    d.leave(1)
    assert d.granted == [1, 2]
    d.leave(2)
    assert d.see().live == 0


def test_counters_start_again_when_they_begin_to_count(desk):
    d = desk(fairness=Fairness())
    d.offer(100, 10, tenant="a")
    d.reconfigure(fairness=Fairness(by_tokens=False))
    assert account(d, "a").counter == 0
    d.leave(1, output_tokens=500)
    assert account(d, "a").counter == 0
