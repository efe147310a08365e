"""Long prompts in parts: sizes, the state of a prefix cache, and what the Dispatcher makes of both."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.policy.installments import Feed, Mode, PrefixCache, next_tokens, part_size
from proxy.policy.limits import BudgetMode, Installments, LaneOrder
from proxy.policy.outcome import Ending
from proxy.policy.ticket import Ticket

PARTS = Installments(part_tokens=1024, parts_at_most=16, pause=0.25)


@pytest.fixture
def fed(desk):
    """Build a desk whose long lane goes in parts."""

    def build(backends=1, **options):
        return desk(backends, **({"installments": PARTS} | options))

    return build


def long(d, prompt=5000, output=10, **fields):
    return d.offer(prompt, output, splittable=True, **fields)


def shape(d):
    """(ticket, up to, part, final) of every grant."""
    return [(g.ticket.id, g.upto_tokens, g.part, g.final) for g in d.grants]


# ---------------------------------------------------------------- sizes


@pytest.mark.parametrize(
    ("prompt", "granularity", "size"),
    [(5000, 128, 1024), (24_000, 128, 1536), (24_000, 16, 1504), (3000, 1024, 1024), (3000, 1000, 2000)],
)
def test_a_part_is_the_larger_of_1024_and_a_sixteenth_rounded_up_to_the_granularity(prompt, granularity, size):
    assert part_size(prompt, granularity, PARTS) == size


@pytest.mark.parametrize(("rest", "next_one"), [(1536, 1536), (1537, 1024), (1024, 1024), (2048, 1024)])
def test_a_rest_of_at_most_one_and_a_half_parts_is_the_final(rest, next_one):
    feed = Feed()
    feed.done = 1024
    assert next_tokens(1024 + rest, feed, 128, PARTS) == next_one


@given(prompt=st.integers(2049, 400_000), granularity=st.sampled_from([16, 128, 1024]))
def test_every_part_ends_on_the_granularity_and_a_prompt_takes_at_most_sixteen_requests(prompt, granularity):
    feed, requests = Feed(), 0
    while feed.done < prompt:
        tokens = next_tokens(prompt, feed, granularity, PARTS)
        feed.done += tokens
        requests += 1
        assert feed.done == prompt or feed.done % granularity == 0
    assert feed.done == prompt
    assert requests <= 16


# ---------------------------------------------------------------- the prefix cache


def test_an_unproved_cache_is_on_after_its_first_hit():
    cache = PrefixCache()
    assert cache.mode is Mode.UNKNOWN
    assert not cache.observe(0.0, done=1024, cached=1024)
    assert cache.mode is Mode.ON


def test_an_unproved_cache_is_off_for_a_minute_after_its_first_miss():
    cache = PrefixCache()
    assert cache.observe(0.0, done=1024, cached=511)
    assert cache.mode is Mode.OFF
    assert not cache.splits(59.9)
    assert cache.splits(60.0)
    assert cache.mode is Mode.UNKNOWN


def test_the_time_off_doubles_up_to_a_quarter_of_an_hour():
    cache, now, waits = PrefixCache(), 0.0, []
    for _ in range(6):
        cache.observe(now, done=1024, cached=0)
        start = now
        while not cache.splits(now):
            now += 1.0
        waits.append(now - start)
    assert waits == [60, 120, 240, 480, 900, 900]


def test_a_proved_cache_survives_one_miss_and_goes_off_when_the_mean_falls_below_four_fifths():
    cache = PrefixCache()
    for _ in range(8):
        cache.observe(0.0, 2048, 2048)
    assert cache.observe(0.0, 2048, 1000)
    assert cache.mode is Mode.ON
    assert not cache.observe(0.0, 2048, 1100)
    assert cache.mode is Mode.OFF


def test_fewer_than_four_parts_are_no_mean():
    cache = PrefixCache()
    for cached in (2048, 1100, 1100):
        cache.observe(0.0, 2048, cached)
    assert cache.hit_ratio < 0.8
    assert cache.mode is Mode.ON
    cache.observe(0.0, 2048, 1100)
    assert cache.mode is Mode.OFF


def test_a_success_after_a_probe_makes_the_next_time_off_short_again():
    cache = PrefixCache()
    cache.observe(0.0, 1024, 0)
    assert cache.splits(60.0)
    for _ in range(5):
        cache.observe(60.0, 1024, 1024)
    for _ in range(3):
        cache.observe(61.0, 1024, 0)
    assert cache.mode is Mode.OFF
    assert cache.splits(61.0 + 60.0)


def test_only_whole_blocks_are_expected_and_nothing_is_expected_below_one():
    cache = PrefixCache(granularity=1000)
    assert not cache.observe(0.0, done=1999, cached=1000)
    assert cache.mode is Mode.ON
    assert not PrefixCache(granularity=2000).observe(0.0, done=1999, cached=0)


def test_a_probe_whose_hit_comes_in_larger_steps_than_blocks_teaches_the_granularity():
    cache = PrefixCache(granularity=16)
    assert not cache.observe(0.0, done=1024, cached=784)
    assert (cache.granularity, cache.mode, cache.hit_ratio) == (784, Mode.ON, 1.0)
    assert cache.expected(2352) == 2352
    cache.observe(0.0, done=2352, cached=1000)
    assert cache.granularity == 784  # learned once; what is lost later is a loss


@pytest.mark.parametrize(("done", "cached"), [(1024, 896), (1024, 1024), (1024, 512), (1024, 0), (1024, 100)])
def test_a_hit_that_is_whole_or_short_by_one_block_or_too_small_teaches_nothing(done, cached):
    cache = PrefixCache(granularity=128)
    cache.observe(0.0, done, cached)
    assert cache.granularity == 128


def test_an_engine_that_does_not_say_what_it_found_gets_no_verdict():
    cache = PrefixCache()
    assert not cache.observe(0.0, 4096, None)
    assert cache.mode is Mode.UNKNOWN


def test_an_engine_without_prefix_caching_is_never_probed():
    cache = PrefixCache(enabled=False)
    assert not cache.splits(1e9)


# ---------------------------------------------------------------- parts through the Dispatcher


def test_a_long_prompt_is_granted_in_parts_and_then_whole(fed):
    d = fed()
    i = long(d, 3500)
    for cached in (0, 1024):
        d.part_ended(i, cached)
    assert shape(d) == [(1, 1024, 0, False), (1, 2048, 1, False), (1, 3500, 2, True)]


def test_a_part_holds_only_what_it_computes_and_a_parked_prompt_holds_nothing(fed):
    d = fed(decode_weight=8.0)
    d.offer(100)
    i = long(d, 5000, 77)
    assert (d.backend().prefill_tokens, d.backend().kv_tokens) == (1124, 110 + 1024)
    d.now = 0.2
    d.part_ended(i, 0)
    assert (d.backend().in_flight, d.backend().prefill_tokens, d.backend().kv_tokens) == (1, 100, 110)
    assert (d.lane(1).parked, d.lane(1).waiting_requests, d.backend().started) == (1, 0, i)
    d.leave(1)
    assert (d.backend().prefill_tokens, d.backend().kv_tokens) == (1024, 2048)
    assert d.backend().output_tokens_expected == 0


def test_the_final_holds_the_rest_of_the_prompt_and_all_of_the_kv(fed):
    d = fed()
    i = long(d, 2500, 77)
    d.part_ended(i, 0)
    assert (d.backend().prefill_tokens, d.backend().kv_tokens) == (1476, 2577)
    d.first_token(i)
    assert (d.backend().prefill_tokens, d.backend().started) == (0, None)


def test_short_requests_pass_between_the_parts(fed):
    d = fed(concurrency=1)
    i = long(d)
    d.offer(100)
    d.part_ended(i, 0)
    assert d.granted == [1, 2]
    d.leave(2)
    assert d.granted == [1, 2, 1]


def test_at_most_one_long_prompt_is_started_on_a_backend(fed):
    d = fed(2, drop_factor=None)
    for _ in range(3):
        long(d)
    assert [(g.ticket.id, g.backend) for g in d.grants] == [(1, "a"), (2, "b")]
    d.part_ended(1, 0)
    assert [(g.ticket.id, g.backend) for g in d.grants[2:]] == [(1, "a")]
    assert d.lane(1).head_blocked == "started"


def test_a_long_prompt_that_goes_whole_waits_for_the_started_one_too(fed):
    d = fed()
    long(d)
    d.offer(3000)
    assert d.granted == [1]


def test_a_started_prompt_goes_before_new_ones_of_its_lane(fed):
    d = fed(concurrency=1)
    i = long(d, 40_000)
    d.offer(100)
    d.offer(2100)  # much shorter, and not started
    d.part_ended(i, 0)
    d.leave(2)
    assert d.granted == [1, 2, 1]


def test_a_started_prompt_is_neither_dropped_nor_demoted(fed):
    d = fed(concurrency=1, drop_factor=1.0)
    i = long(d)
    d.offer(100)
    d.part_ended(i, 0)
    d.now = 100.0
    d.wake()
    assert d.refused == []
    d.leave(2)
    assert d.granted == [1, 2, 1]


def test_parts_stay_on_the_backend_that_has_the_beginning(fed):
    d = fed(2)
    i = long(d)
    for _ in range(3):
        d.offer(200)
    d.part_ended(i, 0)
    assert {g.backend for g in d.grants if g.ticket.id == i} == {"a"}


def test_after_a_part_the_long_lane_pauses_for_a_quarter_of_it_while_others_run(fed):
    d = fed()
    i = long(d)
    d.offer(100)
    d.now = 0.2
    d.part_ended(i, 0)
    assert d.granted == [1, 2]
    assert d.lane(1).head_blocked == "pause"
    assert d.dispatcher.next_wake() == pytest.approx(0.25)
    d.now = 0.25
    d.wake()
    assert d.granted == [1, 2, 1]


def test_a_pause_ends_when_nothing_else_runs(fed):
    d = fed()
    i = long(d)
    d.offer(100)
    d.now = 0.2
    d.part_ended(i, 0)
    d.now = 0.21
    d.leave(2)
    assert d.granted == [1, 2, 1]


def test_a_miss_sends_the_rest_whole_and_charges_what_was_lost(fed):
    d = fed()
    i = long(d, 8000)
    d.part_ended(i, 0)
    d.part_ended(i, 100)
    assert shape(d)[-1] == (1, 8000, 2, True)
    assert d.backend().prefill_tokens == 8000 - 100 - 1024
    assert d.backend().installments is Mode.OFF


def test_a_backend_that_is_off_gets_long_prompts_whole(fed):
    d = fed()
    d.dispatcher.set_prefix_cache(d.now, "a", False, 128)
    long(d)
    assert shape(d) == [(1, 5000, 0, True)]
    assert d.backend().started is None


def test_the_granularity_that_an_engine_tells_shapes_the_parts(fed):
    d = fed()
    d.dispatcher.set_prefix_cache(d.now, "a", True, 1500)
    long(d)
    assert shape(d) == [(1, 1500, 0, False)]


def test_the_final_tells_what_its_cache_hit_was_when_it_leaves(fed):
    d = fed()
    i = long(d, 2500)
    d.part_ended(i, 0)
    d.first_token(i)
    d.leave(i, cached_tokens=0)
    assert d.backend().installments is Mode.OFF


def test_a_part_that_failed_sends_the_rest_whole(fed):
    d = fed()
    i = long(d)
    d.part_failed(i)
    assert shape(d) == [(1, 1024, 0, False), (1, 5000, 1, True)]
    assert d.lane(1).granted_on_time == 1
    d.first_token(i)
    d.leave(i)
    assert d.backend().started is None


@pytest.mark.parametrize("stage", ["waiting", "part", "parked", "prefill", "decode"])
def test_a_client_that_leaves_lets_the_next_long_prompt_start_in_every_stage(fed, stage):
    d = fed(drop_factor=None)
    blocker = d.offer(100, sequences=8)
    d.leave(blocker) if stage != "waiting" else None
    i = long(d, 2500)
    other = long(d)
    if stage in {"parked", "prefill", "decode"}:
        d.offer(100)
        d.now = 0.2
        d.part_ended(i, 0)
    if stage in {"prefill", "decode"}:
        d.now = 0.25
        d.wake()
    if stage == "decode":
        d.first_token(i)
    d.leave(i, ending=Ending.IGNORED)
    if stage == "waiting":
        d.leave(blocker)
    d.now = 0.25
    d.wake()
    assert d.granted[-1] == other
    assert d.backend().started == other


def test_a_parked_prompt_starts_anew_elsewhere_when_its_backend_goes_down(fed):
    d = fed(2, concurrency=1)
    i = long(d)
    d.offer(1500)
    d.offer(1500)  # takes the slot between two parts
    d.part_ended(i, 0)
    assert [(g.ticket.id, g.backend) for g in d.grants] == [(1, "a"), (2, "b"), (3, "a")]
    d.up("a", False)
    assert d.backend().started is None
    d.leave(2)
    assert (d.grants[-1].ticket.id, d.grants[-1].backend, d.grants[-1].upto_tokens) == (1, "b", 1024)
    assert d.grants[-1].part == 0


def test_a_part_that_ends_on_a_backend_that_went_down_starts_anew_elsewhere(fed):
    d = fed(2)
    i = long(d)
    d.up("a", False)
    d.part_failed(i)
    assert (d.grants[-1].backend, d.grants[-1].final) == ("b", True)
    assert d.backend().started is None


def test_a_part_given_back_starts_anew_on_another_backend(fed):
    d = fed(2)
    i = long(d)
    d.part_ended(i, 0)
    d.give_back(i)
    assert [(g.backend, g.upto_tokens, g.part) for g in d.grants] == [("a", 1024, 0), ("a", 2048, 1), ("b", 1024, 0)]
    assert [b.started for b in d.see().backends] == [None, i]


def test_a_part_given_back_goes_on_where_it_was_when_there_is_no_other_backend(fed):
    d = fed()
    i = long(d)
    d.part_ended(i, 0)
    d.give_back(i)
    assert [(g.upto_tokens, g.part) for g in d.grants] == [(1024, 0), (2048, 1), (2048, 1)]
    d.give_back(i)
    assert d.refused == [(1, "rejected", "no_backend")]
    assert d.backend().started is None


def test_the_speed_of_the_long_lane_is_learned_from_the_first_part_on(fed):
    d = fed(step_s=0.0)
    i = long(d, 2500)
    d.now = 0.3
    d.part_ended(i, 0)
    d.now = 0.5
    d.first_token(i)
    assert d.lane(1).prefill_s_per_token == pytest.approx(0.0001 + 0.05 * (0.5 / 2500 - 0.0001))


def test_the_final_of_an_answer_that_is_not_streamed_gives_all_back_by_the_clock(fed):
    d = fed(step_s=0.02)
    i = long(d, 2500, streams=False)
    d.now = 0.2
    d.part_ended(i, 0)
    at = d.dispatcher.next_wake()
    assert at == pytest.approx(0.2 + 1.5 * 0.0001 * 1476 + 0.02)
    d.now = at
    d.wake()
    assert (d.backend().prefill_tokens, d.backend().started) == (0, None)


def test_with_installments_the_prefill_budget_is_at_most_2048(fed):
    assert fed(prefill_budget_tokens=16_384).backend().prefill_budget == 2048
    assert fed(prefill_budget_tokens=1000).backend().prefill_budget == 1000
    assert fed(prefill_budget_tokens=16_384, installments=None).backend().prefill_budget == 16_384


def test_only_splittable_prompts_of_the_last_lane_go_in_parts(fed):
    d = fed()
    d.offer(2048, splittable=True)
    d.first_token(1)
    d.offer(5000)
    assert shape(d) == [(1, 2048, 0, True), (2, 5000, 0, True)]


def test_installments_work_in_both_orders_and_budget_modes(fed):
    for order in LaneOrder:
        for mode in BudgetMode:
            d = fed(lane_order=order, budget_mode=mode)
            i = long(d, 3500)
            d.offer(50)
            for cached in (0, 1024):
                d.part_ended(i, cached)
                d.wake()
            assert [g.upto_tokens for g in d.grants if g.ticket.id == i] == [1024, 2048, 3500]


# ---------------------------------------------------------------- what became of parts


def test_an_unproved_backend_that_shows_nothing_of_its_cache_is_off_after_four_parts():
    cache = PrefixCache()
    for _ in range(3):
        cache.blind(0.0)
    assert cache.splits(0.0)
    cache.blind(0.0)
    assert not cache.splits(59.0)
    assert cache.splits(60.0)


def test_a_proved_backend_may_fall_silent():
    cache = PrefixCache()
    cache.observe(0.0, 1024, 1024)
    for _ in range(9):
        cache.blind(0.0)
    assert cache.mode is Mode.ON


def test_one_failed_part_switches_an_unproved_backend_off_and_three_in_a_row_a_proved_one():
    fresh, proved = PrefixCache(), PrefixCache()
    fresh.failed(0.0)
    assert fresh.mode is Mode.OFF
    proved.observe(0.0, 1024, 1024)
    for event in (proved.failed, proved.failed, lambda _: proved.worked(), proved.failed, proved.failed):
        event(0.0)
    assert proved.mode is Mode.ON
    proved.failed(0.0)
    assert proved.mode is Mode.OFF


def test_a_trusted_cache_is_never_switched_off_by_what_is_seen():
    cache = PrefixCache(trusted=True)
    for _ in range(9):
        assert cache.observe(0.0, 1024, 0)
        cache.blind(0.0)
        cache.failed(0.0)
    assert cache.splits(0.0)
    assert not PrefixCache(enabled=False, trusted=True).splits(0.0)


def test_every_part_is_counted_by_its_result(fed):
    d = fed(concurrency=1, drop_factor=None)
    i = long(d, 9000)
    for cached in (0, 1024, None, 600):
        d.part_ended(i, cached)
    assert d.grants[-1].final
    d.leave(i)
    d.dispatcher.set_prefix_cache(d.now, "a", True, 128)
    d.leave(long(d))
    d.part_failed(long(d))
    assert {result.value: n for result, n in d.backend().parts.items()} == {
        "first": 1, "hit": 1, "unknown": 1, "miss": 1, "aborted": 1, "failed": 1,
    }  # fmt: skip


def test_tokens_that_the_cache_had_lost_are_counted_parts_and_final_together(fed):
    d = fed()
    i = long(d, 3500)
    d.part_ended(i, 0)
    d.part_ended(i, 1000)
    assert d.backend().recomputed_tokens == 24
    d.first_token(i)
    d.leave(i, cached_tokens=2048 - 128)
    assert d.backend().recomputed_tokens == 24 + 128
    assert d.backend().hit_ratio == pytest.approx(0.98, abs=0.001)


def test_a_part_that_the_engine_refused_for_what_the_client_asks_says_nothing_about_the_backend(fed):
    d = fed()
    d.keep(d.dispatcher.part_failed(d.now, long(d), refused=True))
    assert d.grants[-1].final
    assert d.backend().installments is Mode.UNKNOWN


def test_a_parked_prompt_starts_anew_when_the_engine_has_restarted(fed):
    d = fed(concurrency=1)
    i = long(d)
    d.offer(100)
    d.part_ended(i, 0)
    d.dispatcher.set_prefix_cache(d.now, "a", True, 128)
    assert d.backend().started is None
    d.leave(2)
    assert (d.grants[-1].upto_tokens, d.grants[-1].part) == (1024, 0)


def test_only_what_would_really_be_split_is_said_to_be_fed(fed):
    def asked(d, prompt, lane=1):
        return d.dispatcher.would_feed(d.now, Ticket(99, lane, prompt, 10))

    d = fed()
    assert (asked(d, 5000), asked(d, 1536), asked(d, 5000, lane=0)) == (True, False, False)
    assert not asked(fed(installments=None), 5000)
    d.up("a", False)
    assert not asked(d, 5000)
    d.up("a", True)
    d.dispatcher.set_prefix_cache(d.now, "a", False, 128)
    assert not asked(d, 5000)


def test_how_busy_a_backend_is_can_be_asked_without_a_walk(fed):
    d = fed()
    d.offer(100)
    d.offer(100)
    d.leave(1)
    assert d.dispatcher.busy("a") == (1, 2)
    assert d.dispatcher.busy("gone") == (0, 0)
