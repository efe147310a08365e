"""When a request is sent again: once, when nothing of it was taken, and as long as the budget lasts."""

import asyncio

from clients import chat
from engines import healthy

from proxy.exchange import UpstreamError
from proxy.policy.outcome import Outcome, Reason

NOTHING = {"ratio": 0.0, "floor": 0}


async def serve_one_then_die(request, peer):
    """Serve the first request of a connection whole; close at the second, unread."""
    if request.nth == 0:
        await healthy(request, peer)
    else:
        peer.close()


async def stale(start, **retries):
    """Ask twice, the second time over a connection that dies unread; return engine, proxy and second answer."""
    engine, proxy = await start(serve_one_then_die, retries=retries)
    client = await proxy.client()
    assert (await client.post(chat())).status == 200
    return engine, proxy, await client.post(chat())


async def test_a_connection_that_died_unread_costs_one_retry(start):
    engine, proxy, got = await stale(start)
    exchange = await proxy.ended(1)
    assert (got.status, exchange.retries, exchange.attempts, len(engine.requests)) == (200, 1, 2, 3)


async def test_without_budget_it_is_an_error_and_counted_as_such(start):
    _, proxy, got = await stale(start, **NOTHING)
    exchange = await proxy.ended(1)
    assert (got.status, exchange.outcome, exchange.retries) == (502, Outcome.BACKEND_ERROR, 0)
    assert exchange.retry_refused
    shown = [family for family in proxy.app.metrics.families() if family.name == "lanewise_retries"]
    values = {sample.labels["result"]: sample.value for sample in shown[0].samples if sample.labels["lane"] == "short"}
    assert values == {"ok": 0.0, "failed": 0.0, "budget_exhausted": 1.0}


async def test_the_strict_rule_sends_again_only_what_found_no_connection(start):
    _, proxy, got = await stale(start, stale_connections=False)
    exchange = await proxy.ended(1)
    assert (got.status, exchange.upstream_error, exchange.retry_refused) == (502, UpstreamError.RESET, False)


async def test_a_request_that_finds_nobody_goes_to_another_backend_once(start):
    first, _, proxy = await start(healthy, healthy)
    await first.stop()
    answers = [await (await proxy.client()).post(chat()) for _ in range(2)]
    assert [got.status for got in answers] == [200, 200]
    assert sum(exchange.retries for exchange in proxy.finished) >= 1


async def test_without_budget_it_is_refused_with_a_time_to_come_back(start):
    first, _, proxy = await start(healthy, healthy, retries=NOTHING)
    await first.stop()
    got = await (await proxy.client()).post(chat())
    exchange = await proxy.ended()
    assert (got.status, exchange.outcome, exchange.reason) == (503, Outcome.REJECTED, Reason.NO_BACKEND)
    assert got.header("retry-after") is not None
    assert (exchange.retry_refused, exchange.upstream_error) == (True, UpstreamError.CONNECT)
    assert proxy.held() == (0, 0, 0)


async def test_one_that_has_been_sent_again_already_is_not_sent_a_third_time(start):
    async def die_for_good(request, peer):
        if request.nth == 0 and request.connection == 0:
            await healthy(request, peer)
            return
        engines[0].server.close()
        peer.close()

    engines = []
    engine, proxy = await start(die_for_good)
    engines.append(engine)
    client = await proxy.client()
    await client.post(chat())
    got = await client.post(chat())
    exchange = await proxy.ended(1)
    assert (got.status, exchange.retries, len(engine.requests)) == (503, 1, 2)
    assert proxy.held() == (0, 0, 0)


async def test_what_an_engine_has_seen_is_never_sent_again(start):
    async def close_unanswered(request, peer):
        peer.close()

    first, second, proxy = await start(close_unanswered, close_unanswered)
    got = await (await proxy.client()).post(chat())
    assert (got.status, len(first.requests) + len(second.requests)) == (502, 1)


async def test_an_engine_that_dies_under_many_gets_no_storm_on_the_other(start):
    """Half of sixty requests find nobody: the other engine gets the floor and a share of them, no more."""
    budget = {"ratio": 0.1, "floor": 2}
    limits = {"concurrency": 200, "prefill_budget_tokens": "unlimited", "adaptive": {"enabled": False}}
    first, _, proxy = await start(healthy, healthy, retries=budget, scheduling=limits, probes={"down_after": 1000})
    await first.stop()
    clients = [await proxy.client() for _ in range(60)]
    answers = await asyncio.gather(*(client.post(chat()) for client in clients))
    retried = sum(exchange.retries for exchange in proxy.finished)
    assert retried <= 2 + 0.1 * 60
    assert {got.status for got in answers} == {200, 503}
    assert proxy.held() == (0, 0, 0)
