"""What is believed of where a request comes from, and where a request can be made to go: nowhere but to the engines."""

import json
import logging

import pytest
from clients import chat, request
from engines import Engine, healthy

LOOPS = ("uvloop",)
SPOOFED = {
    "X-Forwarded-For": "198.51.100.7",
    "X-Forwarded-Proto": "gopher",
    "X-Forwarded-Host": "evil.test",
    "X-Forwarded-Port": "1",
    "Forwarded": "for=198.51.100.7;proto=gopher",
    "X-Real-IP": "198.51.100.7",
}
OURS = ["127.0.0.0/8"]


async def test_what_a_stranger_says_of_its_origin_is_replaced_by_what_we_see(start):
    engine, proxy = await start(healthy)
    await (await proxy.client()).post(chat(), **SPOOFED)
    seen = [(name, value) for name, value in engine.requests[0].headers if name.startswith(("x-f", "forw", "x-real"))]
    assert seen == [
        ("x-forwarded-for", "127.0.0.1"),
        ("x-forwarded-proto", "http"),
        ("x-forwarded-host", "proxy"),
    ]


async def test_what_a_proxy_of_ours_says_goes_on_with_its_own_address_behind_it(start):
    engine, proxy = await start(healthy, trusted_proxies=OURS)
    await (await proxy.client()).post(chat(), **SPOOFED)
    seen = dict(engine.requests[0].headers)
    assert seen["x-forwarded-for"] == "198.51.100.7, 127.0.0.1"
    assert (seen["x-forwarded-proto"], seen["x-forwarded-host"]) == ("gopher", "evil.test")
    assert seen["forwarded"] == SPOOFED["Forwarded"]


async def test_a_proxy_of_ours_that_says_no_scheme_gets_ours(start):
    engine, proxy = await start(healthy, trusted_proxies=OURS)
    await (await proxy.client()).post(chat(), **{"X-Forwarded-For": "198.51.100.7"})
    assert engine.requests[0].header("x-forwarded-proto") == "http"


@pytest.mark.parametrize(("trusted", "client"), [((), "127.0.0.1"), (OURS, "198.51.100.7")])
async def test_the_log_names_the_client_where_that_is_wanted(start, caplog, trusted, client):
    caplog.set_level(logging.INFO)
    _engine, proxy = await start(healthy, trusted_proxies=trusted, access_log=True, log_client=True)
    await (await proxy.client()).post(chat(), **SPOOFED)
    (line,) = [record for record in caplog.records if record.getMessage() == "request ended"]
    assert line.fields["client"] == client


async def test_the_log_names_no_client_by_itself(start, caplog):
    caplog.set_level(logging.INFO)
    _engine, proxy = await start(healthy, access_log=True)
    await (await proxy.client()).post(chat())
    (line,) = [record for record in caplog.records if record.getMessage() == "request ended"]
    assert "client" not in line.fields


async def labels(start, trusted, *origins):
    _engine, proxy = await start(healthy, trusted_proxies=trusted, tenants={"by": "address"})
    for origin in origins:
        await (await proxy.client()).post(chat(), **{"X-Forwarded-For": origin})
    return [(await proxy.ended(n)).tenant for n in range(len(origins))]


async def test_tenants_are_told_apart_by_address_behind_a_proxy_of_ours(start):
    one, same, other, neighbour = await labels(
        start, OURS, "198.51.100.7", "198.51.100.7:99", "2001:db8::7", "2001:db8::8"
    )
    assert one == same
    assert other == neighbour  # a whole /64 is one customer
    assert one != other
    assert one.startswith("t-")


async def test_a_stranger_is_one_tenant_whatever_it_says(start):
    assert len(set(await labels(start, (), "198.51.100.7", "198.51.100.8"))) == 1


# ---------------------------------------------------------------- nowhere but to the engines


class Trap(Engine):
    """Somebody who must never be connected to."""

    def probed(self, peer, received):
        self.requests.append(received)


@pytest.fixture
async def trap():
    async with Trap(healthy) as listening:
        yield listening
        assert (listening.requests, listening.connections) == ([], set())


async def test_no_header_moves_a_request(start, trap):
    engine, proxy = await start(healthy)
    there = f"127.0.0.1:{trap.port}"
    fields = {
        "Host": there,
        "X-Backend": there,
        "X-Upstream-Url": trap.url,
        "X-Forwarded-Host": there,
        "X-Original-URL": f"{trap.url}/v1/models",
        "X-Rewrite-URL": "/metrics",
        "X-Prefiller-Host-Port": there,
        "Forwarded": f"host={there}",
    }
    assert (await (await proxy.client()).post(chat(), **fields)).status == 200
    (seen,) = engine.requests
    assert (seen.path, seen.header("host")) == ("/v1/chat/completions", f"127.0.0.1:{engine.port}")
    assert (seen.header("x-backend"), seen.header("x-upstream-url")) == (None, None)


async def test_the_absolute_form_moves_no_request(start, trap):
    engine, proxy = await start(healthy)
    client = await proxy.client()
    body = json.dumps(chat()).encode()
    head = f"POST {trap.url}/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    client.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    assert (await client.answer()).status == 200
    assert [seen.path for seen in engine.requests] == ["/v1/chat/completions"]


@pytest.mark.parametrize("target", ["//127.0.0.1:{}/v1/models", "/v1/models@127.0.0.1:{}", "127.0.0.1:{}"])
async def test_odd_targets_reach_nobody(start, trap, target):
    engine, proxy = await start(healthy)
    client = await proxy.client()
    client.send(f"GET {target.format(trap.port)} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert (await client.head()).status in {400, 404}
    assert engine.requests == []


async def test_no_body_makes_lanewise_connect_anywhere(start, trap):
    engine, proxy = await start(healthy)
    url = f"{trap.url}/x.png"
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}],
        "base_url": trap.url,
        "kv_transfer_params": {"remote_host": "127.0.0.1", "remote_port": trap.port},
    }
    assert (await (await proxy.client()).post(body)).status == 200
    assert engine.requests[0].json == body


@pytest.mark.parametrize("status", [b"301 Moved Permanently", b"302 Found", b"307 Temporary Redirect"])
async def test_a_redirect_of_an_engine_is_told_and_not_followed(start, trap, status):
    async def elsewhere(_request, peer):
        peer.answer(b"{}", status=status, extra=f"location: {trap.url}/v1/chat/completions\r\n".encode())

    engine, proxy = await start(elsewhere)
    got = await (await proxy.client()).post(chat())
    assert got.status == int(status[:3])
    assert len(engine.requests) == 1


async def test_a_redirect_of_a_probe_is_not_followed(start, trap):
    engine, proxy = await start(healthy)
    engine.probed = lambda peer, _request: peer.answer(
        b"", status=b"302 Found", extra=f"location: {trap.url}\r\n".encode()
    )
    await proxy.app.backends.probe("engine0")
    assert proxy.app.backends.views()[0].error == "/health answered 302"


async def test_a_rank_that_a_client_names_stays_behind_the_same_address(start, trap):
    first, second, proxy = await start(healthy, healthy)
    client = await proxy.client()
    for rank in ("1", "99", f"127.0.0.1:{trap.port}"):
        client.send(request(chat(), **{"X-data-parallel-rank": rank}))
        assert (await client.answer()).status == 200
    seen = [one.header("x-data-parallel-rank") for one in (*first.requests, *second.requests)]
    assert sorted(seen) == sorted(["1", "99", f"127.0.0.1:{trap.port}"])
