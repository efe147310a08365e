import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.arrivals import arrivals_of
from loadgen.failure import UsageError
from loadgen.options import Process
from loadgen.plan import Lane, Window, make_plan, shared_prefix_tokens, spread_ticks
from loadgen.tracefile.row import Row

S = 1_000_000_000


def rows(*times, prompt=100, output=10):
    return [Row(number, round(t * S), prompt, output) for number, t in enumerate(times, 2)]


def dues(plan):
    return [shot.due_s for shot in plan.shots()]


def test_due_times_count_from_the_first_request_of_the_window():
    plan = make_plan(rows(10.0, 11.0, 12.5, 14.0), Window(start_s=1.0, duration_s=2.0), border=2048)
    assert dues(plan) == [0.0, 1.5]
    assert [shot.row for shot in plan.shots()] == [3, 4]


def test_rows_out_of_order_are_sent_in_order_and_keep_their_line_numbers():
    plan = make_plan(rows(3.0, 1.0, 2.0), Window(), border=2048)
    assert [(shot.due_s, shot.row) for shot in plan.shots()] == [(0.0, 3), (1.0, 4), (2.0, 2)]


def test_scale_divides_every_time():
    plan = make_plan(rows(0, 2, 5), Window(scale=2.0), border=2048)
    assert dues(plan) == [0.0, 1.0, 2.5]


def test_a_wanted_rate_sets_the_scale():
    plan = make_plan(rows(0, 10, 40), Window(rate=2.0), border=2048)
    assert dues(plan)[-1] == pytest.approx(1.0)
    assert plan.scale == pytest.approx(40.0)


def test_the_border_itself_is_short():
    plan = make_plan([Row(1, 0, 2048, 1), Row(2, 1, 2049, 1)], Window(), border=2048)
    assert [shot.lane for shot in plan.shots()] == [Lane.SHORT, Lane.LONG]


def test_cutting_a_prompt_cuts_its_blocks_too():
    row = Row(1, 0, 1500, 900, blocks=(7, 8, 9), block_tokens=512)
    shot = make_plan([row], Window(max_prompt_tokens=600, max_output_tokens=50), border=2048).shot(0)
    assert (shot.prompt_tokens, shot.output_tokens, shot.blocks) == (600, 50, (7, 8))


@pytest.mark.parametrize("window", [Window(start_s=9.0), Window(rate=1.0, rows=1)])
def test_a_window_that_cannot_be_planned_is_refused(window):
    with pytest.raises(UsageError):
        make_plan(rows(0, 1), window, border=2048)


def test_an_empty_trace_is_refused():
    with pytest.raises(UsageError, match="no request"):
        make_plan([], Window(), border=2048)


def test_the_hash_tells_plans_apart_and_knows_the_same_one_again():
    def plan_hash(**changed):
        row = {"number": 1, "t_ns": 0, "prompt_tokens": 600, "output_tokens": 5, "blocks": (1, 2), "block_tokens": 512}
        return make_plan([Row(**(row | changed)), Row(2, S, 10, 10)], Window(), border=2048).hash

    first = plan_hash()
    assert plan_hash() == first
    assert plan_hash(t_ns=50_000_000_000) != first
    assert plan_hash(prompt_tokens=601) != first
    assert plan_hash(output_tokens=6) != first
    assert plan_hash(blocks=(1, 3)) != first
    assert make_plan(rows(0, 1), Window(), border=100).hash != make_plan(rows(0, 1), Window(), border=99).hash


def test_dequantising_spreads_a_tick_and_records_it():
    plan = make_plan(rows(0, 0, 0, 3, 3, 6), Window(), border=2048, dequantise_seed=4)
    times = np.array(dues(plan))
    assert plan.dequantised_tick_s == 3.0
    assert len(set(times)) == 6
    again = make_plan(rows(0, 0, 0, 3, 3, 6), Window(), border=2048, dequantise_seed=4)
    other = make_plan(rows(0, 0, 0, 3, 3, 6), Window(), border=2048, dequantise_seed=5)
    assert dues(again) == dues(plan) != dues(other)


def test_distinct_times_are_left_alone():
    times = np.array([0, 5, 9], dtype=np.int64)
    spread, tick = spread_ticks(times, 1)
    assert tick is None
    assert spread.tolist() == [0, 5, 9]


@given(st.lists(st.integers(0, 20), min_size=2, max_size=60), st.integers(0, 99))
def test_no_row_moves_by_a_tick_or_past_the_next_one(ticks, seed):
    times = np.sort(np.array(ticks, dtype=np.int64)) * 3 * S
    spread, tick = spread_ticks(times, seed)
    assert (np.diff(spread) >= 0).all()
    moved = spread - times
    assert (moved >= 0).all()
    assert tick is None or (moved < round(tick * S)).all()


def test_repeated_prefixes_are_counted_once_they_repeat():
    plan = make_plan(
        [Row(1, 0, 1024, 1, (1, 2), 512), Row(2, 1, 700, 1, (1, 3), 512), Row(3, 2, 700, 1, (1, 3), 512)],
        Window(),
        border=2048,
    )
    assert shared_prefix_tokens(plan) == 512 + 700


@given(st.lists(st.tuples(st.integers(0, 10**12), st.integers(1, 5000), st.integers(1, 999)), min_size=1, max_size=50))
def test_every_row_becomes_exactly_one_shot(drawn):
    plan = make_plan([Row(n, *one) for n, one in enumerate(drawn)], Window(), border=2048)
    shots = list(plan.shots())
    assert sorted(shot.row for shot in shots) == list(range(len(drawn)))
    assert [shot.index for shot in shots] == list(range(len(drawn)))
    assert shots[0].due_s == 0.0


def chat_rows(*pairs):
    """(chat, parent) in order of arrival, a second apart."""
    return [Row(n, n * S, 10, 1, chat=chat, parent=parent) for n, (chat, parent) in enumerate(pairs, 1)]


def test_a_turn_knows_the_shot_before_it():
    plan = make_plan(chat_rows((5, -1), (6, -1), (7, 5), (8, 7)), Window(), border=2048)
    assert [shot.parent for shot in plan.shots()] == [-1, -1, 0, 2]


def test_a_turn_whose_predecessor_is_outside_the_window_begins_anew():
    plan = make_plan(chat_rows((5, -1), (6, 5), (7, 6)), Window(start_s=1.0), border=2048)
    assert [shot.parent for shot in plan.shots()] == [-1, 0]


def test_who_follows_whom_is_part_of_what_is_asked_for():
    alone = make_plan(chat_rows((5, -1), (6, -1)), Window(), border=2048)
    assert alone.hash == make_plan([Row(1, S, 10, 1), Row(2, 2 * S, 10, 1)], Window(), border=2048).hash
    assert alone.hash != make_plan(chat_rows((5, -1), (6, 5)), Window(), border=2048).hash


def test_drawn_arrivals_replace_the_recorded_times():
    arrivals = arrivals_of(Process.CONSTANT, rate=2.0, rates=None, cv=1.0)
    plan = make_plan(rows(0, 100, 7), Window(arrivals=arrivals), border=2048)
    assert [(shot.due_s, shot.row) for shot in plan.shots()] == [(0.0, 2), (0.5, 4), (1.0, 3)]


def test_rates_that_end_end_the_plan():
    arrivals = arrivals_of(Process.CONSTANT, rate=None, rates="2s@2", cv=1.0)
    plan = make_plan(rows(*range(50)), Window(arrivals=arrivals), border=2048)
    assert dues(plan) == [0.0, 0.5, 1.0, 1.5]


def test_recorded_bodies_come_with_their_shots_and_count_for_the_hash():
    def plan(*bodies):
        return make_plan([Row(n, n, 5, 1, body=body) for n, body in enumerate(bodies)], Window(), border=2048)

    assert [shot.body for shot in plan(b"one", b"two").shots()] == [b"one", b"two"]
    assert plan(b"one").hash != plan(b"two").hash


@given(st.lists(st.integers(-1, 40), min_size=1, max_size=40), st.integers(1, 5))
def test_workers_send_every_shot_once_and_keep_conversations_together(parents, workers):
    plan = make_plan(
        chat_rows(*((n, parent if parent < n else -1) for n, parent in enumerate(parents))), Window(), border=2048
    )
    parts = [list(plan.part(worker, workers)) for worker in range(workers)]
    together = sorted((shot for part in parts for shot in part), key=lambda shot: shot.index)
    assert together == list(plan.shots())
    for part in parts:
        mine = {shot.index for shot in part}
        assert all(shot.parent in mine for shot in part if shot.parent >= 0)
