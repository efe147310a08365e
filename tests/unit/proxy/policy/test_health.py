"""Health of a backend: what probes and requests say, and what follows from it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from proxy.policy.health import HOLD_S, TRANSITIONS, Event, Health, HealthLimits, State, hold_s
from proxy.policy.job import NEVER

LIMITS = HealthLimits(down_after=3, up_after=2, trip_after=3, trip_s=2.0, trip_at_most_s=5.0, slow_start_s=4.0)


def up(limits=LIMITS):
    health = Health(limits)
    health.probe(0.0, good=True)
    return health


def tripped(now=1.0, limits=LIMITS):
    health = up(limits)
    for _ in range(limits.trip_after):
        health.failed(now, began=0.5)
    return health


def after(probes):
    health = Health(LIMITS)
    changes = [health.probe(float(n), good=good) for n, good in enumerate(probes)]
    return health.state, changes


def test_the_first_probe_decides():
    assert after([True]) == (State.UP, [True])
    assert after([False]) == (State.DOWN, [True])


def test_it_goes_down_only_after_failed_probes_in_a_row():
    assert after([True, False, False]) == (State.UP, [True, False, False])
    assert after([True, False, False, True, False, False])[0] is State.UP
    assert after([True, False, False, False]) == (State.DOWN, [True, False, False, True])


def test_it_comes_back_only_after_good_probes_in_a_row_and_slowly():
    assert after([False, True]) == (State.DOWN, [True, False])
    assert after([False, True, False, True])[0] is State.DOWN
    assert after([False, True, True]) == (State.SLOW_START, [True, False, True])


def test_a_slow_start_is_over_after_its_time():
    health = Health(LIMITS)
    health.probe(0.0, good=False)
    for _ in range(2):
        health.probe(1.0, good=True)
    assert health.due_at == 5.0
    assert not health.tick(4.9)
    assert health.tick(5.0)
    assert (health.state, health.due_at) == (State.UP, NEVER)


def test_without_a_slow_start_it_is_up_at_once():
    health = Health(HealthLimits(slow_start_s=0.0))
    health.probe(0.0, good=False)
    assert health.probe(1.0, good=True)
    assert health.state is State.UP


def test_connections_that_fail_count_as_failed_probes_but_not_as_the_first():
    health = Health(LIMITS)
    assert not health.unreachable(0.0)
    assert health.state is State.STARTING
    health.probe(0.0, good=True)
    assert [health.unreachable(1.0) for _ in range(3)] == [False, False, True]
    assert health.state is State.DOWN


def test_requests_that_fail_in_a_row_trip_it_although_its_probes_pass():
    health = up()
    assert [health.failed(1.0, began=0.5) for _ in range(3)] == [False, False, True]
    assert (health.state, health.due_at) == (State.TRIPPED, 3.0)
    assert not health.probe(1.5, good=True)
    assert health.state is State.TRIPPED


def test_one_request_that_is_served_starts_the_row_anew():
    health = up()
    for _ in range(5):
        health.failed(1.0, began=0.5)
        health.failed(1.0, began=0.5)
        health.served(1.0, began=0.5)
    assert (health.state, health.failed_in_a_row) == (State.UP, 0)


def test_a_share_of_failed_requests_trips_it_too():
    health = up(HealthLimits(trip_after=None, trip_share=0.5, trip_share_of=20))
    for n in range(19):
        (health.failed if n % 2 else health.served)(1.0 + n / 10, began=0.5)
    assert health.state is State.UP
    assert health.failed(3.0, began=0.5)
    assert health.state is State.TRIPPED


def test_failures_are_forgotten_with_time():
    health = up(HealthLimits(trip_after=None, trip_share=0.5, trip_share_of=20))
    for n in range(60):
        health.failed(float(n), began=0.5)
    assert health.state is State.UP, "never more than eleven within ten seconds"


def test_after_its_time_one_request_shows_whether_it_works_again():
    health = tripped()
    assert health.tick(3.0)
    assert health.state is State.HALF_OPEN
    assert health.served(3.5, began=3.1)
    assert (health.state, health.due_at) == (State.SLOW_START, 7.5)


def test_each_trial_that_fails_doubles_its_time_up_to_the_longest():
    health, times = tripped(), []
    for _ in range(4):
        times.append(health.due_at - health.since)
        health.tick(health.due_at)
        health.failed(health.since + 0.5, began=health.since + 0.1)
    assert times == [2.0, 4.0, 5.0, 5.0]


def test_its_time_is_short_again_once_it_was_up_for_good():
    health = tripped()
    health.tick(3.0)
    health.served(3.5, began=3.1)
    health.tick(7.5)
    for _ in range(3):
        health.failed(8.0, began=7.9)
    assert health.due_at == 10.0


def test_a_request_that_began_before_it_was_let_in_again_says_nothing():
    health = tripped()
    health.tick(3.0)
    assert not health.failed(3.5, began=0.9)
    assert not health.served(3.5, began=0.9)
    assert health.state is State.HALF_OPEN


def test_a_trial_that_finds_nobody_is_a_trial_that_failed():
    health = tripped()
    health.tick(3.0)
    assert health.unreachable(3.1)
    assert health.state is State.TRIPPED


def test_one_that_is_left_alone_can_still_turn_out_to_be_gone():
    health = tripped()
    assert [health.probe(2.0, good=False) for _ in range(3)] == [False, False, True]
    assert (health.state, health.due_at) == (State.DOWN, NEVER)


def test_other_limits_hold_from_then_on():
    health = up()
    health.configure(HealthLimits(trip_after=1))
    assert health.failed(1.0, began=0.5)


def test_how_often_each_state_began_is_counted():
    health = tripped()
    assert {state: n for state, n in health.entered.items() if n} == {State.UP: 1, State.TRIPPED: 1}


@pytest.mark.parametrize(("said", "seconds"), [(None, HOLD_S), (0.3, 0.3), (0.0, 0.05), (2.0, 2.0), (90.0, 5.0)])
def test_a_busy_backend_is_left_alone_as_long_as_it_says_within_bounds(said, seconds):
    assert hold_s(said, 5.0) == seconds


def test_every_state_can_be_left_and_reached():
    assert {state for state, _ in TRANSITIONS} == set(State)
    assert set(TRANSITIONS.values()) == set(State) - {State.STARTING}


def test_its_state_can_be_read():
    assert repr(Health(LIMITS)) == "<Health starting, 0 against, 0 failed>"


class AnyLife(RuleBasedStateMachine):
    """Whatever happens in whatever order: the table is obeyed, and there is always a way back."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.health = Health(LIMITS)
        self.before = self.health.state
        self.failures = 0

    def note(self, changed, *events):
        after = self.health.state
        if changed:
            assert any(TRANSITIONS.get((self.before, event)) is after for event in events)
        else:
            assert after is self.before
        self.before = after

    @rule(seconds=st.floats(0.0, 10.0))
    def time_passes(self, seconds):
        self.now += seconds
        self.note(self.health.tick(self.now), Event.TIME)

    @rule(good=st.booleans())
    def a_probe_ends(self, good):
        self.note(self.health.probe(self.now, good=good), Event.ANSWERS if good else Event.SILENT)

    @rule()
    def a_connection_fails(self):
        self.note(self.health.unreachable(self.now), Event.SILENT, Event.FAILED)

    @rule(ago=st.floats(0.0, 20.0))
    def a_request_is_served(self, ago):
        self.note(self.health.served(self.now, self.now - ago), Event.SERVED)

    @rule(ago=st.floats(0.0, 20.0))
    def a_request_fails(self, ago):
        self.note(self.health.failed(self.now, self.now - ago), Event.FAULTS, Event.FAILED)

    @invariant()
    def only_states_that_end_by_themselves_have_a_time(self):
        timed = self.health.state in {State.TRIPPED, State.SLOW_START}
        assert (self.health.due_at != NEVER) is timed
        if timed:
            assert self.health.due_at - self.health.since <= max(LIMITS.trip_at_most_s, LIMITS.slow_start_s)

    @precondition(lambda self: self.health.state is not State.UP)
    @rule()
    def an_engine_that_is_well_again_comes_back(self):
        """Good probes, time and one good request are always enough."""
        for _ in range(2):
            self.health.probe(self.now, good=True)
        for _ in range(2):
            if self.health.due_at != NEVER:
                self.now = max(self.now, self.health.due_at)
                self.health.tick(self.now)
            self.health.served(self.now, self.now)
        self.now = max(self.now, self.health.due_at if self.health.due_at != NEVER else 0.0)
        self.health.tick(self.now)
        assert self.health.state is State.UP
        self.before = self.health.state


TestAnyLife = AnyLife.TestCase
TestAnyLife.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


@given(st.lists(st.booleans(), min_size=1, max_size=30))
def test_it_never_changes_against_the_last_probe(probes):
    health = Health(LIMITS)
    for now, good in enumerate(probes):
        if health.probe(float(now), good=good):
            assert health.state.answers is good
