"""Several members over one book: what the engine sees, whatever happens to the store and to the members."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.policy.leases.book import Book
from proxy.policy.leases.hold import Hold, Need, Stir
from proxy.policy.leases.member import GAP_S, Member, State, Use

LEASE_S = 1.5
PLACE = "b/engine"


@dataclass
class Proxy:
    """One member with a queue of requests of one sequence, and the Dispatcher's part of the rules."""

    member: Member
    limit: int
    hold: Hold = field(default_factory=Hold)
    running: int = 0
    waiting: int = 0

    @property
    def used(self):
        return (self.running, 0, 0)

    def end(self, count):
        count = min(count, self.running)
        self.running -= count
        self.hold.release((count, 0, 0))

    def use(self):
        return {
            PLACE: Use(
                used=self.used,
                peak=self.hold.take_peak(self.used),
                limits=(self.limit, -1, -1),
                waiting=(self.waiting, 0, 0),
                need=self.hold.take_need(),
            )
        }

    def follow(self, now):
        terms = self.member.terms(now)
        if PLACE in terms:
            self.hold.terms = terms[PLACE]

    def dispatch(self, now):
        while self.waiting and self.hold.lacks(now, self.used, (1, 0, 0), 0) is None:
            self.waiting -= 1
            self.running += 1
            self.hold.note(self.used)

    def ask(self, now):
        request = self.member.ask(now, self.use())
        self.follow(now)
        return request

    def told(self, now, reply):
        self.member.told(now, reply)
        self.follow(now)
        self.dispatch(now)

    def failed(self, now):
        self.member.failed(now)
        self.follow(now)
        self.dispatch(now)

    def sync(self, now, book):
        reply = book.sync(round(now * 1000), self.ask(now))
        self.told(now, reply)
        return bool(reply.get("w"))


class Group:
    """Proxies, their store, and one clock."""

    def __init__(self, count, limit, recovery_s=0.0):
        self.now = 1000.0
        self.limit = limit
        self.book = Book()
        self.reachable = True
        self.proxies = [Proxy(Member(f"{number:02x}", count, LEASE_S, recovery_s), limit) for number in range(count)]

    @property
    def in_flight(self):
        return sum(proxy.running for proxy in self.proxies)

    def beat(self, proxy):
        if self.reachable:
            if proxy.sync(self.now, self.book):
                for other in self.proxies:
                    if other is not proxy:
                        other.member.woken()
        else:
            proxy.ask(self.now)
            proxy.failed(self.now + 0.05)

    def pass_time(self, seconds):
        """Let the clock run; everybody asks when it is due."""
        until = self.now + seconds
        while True:
            at, _, proxy = min(
                (proxy.member.due(self.now, proxy.hold.stirred(proxy.used)), index, proxy)
                for index, proxy in enumerate(self.proxies)
            )
            if at > until:
                self.now = until
                return
            self.now = max(self.now, at)
            proxy.member.check(self.now)
            proxy.follow(self.now)
            self.beat(proxy)
            assert self.in_flight <= self.limit or not self.reachable, self.proxies


def joined(count=3, limit=64, **more):
    group = Group(count, limit, **more)
    group.pass_time(2 * LEASE_S)
    assert [proxy.member.state for proxy in group.proxies] == [State.JOINED] * count
    return group


def test_one_that_needs_all_gets_all_while_the_others_are_idle():
    group = joined()
    group.proxies[0].waiting = 100
    group.proxies[0].dispatch(group.now)
    group.pass_time(0.1)
    assert group.proxies[0].running == 64


def test_a_grant_takes_no_round_trip_where_as_much_ran_before():
    group = joined()
    one = group.proxies[0]
    one.waiting = 10
    one.dispatch(group.now)
    group.pass_time(0.1)
    one.end(one.running)
    one.waiting = 10
    one.dispatch(group.now)
    assert one.running == 10


def test_a_burst_of_many_is_asked_for_at_once():
    group = joined()
    group.proxies[1].waiting = 40
    group.proxies[1].dispatch(group.now)
    group.beat(group.proxies[1])
    assert group.proxies[1].running == 40


def test_a_hungry_one_gets_what_an_idle_one_holds_within_a_heartbeat():
    group = joined()
    one, other, _ = group.proxies
    one.waiting = 64
    one.dispatch(group.now)
    group.pass_time(0.1)
    one.end(one.running)  # all at once, and all of it is kept ahead of need
    other.waiting = 30
    other.dispatch(group.now)
    group.pass_time(LEASE_S / 3 + 2 * GAP_S)
    assert other.running == 30


def test_two_hungry_ones_take_turns():
    group = joined()
    one, other, _ = group.proxies
    one.waiting = 1000
    one.dispatch(group.now)
    group.pass_time(0.1)
    other.waiting = 1000
    other.dispatch(group.now)
    for _ in range(400):
        busiest = max(group.proxies, key=lambda proxy: proxy.running)
        busiest.end(1)
        busiest.dispatch(group.now)
        group.pass_time(3 * GAP_S)
    assert abs(one.running - other.running) <= 4
    assert one.running + other.running >= 62


def test_what_a_killed_one_held_returns_after_its_lease():
    group = joined()
    dead, other, _ = group.proxies
    dead.waiting = 64
    dead.dispatch(group.now)
    group.pass_time(0.1)
    group.proxies.remove(dead)
    other.waiting = 64
    other.dispatch(group.now)
    group.pass_time(0.1)
    assert other.running == 0
    group.pass_time(LEASE_S + LEASE_S / 3)
    assert other.running == 64


def test_one_that_was_frozen_uses_no_more_than_its_share_when_it_wakes():
    group = joined()
    frozen, other, _ = group.proxies
    frozen.waiting = 64
    frozen.dispatch(group.now)
    group.pass_time(0.1)
    group.proxies.remove(frozen)
    group.pass_time(LEASE_S + 0.1)
    other.waiting = 10
    other.dispatch(group.now)
    group.pass_time(0.1)
    frozen.end(64)
    frozen.waiting = 64
    frozen.dispatch(group.now)  # before any timer of its own ran
    assert frozen.running == 64 // 3
    assert frozen.member.check(group.now)
    assert frozen.member.fallbacks == 1


def test_without_the_store_each_keeps_to_its_share():
    group = joined()
    group.reachable = False
    for proxy in group.proxies:
        proxy.waiting = 64
    group.pass_time(3 * LEASE_S)
    assert [proxy.member.state for proxy in group.proxies] == [State.DEGRADED] * 3
    assert [proxy.running for proxy in group.proxies] == [21, 21, 21]


def test_who_held_little_grows_to_its_share_slowly():
    group = joined(recovery_s=10.0)
    one, other, _ = group.proxies
    one.waiting = 64
    one.dispatch(group.now)
    group.pass_time(0.1)
    group.reachable = False
    other.waiting = 64
    group.pass_time(LEASE_S + 0.1)
    assert other.member.state is State.DEGRADED
    assert other.running <= 1
    group.pass_time(5.0)
    assert 8 <= other.running <= 12
    group.pass_time(6.0)
    assert other.running == 21


def test_on_return_what_is_in_flight_is_said_before_anybody_gets_more():
    group = joined(recovery_s=1e9)
    for proxy in group.proxies:
        proxy.waiting = 64
        proxy.dispatch(group.now)
    group.pass_time(0.2)
    group.reachable = False
    group.pass_time(3 * LEASE_S)
    group.book = Book()  # it has lost everything
    group.reachable = True
    group.pass_time(LEASE_S / 2)
    assert {proxy.member.state for proxy in group.proxies} == {State.REJOINING}
    assert group.in_flight <= 64
    group.pass_time(LEASE_S)
    assert {proxy.member.state for proxy in group.proxies} == {State.JOINED}


def test_a_store_that_has_gone_back_in_time_is_calm_first():
    group = joined()
    old = Book()
    old.sync(round(group.now * 1000), {"m": "ff", "q": 1, "t": 1500, "n": 3, "v": 0, "p": {}})
    group.book = old  # a copy from long ago: it knows none of them, but somebody is there
    group.proxies[0].waiting = 64
    group.proxies[0].dispatch(group.now)
    group.beat(group.proxies[0])
    group.beat(group.proxies[0])
    assert group.proxies[0].member.state is not State.JOINED
    assert group.proxies[0].running <= 21


def test_an_answer_that_comes_after_the_lease_is_of_no_use():
    group = joined()
    one = group.proxies[0]
    reply = group.book.sync(round(group.now * 1000), one.ask(group.now))
    one.told(group.now + LEASE_S, reply)
    assert one.member.state is State.DEGRADED


def test_after_two_failures_only_the_leases_are_renewed_and_not_what_is_lacking_asked_for():
    group = joined()
    one = group.proxies[0]
    group.reachable = False
    group.beat(one)
    assert one.member.due(group.now, Stir.LACKS) <= group.now + 0.05 + GAP_S
    group.beat(one)
    assert one.member.due(group.now, Stir.LACKS) == one.member.due(group.now, Stir.NOTHING)
    assert group.now + 0.1 < one.member.due(group.now, Stir.LACKS) < group.now + LEASE_S / 6


def test_two_proxies_more_than_said_make_the_share_smaller():
    group = Group(5, 60)
    for proxy in group.proxies:
        proxy.member.share = 3
    group.pass_time(2 * LEASE_S)
    group.reachable = False
    for proxy in group.proxies:
        proxy.waiting = 60
    group.pass_time(3 * LEASE_S)
    assert [proxy.running for proxy in group.proxies] == [12] * 5


def test_who_leaves_gives_all_back_at_once():
    group = joined()
    one, other, _ = group.proxies
    one.waiting = 64
    one.dispatch(group.now)
    group.pass_time(0.1)
    one.end(one.running)
    group.book.sync(round(group.now * 1000), one.member.leave())
    group.proxies.remove(one)
    other.waiting = 64
    other.dispatch(group.now)
    group.pass_time(0.1)
    assert other.running == 64


steps = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.integers(0, 2), st.integers(1, 12)),
        st.tuples(st.just("end"), st.integers(0, 2), st.integers(1, 12)),
        st.tuples(st.just("time"), st.floats(0.001, 1.0), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=60)
@given(steps, st.integers(1, 12))
def test_never_more_than_the_limit_runs_and_everybody_is_served(events, limit):
    group = joined(3, limit)
    for kind, who, count in events:
        if kind == "time":
            group.pass_time(who)
            continue
        proxy = group.proxies[who]
        if kind == "arrive":
            proxy.waiting += count
        else:
            proxy.end(count)
        proxy.dispatch(group.now)
        held = group.book.held(round(group.now * 1000), PLACE)
        assert group.in_flight <= limit
        assert sum(amounts[0] for amounts in held.values()) <= limit
    for _ in range(200):
        if not any(proxy.waiting for proxy in group.proxies):
            break
        for proxy in group.proxies:
            proxy.end(proxy.running)
            proxy.dispatch(group.now)
        group.pass_time(LEASE_S)
    assert [proxy.waiting for proxy in group.proxies] == [0, 0, 0]
    for proxy in group.proxies:
        proxy.end(proxy.running)
    group.pass_time(2 * LEASE_S)
    assert group.book.held(round(group.now * 1000), PLACE) == {f"{n:02x}": [0, 0, 0] for n in range(3)}


@settings(max_examples=40)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("arrive"), st.integers(0, 2), st.integers(1, 30)),
            st.tuples(st.just("end"), st.integers(0, 2), st.integers(1, 30)),
            st.tuples(st.just("time"), st.floats(0.01, 3.0), st.just(0)),
            st.tuples(st.just("store"), st.booleans(), st.booleans()),
        ),
        max_size=40,
    )
)
def test_whatever_happens_to_the_store_only_what_was_lost_with_it_is_above_the_limit(events):
    """A proxy that held more than its share when the store went still runs it; nobody takes more on top."""
    group = joined(3, 30, recovery_s=1e9)
    for kind, who, count in events:
        if kind == "time":
            group.pass_time(who)
        elif kind == "store":
            group.reachable = who
            if count:
                group.book = Book()
        else:
            proxy = group.proxies[who]
            if kind == "arrive":
                proxy.waiting += count
            else:
                proxy.end(count)
            proxy.dispatch(group.now)
        assert group.in_flight <= 30


def test_a_need_of_a_lower_lane_is_asked_for_first():
    hold = Hold()
    assert hold.lacks(0.0, (0, 0, 0), (1, 500, 0), 1) == 0
    assert hold.lacks(0.0, (0, 0, 0), (2, 100, 0), 0) == 0
    assert hold.lacks(0.0, (0, 0, 0), (9, 100, 0), 1) == 0
    assert hold.take_need() == Need(0, (1, 1, 0))
    assert hold.take_need() is None
