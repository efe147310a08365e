"""Framing: the end of a body is found exactly, at every cut, and nothing is passed on whose place is not known."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.upstream.framing import (
    LAST_CHUNK,
    BadFramingError,
    ChunkedFraming,
    CloseFraming,
    LengthFraming,
    chunk,
)

EVENTS = [b'data: {"n": 1}\n\n', b"data: 0\r\n\r\n0\r\n\r\n", b"x" * 300, b"\r\n", b"data: [DONE]\n\n"]
PAYLOAD = b"".join(EVENTS)
WIRE = b"".join(chunk(event) for event in EVENTS)


def feed(framing, pieces):
    wire, payload = b"", b""
    for piece in pieces:
        passed, body = framing.feed(piece)
        wire += passed
        payload += body
    return wire, payload


def dechunk(wire: bytes) -> tuple[bytes, bool]:
    """Read a chunked body the slow way; say whether it is whole."""
    payload = b""
    while True:
        line, mark, rest = wire.partition(b"\r\n")
        if not mark:
            return payload, False
        size = int(line, 16)
        if size == 0:
            return payload, rest == b"\r\n"
        payload += rest[:size]
        if rest[size : size + 2] != b"\r\n":
            return payload, False
        wire = rest[size + 2 :]


def test_a_chunk_that_is_one_read_passes_as_the_very_same_bytes():
    framing = ChunkedFraming()
    data = chunk(EVENTS[0])
    wire, payload = framing.feed(data)
    assert wire is data
    assert payload == EVENTS[0]
    assert not framing.done


@pytest.mark.parametrize("at", range(len(WIRE + LAST_CHUNK) + 1))
def test_a_body_cut_at_any_one_place_is_the_same_body(at):
    body = WIRE + LAST_CHUNK
    framing = ChunkedFraming()
    assert feed(framing, [body[:at], body[at:]]) == (WIRE, PAYLOAD)
    assert framing.done
    assert framing.excess == b""


@given(st.lists(st.integers(0, len(WIRE) + 5), max_size=12))
def test_a_body_cut_anywhere_is_the_same_body(places):
    body = WIRE + LAST_CHUNK
    cuts = [0, *sorted(places), len(body)]
    framing = ChunkedFraming()
    pieces = [body[a:b] for a, b in itertools.pairwise(cuts)]
    assert feed(framing, pieces) == (WIRE, PAYLOAD)
    assert framing.done


def test_a_body_of_one_byte_reads_is_the_same_body():
    framing = ChunkedFraming()
    assert feed(framing, [bytes([byte]) for byte in WIRE + LAST_CHUNK]) == (WIRE, PAYLOAD)


def test_bytes_behind_the_end_are_excess():
    framing = ChunkedFraming()
    framing.feed(WIRE + LAST_CHUNK + b"HTTP/1.1 200 OK")
    assert framing.done
    assert framing.excess == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize("at", range(1, 40))
def test_trailers_are_dropped_wherever_they_are_cut(at):
    body = chunk(b"abc") + b"0;ext\r\nX-T: 1\r\nY: 2\r\n\r\n"
    framing = ChunkedFraming()
    assert feed(framing, [body[:at], body[at:]]) == (chunk(b"abc"), b"abc")
    assert framing.done


@pytest.mark.parametrize(
    "bad",
    [
        b"zz\r\n",
        b"0x10\r\n",
        b"+5\r\nhello\r\n",
        b"-5\r\n",
        b"1_0\r\n",
        b"\r\n",
        b"5\nhello\r\n",
        b"5;a\nb\r\nhello\r\n",
        b"5;a\rb\r\nhello\r\n",
        b"5\r\nhelloXX",
        b"5\r\nhello\rX",
        b"1" * 16 + b"\r\n",
        b"5;" + b"x" * 300,
        b"0\r\n" + b"X: y\r\n" * 4000,
    ],
)
def test_what_is_no_chunk_is_refused(bad):
    with pytest.raises(BadFramingError):
        ChunkedFraming().feed(chunk(b"ok") + bad)


@pytest.mark.parametrize("at", range(len(WIRE) + 1))
@pytest.mark.parametrize("size", [1, 10, 500])
def test_an_interjection_follows_whatever_was_passed_on(at, size):
    """After a cut anywhere, what was passed on plus the interjection is a valid, unfinished chunked body."""
    framing = ChunkedFraming()
    passed, payload = framing.feed(WIRE[:at])
    event = b"E" * size
    read, whole = dechunk(passed + framing.interject(event))
    assert read == payload + event
    assert not whole


def test_an_interjection_continues_on_chunk_boundaries():
    framing = ChunkedFraming()
    framing.feed(chunk(b"abc"))
    assert framing.interject(b"one") == chunk(b"one")
    assert framing.interject(b"two") == chunk(b"two")


@given(st.binary(max_size=50), st.integers(0, 50))
def test_a_body_with_a_length_ends_at_its_length(body, at):
    framing = LengthFraming(len(body))
    if body:
        wire, payload = feed(framing, [body[:at], body[at:] + b"more"])
        assert (wire, payload) == (body, body)
        assert framing.excess == b"more"
    assert framing.done
    assert framing.complete_at_close()


def test_an_interjection_never_fills_the_length():
    framing = LengthFraming(10)
    framing.feed(b"1234")
    assert framing.interject(b"x" * 20) == b"x" * 5
    assert not framing.complete_at_close()


def test_a_body_without_length_ends_with_its_connection():
    framing = CloseFraming()
    assert framing.feed(b"abc") == (b"abc", b"abc")
    assert not framing.done
    assert framing.complete_at_close()
    assert framing.interject(b"x") == b"x"
