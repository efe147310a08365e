"""Heads of answers: parsed strictly, never a guess."""

import pytest

from proxy.upstream.framing import ChunkedFraming, CloseFraming, LengthFraming
from proxy.upstream.head import LONGEST_FIELD, LONGEST_HEAD, BadHeadError, parse_head, split_head

GOOD = b"HTTP/1.1 200 OK\r\nDate: x\r\nSet-Cookie: a\r\nSet-Cookie: b\r\nContent-Length: 5\r\n\r\n"


def test_status_headers_and_length_are_read():
    head = parse_head(GOOD)
    assert (head.status, head.reason, head.length, head.keep_alive) == (200, b"OK", 5, True)
    assert [value for name, value in head.headers if name == b"set-cookie"] == [b"a", b"b"]
    assert head.get(b"date") == b"x"
    assert head.get(b"absent") == b""


@pytest.mark.parametrize("at", range(len(GOOD)))
def test_a_head_is_found_only_when_it_is_whole(at):
    assert split_head(GOOD[:at]) == 0
    assert split_head(GOOD + b"body") == len(GOOD)


@pytest.mark.parametrize("start", [b"SSH-2.0", b"\r\nHTTP/1.1 200", b"HTTP/2 200", b"ICE/1.0 200 OK"])
def test_what_is_no_http_1_is_refused_from_its_first_bytes(start):
    with pytest.raises(BadHeadError, match="not HTTP/1"):
        split_head(start)


def test_a_head_without_end_is_refused_at_its_limit():
    endless = b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * LONGEST_HEAD
    with pytest.raises(BadHeadError, match="longer"):
        split_head(endless)
    with pytest.raises(BadHeadError, match="longer"):
        split_head(endless + b"\r\n")


@pytest.mark.parametrize(
    ("lines", "framing"),
    [
        (b"Content-Length: 5\r\n", LengthFraming),
        (b"Transfer-Encoding: chunked\r\n", ChunkedFraming),
        (b"Transfer-Encoding: CHUNKED\r\n", ChunkedFraming),
        (b"", CloseFraming),
    ],
)
def test_the_framing_follows_the_head(lines, framing):
    assert type(parse_head(b"HTTP/1.1 200 OK\r\n" + lines + b"\r\n").framing()) is framing


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_some_statuses_have_no_body_whatever_they_say(status):
    head = parse_head(b"HTTP/1.1 " + status + b"\r\nContent-Length: 7\r\n\r\n")
    assert head.bodyless
    assert head.framing().done


@pytest.mark.parametrize(
    ("line", "keep"),
    [
        (b"HTTP/1.1 200 OK\r\n", True),
        (b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\n", True),
        (b"HTTP/1.1 200 OK\r\nConnection: Close\r\n", False),
        (b"HTTP/1.0 200 OK\r\n", False),
    ],
)
def test_a_connection_is_kept_only_when_the_engine_keeps_it(line, keep):
    assert parse_head(line + b"Content-Length: 0\r\n\r\n").keep_alive is keep


@pytest.mark.parametrize(
    "bad",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\rC: d\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\nC: d\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: \x00\r\n\r\n",
        b"HTTP/1.1 200 O\x01K\r\n\r\n",
        b"HTTP/1.1 999 What\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: " + b"b" * (LONGEST_FIELD + 1) + b"\r\n\r\n",
    ],
)
def test_a_doubtful_head_is_refused(bad):
    with pytest.raises(BadHeadError):
        parse_head(bad)
