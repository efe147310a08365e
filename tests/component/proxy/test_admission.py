"""The asyncio shell of the Dispatcher: whatever happens to a task, nothing stays held."""

import asyncio
import random
import time

import pytest

from proxy.admission import Admission, RefusedError
from proxy.policy.dispatch import Dispatcher
from proxy.policy.limits import BackendLimits, Installments, LaneLimits, Scheduling
from proxy.policy.outcome import Ending, Outcome, Reason
from proxy.policy.ticket import Ticket


@pytest.fixture
async def admit():
    made = []

    def make(*, concurrency=1, backends=1, slo=60.0, drop=None, queue=1000, **scheduling):
        lanes = (
            LaneLimits("short", 2048, slo, queue, 10**9, 10**9),
            LaneLimits("long", None, slo, queue, 10**9, 10**9),
        )
        chosen = Scheduling(lanes, drop_factor=drop, deadline_margin_s=0.0, **scheduling)
        limits = [BackendLimits(f"b{n}", concurrency) for n in range(backends)]
        made.append(Admission(Dispatcher(chosen, limits)))
        return made[-1]

    yield make
    for admission in made:
        admission.close()


def ticket(number, tokens=10, lane=0, **fields):
    return Ticket(number, lane, tokens, 10, **fields)


def held(admission):
    seen = admission.snapshot()
    return sum(b.in_flight for b in seen.backends), sum(b.prefill_tokens for b in seen.backends), seen.live


async def wait_for_grant(admission, number, granted):
    async with admission.turn(ticket(number)) as turn:
        await turn.grant()
        granted.append(number)
        await asyncio.Event().wait()


async def test_a_grant_that_is_free_comes_without_waiting(admit):
    admission = admit()
    async with admission.turn(ticket(1)) as turn:
        grant = await turn.grant()
        assert (grant.backend, grant.final) == ("b0", True)
        assert held(admission) == (1, 10, 1)
        turn.first_token()
        assert held(admission) == (1, 0, 1)
    assert held(admission) == (0, 0, 0)
    assert admission.live == 0


async def test_the_next_one_is_granted_when_one_leaves(admit):
    admission, granted = admit(), []
    tasks = [asyncio.ensure_future(wait_for_grant(admission, n, granted)) for n in (1, 2)]
    await asyncio.sleep(0)
    assert granted == [1]
    assert admission.waiting[0] == 1
    tasks[0].cancel()
    while len(granted) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert admission.waiting[0] == 0
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert held(admission) == (0, 0, 0)


async def test_an_error_inside_a_turn_frees_it(admit):
    admission = admit()

    async def fail():
        async with admission.turn(ticket(1)) as turn:
            await turn.grant()
            turn.ending = Ending.DROPPED
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert held(admission) == (0, 0, 0)
    assert admission.snapshot().backends[0].endings[Ending.DROPPED] == 1


async def test_a_full_lane_refuses_at_once(admit):
    admission, granted = admit(queue=1), []
    tasks = [asyncio.ensure_future(wait_for_grant(admission, n, granted)) for n in (1, 2)]
    await asyncio.sleep(0)
    with pytest.raises(RefusedError) as refused:
        async with admission.turn(ticket(3)) as turn:
            await turn.grant()
    assert refused.value.refuse.reason is Reason.QUEUE_FULL
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert held(admission) == (0, 0, 0)


async def test_the_timer_refuses_who_waited_past_the_deadline(admit):
    admission, granted = admit(slo=0.02, drop=1.0), []
    first = asyncio.ensure_future(wait_for_grant(admission, 1, granted))
    await asyncio.sleep(0)
    began = time.monotonic()
    with pytest.raises(RefusedError) as refused:
        async with asyncio.timeout(5), admission.turn(ticket(2)) as turn:
            await turn.grant()
    assert refused.value.refuse.outcome is Outcome.EXPIRED
    assert time.monotonic() - began >= 0.015
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert held(admission) == (0, 0, 0)


async def test_a_grant_that_could_not_be_used_goes_to_another_backend(admit):
    admission = admit(backends=2)
    async with admission.turn(ticket(1)) as turn:
        first = await turn.grant()
        turn.give_back()
        second = await turn.grant()
        assert {first.backend, second.backend} == {"b0", "b1"}
        turn.give_back()
        with pytest.raises(RefusedError) as refused:
            await turn.grant()
        assert refused.value.refuse.reason is Reason.NO_BACKEND
    assert held(admission) == (0, 0, 0)


async def test_a_long_prompt_is_granted_in_parts_and_then_whole(admit):
    admission = admit(installments=Installments(part_tokens=1024, pause=0.0))
    admission.apply(admission.dispatcher.set_prefix_cache(time.monotonic(), "b0", enabled=True, granularity=16))
    async with admission.turn(ticket(1, tokens=4096, lane=1, splittable=True)) as turn:
        grants = [await turn.grant()]
        while not grants[-1].final:
            turn.part_ended(grants[-2].upto_tokens if len(grants) > 1 else 0)
            grants.append(await turn.grant())
        assert [grant.upto_tokens for grant in grants] == [1024, 2048, 3072, 4096]
        assert [grant.part for grant in grants] == [0, 1, 2, 3]
    assert held(admission) == (0, 0, 0)


async def test_a_part_that_failed_lets_the_rest_go_whole(admit):
    admission = admit(installments=Installments(part_tokens=1024, pause=0.0))
    admission.apply(admission.dispatcher.set_prefix_cache(time.monotonic(), "b0", enabled=True, granularity=16))
    async with admission.turn(ticket(1, tokens=4096, lane=1, splittable=True)) as turn:
        assert not (await turn.grant()).final
        turn.part_failed()
        assert (await turn.grant()).final
    assert held(admission) == (0, 0, 0)


async def test_a_backend_that_comes_up_takes_who_waits(admit):
    admission, granted = admit(backends=2), []
    tasks = [asyncio.ensure_future(wait_for_grant(admission, n, granted)) for n in (1, 2)]
    admission.set_backend_up("b1", up=False)
    await asyncio.sleep(0)
    assert granted == [1]
    admission.set_backend_up("b1", up=True)
    while len(granted) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_at_the_end_of_the_drain_only_who_waits_is_refused(admit):
    admission, granted = admit(), []
    running = asyncio.ensure_future(wait_for_grant(admission, 1, granted))
    waiting = asyncio.ensure_future(wait_for_grant(admission, 2, granted))
    await asyncio.sleep(0)
    admission.drain()
    with pytest.raises(RefusedError) as refused:
        async with admission.turn(ticket(3)) as turn:
            await turn.grant()
    assert refused.value.refuse.reason is Reason.DRAINING
    assert admission.refuse_waiting("over") == 1
    with pytest.raises(RefusedError):
        await waiting
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert held(admission) == (0, 0, 0)


@pytest.mark.parametrize("seed", range(4))
async def test_cancelling_at_random_moments_leaves_nothing_held(admit, seed):
    rng = random.Random(seed)
    admission = admit(concurrency=4, backends=2)

    async def one(number):
        async with admission.turn(ticket(number, tokens=rng.randint(1, 3000), streams=rng.random() < 0.7)) as turn:
            await turn.grant()
            for _ in range(rng.randint(0, 5)):
                await asyncio.sleep(0)
            turn.first_token()
            if rng.random() < 0.1:
                turn.give_back()
                await turn.grant()
            for _ in range(rng.randint(0, 5)):
                await asyncio.sleep(0)

    tasks = [asyncio.ensure_future(one(number)) for number in range(300)]
    for _ in range(150):
        await asyncio.sleep(0)
        rng.choice(tasks).cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(result) for result in results} <= {type(None), asyncio.CancelledError, RefusedError}
    assert held(admission) == (0, 0, 0)
    assert admission.live == 0
    assert admission.waiting[0] == 0
