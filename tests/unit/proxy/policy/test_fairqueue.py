"""Turns inside a lane: whose counter is smallest goes first; a single tenant changes nothing; nobody starves."""

from hypothesis import given
from hypothesis import strategies as st

from proxy.policy.dispatch import Dispatcher
from proxy.policy.limits import BackendLimits, Fairness, LaneLimits, Scheduling, TenantLimits
from proxy.policy.outcome import Ending
from proxy.policy.ticket import Grant, Refuse, Ticket

PLENTY = 10**9
LANES = (
    LaneLimits("short", 2048, 1.0, 1000, PLENTY, PLENTY),
    LaneLimits("long", None, 5.0, 1000, PLENTY, PLENTY),
)


def test_a_tenant_that_sends_little_does_not_wait_behind_one_that_sends_much(desk):
    d = desk(concurrency=1, drop_factor=None, fairness=Fairness())
    d.offer(1000, 0, tenant="much")
    for _ in range(3):
        d.offer(100, 0, tenant="much")
    d.offer(1000, 0, tenant="little")
    d.offer(1000, 0, tenant="little")
    for i in (1, 2, 5, 3):
        d.leave(i)
    assert d.granted == [1, 2, 5, 3, 4]


def test_tenants_with_equal_counters_go_in_the_order_of_the_lane(desk):
    d = desk(concurrency=1, drop_factor=None, fairness=Fairness(by_tokens=False))
    d.offer(10, 0, tenant="a")
    d.offer(900, 0, tenant="a")
    d.offer(100, 0, tenant="b")
    d.offer(500, 0, tenant="c")
    for i in (1, 3, 4):
        d.leave(i)
    assert d.granted == [1, 3, 4, 2]


def test_weights_share_the_tokens(desk):
    d = desk(concurrency=1, drop_factor=None, fairness=Fairness(tenants={"two": TenantLimits(weight=2.0)}))
    d.offer(100, 0, tenant="nobody")
    for _ in range(30):
        d.offer(100, 0, tenant="one")
        d.offer(100, 0, tenant="two")
    for _ in range(30):
        d.leave(d.granted[-1])
    of = [grant.ticket.tenant for grant in d.grants[1:]]
    assert (of.count("two"), of.count("one")) == (20, 10)


def test_on_time_goes_before_late_whoever_had_less(desk):
    d = desk(concurrency=1, drop_factor=9.0, fairness=Fairness())
    d.offer(1000, 0, tenant="much")
    d.offer(100, 0, tenant="little")
    d.now = 2.0
    d.wake()
    d.offer(100, 0, tenant="much")
    d.leave(1)
    assert d.granted == [1, 3]


def test_late_tenants_take_turns_too(desk):
    d = desk(concurrency=1, drop_factor=9.0, fairness=Fairness())
    d.offer(1000, 0, tenant="much")
    d.offer(50, 0, tenant="much")
    d.offer(60, 0, tenant="much")
    d.offer(1000, 0, tenant="little")
    d.now = 2.0
    d.wake()
    d.leave(1)
    d.leave(d.granted[-1])
    d.leave(d.granted[-1])
    assert d.granted == [1, 2, 4, 3]


def test_a_higher_class_goes_first_and_a_lower_one_that_waited_long_enough_before_it(desk):
    d = desk(concurrency=1, drop_factor=None, priority_step_s=10.0)
    d.offer(100, 0)
    d.offer(100, 0, priority=1)
    d.offer(100, 0)
    d.offer(100, 0, priority=-1)
    for i in (1, 4, 3):
        d.leave(i)
    assert d.granted == [1, 4, 3, 2]
    d.offer(100, 0, priority=1)
    d.now = 10.5
    d.offer(100, 0)
    d.leave(2)
    assert d.granted[-1] == 5


def test_without_a_step_classes_mean_nothing(desk):
    d = desk(concurrency=1, drop_factor=None)
    d.offer(100, 0)
    d.offer(100, 0)
    d.now = 0.1
    d.offer(100, 0, priority=-5)
    d.leave(1)
    assert d.granted == [1, 2]


# ---------------------------------------------------------------- properties

OFFERS = st.lists(
    st.tuples(
        st.sampled_from(["offer", "offer", "offer", "first", "leave", "give_back", "time", "down", "up", "reload"]),
        st.integers(1, 4000),
        st.integers(0, 300),
        st.sampled_from(["a", "b", "c", None]),
        st.integers(-1, 1),
        st.integers(1, 3),
    ),
    min_size=5,
    max_size=120,
)


def drive(steps, *, one_tenant=False, reloads=(), **scheduling):
    """Play a script; return all effects in order, and the Dispatcher."""
    settings = {"lanes": LANES, "drop_factor": 3.0, **scheduling}
    backends = [BackendLimits("x", 3), BackendLimits("y", 2)]
    d = Dispatcher(Scheduling(**settings), backends)
    now, effects, live = 0.0, [], {}

    def keep(found):
        effects.extend(found)
        for effect in found:
            if isinstance(effect, Refuse):
                live.pop(effect.ticket.id, None)
            else:
                live[effect.ticket.id] = effect

    for number, (what, prompt, output, tenant, priority, sequences) in enumerate(steps, 1):
        running = [i for i, effect in live.items() if isinstance(effect, Grant)]
        chosen = (running or list(live) or [0])[prompt % max(1, len(running or live))]
        if what == "offer":
            live[number] = None
            ticket = Ticket(
                number, int(prompt > 2048), prompt, output, sequences,
                tenant="only" if one_tenant else tenant, priority=priority,
            )  # fmt: skip
            keep(d.offer(now, ticket))
        elif what == "first":
            keep(d.first_token(now, chosen) if chosen in running else [])
        elif what == "leave":
            live.pop(chosen, None)
            keep(d.leave(now, chosen, Ending.MEASURED, output))
        elif what == "give_back" and chosen in running:
            live[chosen] = None
            keep(d.give_back(now, chosen))
        elif what in {"down", "up"}:
            keep(d.set_backend_up(now, "xy"[prompt % 2], what == "up"))
        elif what == "reload" and reloads:
            changed = settings | {"fairness": reloads[prompt % len(reloads)], "drop_factor": (None, 3.0)[output % 2]}
            keep(d.reconfigure(now, Scheduling(**changed), backends))
        else:
            now += prompt / 2000
            keep(d.wake(now))
    return effects, d, live


@given(OFFERS)
def test_a_single_tenant_gives_the_same_decisions_as_fairness_off(steps):
    with_tenants, *_ = drive(steps, one_tenant=True, fairness=Fairness(), priority_step_s=3.0)
    without, *_ = drive(steps, one_tenant=True, priority_step_s=3.0)
    assert with_tenants == without


@given(OFFERS, st.booleans(), st.booleans())
def test_whatever_happens_accounts_end_empty_and_never_below_zero(steps, by_tokens, reloaded):
    limits = TenantLimits(waiting_requests=3, waiting_tokens=5000, sequences=2, tokens_per_minute=40_000)
    fairness = Fairness(by_tokens=by_tokens, tenants={"a": TenantLimits(weight=3.0)}, others=limits)
    reloads = (None, fairness, Fairness(others=limits), Fairness(by_tokens=False))
    effects, d, live = drive(steps, reloads=reloads if reloaded else (), fairness=fairness, priority_step_s=3.0)
    for tenant in d.snapshot(0.0).tenants:
        assert min(tenant.waiting_requests, tenant.waiting_tokens, tenant.running, tenant.granted) >= 0
        if tenant.name != "a" and not reloaded:
            assert tenant.waiting_requests <= 3
    for i in list(live):
        d.leave(1e6, i, Ending.IGNORED)
    assert all(t.waiting_requests == t.waiting_tokens == t.running == 0 for t in d.snapshot(1e6).tenants)
    assert d.snapshot(1e6).live == 0
    refused = [effect.ticket.id for effect in effects if isinstance(effect, Refuse)]
    assert len(refused) == len(set(refused))


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(1, 2000), st.integers(-1, 1)), max_size=40),
    st.integers(-1, 1),
    st.booleans(),
)
def test_nobody_starves_whatever_the_others_send(others, priority, fair):
    """An engine for one: the patient ticket goes after a bounded wait, while new ones with an advantage keep coming."""
    fairness = Fairness() if fair else None
    scheduling = Scheduling(
        lanes=LANES, drop_factor=None, fairness=fairness, priority_step_s=2.0, prefill_s_per_token=0.0001
    )
    d = Dispatcher(scheduling, [BackendLimits("x", 1)])
    running = [e.ticket.id for e in d.offer(0.0, Ticket(1, 0, 100, 10, tenant="first"))]
    d.offer(0.0, Ticket(2, 0, 2000, 10, tenant="patient", priority=priority))
    number = 2
    for tenant, prompt, rank in others:
        number += 1
        d.offer(0.0, Ticket(number, 0, prompt, 10, tenant=tenant, priority=rank))
    now = 0.0
    for _ in range(400):
        now += 0.25
        number += 1
        d.offer(now, Ticket(number, 0, 1, 10, tenant="favourite", priority=-1))
        granted = [e.ticket.id for e in d.leave(now, running[-1], Ending.MEASURED, 10) if isinstance(e, Grant)]
        running += granted
        if 2 in granted:
            return
    raise AssertionError(f"the patient ticket still waits after {now} s and {len(running)} grants")
