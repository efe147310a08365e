"""Which requests of a connection share what was read of a head."""

import asyncio
from unittest.mock import Mock

import pytest
from aiohttp import web
from aiohttp.http_parser import HttpRequestParser

from proxy.clienthead import ClientHead
from proxy.policy.limits import Mode
from proxy.wire import paths
from proxy.wire.headers import Peer, UpstreamFields

HEAD = (
    b"POST /v1/chat/completions?a=1 HTTP/1.1",
    b"Host: a",
    b"Content-Length: 2",
    b"Authorization: Bearer one",
)
LIMITS = object()


async def request(*lines):
    protocol = Mock()
    parser = HttpRequestParser(protocol, asyncio.get_running_loop(), 2**16)
    ((message, payload),), _, _ = parser.feed_data(b"\r\n".join(lines) + b"\r\n\r\n")
    return web.BaseRequest(message, payload, protocol, Mock(), Mock(), Mock())


async def read():
    found = await request(*HEAD)
    route = paths.route("POST", "/v1/chat/completions")
    fields = UpstreamFields(found.raw_headers, Peer("127.0.0.1", host="a"))
    return ClientHead(found, LIMITS, route=route, mode=Mode.ENFORCE, explained=False, fields=fields)


async def test_a_head_that_differs_only_in_the_length_of_its_body_is_the_same():
    head = await read()
    assert head.covers(await request(*HEAD))
    assert head.covers(await request(*HEAD[:2], b"content-length: 77", HEAD[3]))
    assert repr(head) == "<ClientHead POST /v1/chat/completions>"


@pytest.mark.parametrize(
    "other",
    [
        (HEAD[0].replace(b"a=1", b"a=2"), *HEAD[1:]),
        (HEAD[0].replace(b"chat/", b""), *HEAD[1:]),
        (HEAD[0].replace(b"1.1", b"1.0"), *HEAD[1:]),
        (HEAD[0].replace(b"POST", b"PUT"), *HEAD[1:]),
        (*HEAD[:3], b"Authorization: Bearer two"),
        (*HEAD, b"X-More: 1"),
        HEAD[:3],
        (*HEAD[:2], b"Transfer-Encoding: chunked", HEAD[3]),
        (HEAD[0], HEAD[2], HEAD[1], HEAD[3]),
    ],
)
async def test_any_other_difference_makes_it_another(other):
    assert not (await read()).covers(await request(*other))


def test_the_lines_for_an_engine_are_made_once_and_its_key_is_in_them_alone():
    fields = UpstreamFields(((b"Authorization", b"Bearer client"), (b"X-A", b"1")), Peer("10.0.0.1"))
    own, clients = fields.lines("engine:1", "secret"), fields.lines("engine:1", None)
    assert b"Bearer secret" in own
    assert b"Bearer client" not in own
    assert b"Bearer client" in clients
    assert fields.lines("engine:1", "secret") is own
    assert fields.lines("engine:2", None).startswith(b"Host: engine:2\r\nAuthorization: Bearer client\r\nX-A: 1\r\n")
