"""What is passed on of the header fields, and what is not."""

from proxy.wire.headers import (
    Headers,
    Peer,
    attempt_id,
    client_headers,
    client_request_id,
    header,
    upstream_headers,
)

PEER = Peer("192.0.2.7", scheme="https", host="api.example")


def sent(raw: Headers, peer: Peer = PEER, length: int | None = 2) -> dict[bytes, list[bytes]]:
    fields = upstream_headers(raw, host="engine:8000", content_length=length, request_id="id-1", peer=peer)
    found: dict[bytes, list[bytes]] = {}
    for name, value in fields:
        found.setdefault(name.lower(), []).append(value)
    return found


def test_what_the_engine_should_know_passes_in_order() -> None:
    raw = [
        (b"Authorization", b"Bearer secret"),
        (b"Content-Type", b"application/json; charset=utf-8"),
        (b"traceparent", b"00-1"),
        (b"X-data-parallel-rank", b"1"),
        (b"X-Session-ID", b"s"),
        (b"Cookie", b"a=1"),
        (b"Cookie", b"b=2"),
    ]
    fields = upstream_headers(raw, host="engine:8000", content_length=2, request_id="id-1", peer=PEER)
    assert fields[0] == (b"Host", b"engine:8000")
    assert fields[1:8] == raw


def test_hop_by_hop_fields_and_those_that_we_set_are_not_copied() -> None:
    names = [
        b"Connection", b"Keep-Alive", b"Proxy-Authorization", b"Proxy-Connection", b"Trailer",
        b"Te",  # codespell:ignore te
        b"Transfer-Encoding", b"Upgrade", b"HTTP2-Settings", b"Expect", b"Content-Encoding", b"X-Backend",
        b"X-Upstream-Url",
    ]  # fmt: skip
    found = sent([(name, b"evil") for name in names])
    assert not {name.lower() for name in names} & set(found)
    copied = sent([(b"hOST", b"evil"), (b"content-LENGTH", b"999"), (b"Accept-Encoding", b"gzip")])
    assert copied[b"host"] == [b"engine:8000"]
    assert copied[b"content-length"] == [b"2"]
    assert copied[b"accept-encoding"] == [b"identity"]


def test_a_request_without_a_body_has_no_length() -> None:
    assert b"content-length" not in sent([], length=None)


def test_fields_named_by_connection_are_dropped_but_never_the_vital_ones() -> None:
    raw = [
        (b"Connection", b"X-Secret, authorization"),
        (b"connection", b"close,  x-other "),
        (b"X-Secret", b"1"),
        (b"X-Other", b"2"),
        (b"Authorization", b"Bearer secret"),
    ]
    found = sent(raw)
    assert b"x-secret" not in found
    assert b"x-other" not in found
    assert found[b"authorization"] == [b"Bearer secret"]


def test_values_that_could_end_a_line_or_are_not_ascii_are_dropped() -> None:
    raw = [(b"X-A", b"a\r\nX-Evil: 1"), (b"X-B", b"\xc3\xa9"), (b"X-C", b"a\x00"), (b"X-D", b"tab\tis fine")]
    found = sent(raw)
    assert not {b"x-a", b"x-b", b"x-c"} & set(found)
    assert found[b"x-d"] == [b"tab\tis fine"]


def test_what_a_stranger_says_about_itself_is_overwritten() -> None:
    raw = [
        (b"X-Forwarded-For", b"127.0.0.1"),
        (b"X-Forwarded-Proto", b"ftp"),
        (b"X-Forwarded-Host", b"evil"),
        (b"X-Real-IP", b"127.0.0.1"),
        (b"Forwarded", b"for=127.0.0.1"),
    ]
    found = sent(raw)
    assert found[b"x-forwarded-for"] == [b"192.0.2.7"]
    assert found[b"x-forwarded-proto"] == [b"https"]
    assert found[b"x-forwarded-host"] == [b"api.example"]
    assert b"x-real-ip" not in found
    assert b"forwarded" not in found


def test_what_a_trusted_proxy_says_is_kept_and_the_chain_grows() -> None:
    raw = [(b"X-Forwarded-For", b"198.51.100.1"), (b"X-Forwarded-Proto", b"https"), (b"X-Real-IP", b"198.51.100.1")]
    found = sent(raw, Peer("10.0.0.1", trusted=True))
    assert found[b"x-forwarded-for"] == [b"198.51.100.1, 10.0.0.1"]
    assert found[b"x-forwarded-proto"] == [b"https"]
    assert found[b"x-real-ip"] == [b"198.51.100.1"]


def test_the_request_id_is_ours_to_set() -> None:
    assert sent([(b"x-request-ID", b"client")])[b"x-request-id"] == [b"id-1"]


def test_a_fit_request_id_of_the_client_is_kept() -> None:
    assert client_request_id([(b"X-Request-ID", b"#job_name[a]#1"), (b"X-Request-Id", b"2")]) == "#job_name[a]#1"


def test_an_absent_or_unfit_request_id_is_none() -> None:
    for value in (b"", b"x" * 257, b"\xc3\xa9", b"a\x1bb"):
        assert client_request_id([(b"X-Request-Id", value)]) is None
    assert client_request_id([]) is None


def test_attempts_have_ids_of_their_own_after_the_first() -> None:
    assert attempt_id("abc", 1) == "abc"
    assert len({attempt_id("abc", attempt) for attempt in range(1, 5)}) == 4


def test_the_answer_passes_without_framing_and_hop_by_hop_fields() -> None:
    raw = [
        (b"Date", b"now"),
        (b"Content-Type", b"text/event-stream"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Content-Length", b"5"),
        (b"Connection", b"close, X-Internal"),
        (b"X-Internal", b"1"),
        (b"Keep-Alive", b"timeout=5"),
        (b"Set-Cookie", b"a=1"),
        (b"Set-Cookie", b"b=2"),
        (b"X-Bad", b"a\rb"),
        (b"X-Latin", b"\xe9t\xe9"),
    ]
    assert client_headers(raw) == [
        (b"Date", b"now"),
        (b"Content-Type", b"text/event-stream"),
        (b"Set-Cookie", b"a=1"),
        (b"Set-Cookie", b"b=2"),
        (b"X-Latin", b"\xe9t\xe9"),
    ]


def test_a_field_is_found_whatever_its_case() -> None:
    assert header([(b"A", b"1"), (b"CONTENT-type", b"2"), (b"content-type", b"3")], b"content-type") == b"2"
    assert header([], b"content-type") is None
