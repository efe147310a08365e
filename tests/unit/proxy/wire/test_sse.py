"""The stream scanner and the usage remover, over hand-written and recorded streams, cut anywhere."""

import json
import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.wire import sse
from proxy.wire.errors import ErrorSeen
from proxy.wire.facts import Endpoint
from proxy.wire.sse import StreamScanner, UsageRemover
from proxy.wire.usage import Usage

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "sse"


@dataclass(frozen=True)
class Found:
    tokens: int
    finish: str | None
    usage: Usage | None = None
    error: str | None = None
    done: bool = True
    complete: bool = True
    unparsed: int = 0


EXPECTED = {
    "chat": Found(5, "stop"),
    "chat_usage": Found(5, "length", Usage(17, 5)),
    "chat_usage_continuous": Found(3, "length", Usage(17, 3)),
    "chat_n2_usage": Found(6, "stop", Usage(17, 8, 16)),
    "chat_reasoning": Found(3, "stop"),
    "chat_reasoning_new_key": Found(2, "stop"),
    "chat_tools": Found(2, "tool_calls"),
    "chat_empty_answer": Found(0, "stop", Usage(17, 1)),
    "chat_keepalive": Found(2, "stop"),
    "chat_engine_died": Found(2, None, error="The engine has stopped.", complete=False),
    "chat_cut_inside_event": Found(1, None, done=False, complete=False, unparsed=1),
    "chat_no_done": Found(1, "stop", done=False, complete=False),
    "chat_crlf": Found(5, "length", Usage(17, 5)),
    "chat_cr": Found(5, "stop"),
    "chat_broken_json": Found(1, "stop", unparsed=1),
    "chat_two_data_lines": Found(1, "stop"),
    "completions_usage": Found(3, "length", Usage(4, 3)),
    "completions_batch": Found(4, "length"),
    "responses": Found(3, "completed", Usage(11, 4, 8)),
    "responses_cut_by_limit": Found(2, "max_output_tokens", Usage(11, 4, 8)),
    "responses_failed": Found(1, "failed", error="The engine has stopped.", complete=False),
    "messages": Found(3, "max_tokens", Usage(11, 3)),
    "messages_thinking_tools": Found(2, "tool_use", Usage(11, 3)),
    "messages_error": Found(1, None, Usage(11, 0), "The engine is overloaded.", done=False, complete=False),
}
WITH_USAGE_EVENT = (
    "chat_usage",
    "chat_usage_continuous",
    "chat_n2_usage",
    "chat_empty_answer",
    "chat_crlf",
    "completions_usage",
)


def golden(name: str) -> bytes:
    return (GOLDEN / f"{name}.sse").read_bytes()


def endpoint_of(name: str) -> Endpoint:
    return Endpoint(name.split("_", 1)[0])


def scan(endpoint: Endpoint, pieces: list[bytes]) -> Found:
    scanner = StreamScanner(endpoint)
    told = sum(scanner.feed(piece) for piece in pieces)
    before_end = scanner.tokens
    scanner.end()
    assert told == before_end
    return Found(
        scanner.tokens,
        scanner.finish_reason,
        scanner.usage,
        scanner.error.message if scanner.error else None,
        scanner.done,
        scanner.complete,
        scanner.unparsed,
    )


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def test_every_golden_stream_has_an_expectation() -> None:
    assert {path.stem for path in GOLDEN.glob("*.sse")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_stream_read_at_once_is_understood(name: str) -> None:
    assert scan(endpoint_of(name), [golden(name)]) == EXPECTED[name]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_stream_in_one_byte_segments_is_understood_the_same(name: str) -> None:
    data = golden(name)
    assert scan(endpoint_of(name), [data[i : i + 1] for i in range(len(data))]) == EXPECTED[name]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_stream_cut_once_is_understood_the_same(name: str) -> None:
    data = golden(name)
    near_line_ends = {end.start() + by for end in re.finditer(rb"[\r\n]+", data) for by in range(-3, 5)}
    for place in near_line_ends | set(range(0, len(data), 6)):
        assert scan(endpoint_of(name), [data[:place], data[place:]]) == EXPECTED[name], place


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(sorted(EXPECTED)), st.lists(st.integers(0, 5000), max_size=30))
def test_a_stream_cut_at_many_places_is_understood_the_same(name: str, places: list[int]) -> None:
    assert scan(endpoint_of(name), cut(golden(name), places)) == EXPECTED[name]


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(sorted(Endpoint)), st.lists(st.binary(max_size=60), max_size=20))
def test_no_bytes_whatever_make_the_scanner_raise(endpoint: Endpoint, pieces: list[bytes]) -> None:
    found = scan(endpoint, pieces)
    assert found.tokens >= 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "delta", "content", "usage", "error", "type", "response", "message", "finish_reason"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(sorted(Endpoint)), st.lists(JSON, min_size=1, max_size=5))
def test_no_document_whatever_makes_the_scanner_raise(endpoint: Endpoint, documents: list[object]) -> None:
    data = b"".join(b"data: %b\n\n" % json.dumps(document).encode() for document in documents)
    found = scan(endpoint, [data])
    assert found.unparsed <= len(documents)


def test_the_role_chunk_is_not_the_first_token() -> None:
    events = golden("chat").split(b"\n\n")
    scanner = StreamScanner(Endpoint.CHAT)
    assert scanner.feed(events[0] + b"\n\n") == 0
    assert not scanner.prefilled
    assert scanner.feed(events[1] + b"\n\n") == 1
    assert scanner.prefilled


def test_keep_alive_comments_are_no_tokens_at_any_time() -> None:
    scanner = StreamScanner(Endpoint.CHAT)
    scanner.feed(golden("chat").split(b"data: [DONE]")[0].replace(b'"stop"', b"null"))
    before = scanner.tokens
    assert scanner.feed(b": keep-alive\n\n: keep-alive\n\n") == 0
    assert scanner.tokens == before


def test_an_answer_without_any_token_still_ends_its_prefill() -> None:
    scanner = StreamScanner(Endpoint.CHAT)
    scanner.feed(golden("chat_empty_answer"))
    assert scanner.tokens == 0
    assert scanner.prefilled


def test_an_event_is_counted_when_the_read_that_ends_it_comes() -> None:
    data = golden("completions_usage")
    first_end = data.index(b"\n\n") + 2
    scanner = StreamScanner(Endpoint.COMPLETIONS)
    assert scanner.feed(data[: first_end - 1]) == 0
    assert scanner.feed(data[first_end - 1 : first_end]) == 1


def test_text_that_looks_like_an_end_is_only_text() -> None:
    words = ['"finish_reason":"stop"', "[DONE]", '"usage":{', '"error"', "\n\ndata: [DONE]\n\n", "{}", '""']
    events = [{"choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}]} for word in words * 2]
    data = b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events)
    assert scan(Endpoint.CHAT, [data]) == Found(14, None, done=False, complete=False)


def test_a_finish_inside_the_steady_state_is_seen_with_and_without_spaces() -> None:
    for spacing in ((",", ":"), (", ", ": ")):
        scanner = StreamScanner(Endpoint.CHAT)
        for word, finish in (("a", None), ("b", None), ("c", None), ("d", "length")):
            event = {"choices": [{"index": 0, "delta": {"content": word}, "finish_reason": finish}]}
            scanner.feed(b"data: %b\n\n" % json.dumps(event, separators=spacing).encode())
        assert (scanner.tokens, scanner.finish_reason) == (4, "length")


def test_events_with_different_line_ends_in_one_read_are_each_counted() -> None:
    event = golden("completions_usage").split(b"\n\n")[0]
    scanner = StreamScanner(Endpoint.COMPLETIONS)
    assert scanner.feed(event + b"\n\n") == 1
    assert scanner.feed(event + b"\r\n\r\n" + event + b"\r\r" + event + b"\n\n") == 3


def test_an_event_of_many_megabytes_is_not_kept_but_the_stream_goes_on() -> None:
    huge = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * (3 * sse.MAX_EVENT_BYTES) + b'"}}]}\n\n'
    data = huge + golden("chat")
    scanner = StreamScanner(Endpoint.CHAT)
    most = 0
    for start in range(0, len(data), 65536):
        scanner.feed(data[start : start + 65536])
        most = max(most, len(scanner._held))
    assert most <= sse.MAX_EVENT_BYTES + 65536
    assert scanner.unparsed == 1
    assert scanner.tokens == 6
    assert scanner.complete


def test_the_end_of_a_responses_stream_is_seen_even_when_its_event_is_too_long() -> None:
    data = golden("responses").replace(b"Short first then", b"y" * (2 * sse.MAX_EVENT_BYTES))
    scanner = StreamScanner(Endpoint.RESPONSES)
    for start in range(0, len(data), 65536):
        scanner.feed(data[start : start + 65536])
    assert scanner.complete
    assert scanner.unparsed == 2


def test_the_first_error_of_a_stream_is_kept() -> None:
    scanner = StreamScanner(Endpoint.CHAT)
    scanner.feed(b'data: {"error": "first"}\n\ndata: {"error": {"message": "second"}}\n\n')
    assert scanner.error == ErrorSeen("first")


def test_a_byte_order_mark_before_the_first_event_does_no_harm() -> None:
    assert scan(Endpoint.CHAT, [b"\xef\xbb\xbf" + golden("chat_no_done")]) == EXPECTED["chat_no_done"]


def token(text: bytes) -> bytes:
    return b'data: {"id":"c-1","choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n' % text


def framed(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def scan_chunks(pieces: list[bytes]) -> tuple[Found, int]:
    """Read a chat whose pieces are a chunk each, as a relay does; also how many were told by their chunk."""
    scanner, told = StreamScanner(Endpoint.CHAT), 0
    for piece in pieces:
        size = scanner.feed_chunk(framed(piece)) if scanner.steady else 0
        told += size > 0
        assert size in {0, len(piece)}
        if not size:
            scanner.feed(piece)
    found = Found(
        scanner.tokens,
        scanner.finish_reason,
        scanner.usage,
        scanner.error.message if scanner.error else None,
        scanner.done,
        scanner.complete,
        scanner.unparsed,
    )
    return found, told


def test_in_the_steady_state_a_chat_is_told_by_its_chunks() -> None:
    words = [b"Every", b" word", b" is", b" one", b" \xe6\xbc\xa2", b"x" * 300]
    found, told = scan_chunks([token(word) for word in words])
    assert found.tokens == len(words)
    assert told == len(words) - 1  # the first has to be looked at


STRANGE = (
    token(b'a"},"finish_reason":"stop","x":{"y":"b'),
    token(b"one") + token(b"two"),
    token(b"one") + b"data: [DONE]\n\n" + token(b"two"),
    token(b"a\n\ndata: [DONE]\n\ndata: b"),
    token(b"a\r\rdata: [DONE]\r\rdata: b"),
    token(b""),
    token(b"cut")[:-7],
    b": keep-alive\n\n",
    golden("chat_usage"),
)


@pytest.mark.parametrize("strange", STRANGE)
def test_a_chunk_with_anything_beside_one_token_is_looked_at(strange: bytes) -> None:
    pieces = [token(b"a"), token(b"b"), strange]
    found, told = scan_chunks(pieces)
    assert told == 1
    scanner = StreamScanner(Endpoint.CHAT)
    for byte in b"".join(pieces):
        scanner.feed(bytes([byte]))
    assert (found.tokens, found.finish, found.done) == (scanner.tokens, scanner.finish_reason, scanner.done)


@pytest.mark.parametrize("size", [b"5d", b"5b", b"0", b"x", b"005c", b"5C", b"5c;a"])
def test_a_chunk_whose_size_line_is_not_the_plain_one_is_left_to_the_framing(size: bytes) -> None:
    assert len(token(b"next")) == 0x5C
    scanner = StreamScanner(Endpoint.CHAT)
    scanner.feed(token(b"a"))
    assert scanner.steady
    assert scanner.feed_chunk(size + b"\r\n" + token(b"next") + b"\r\n") == 0
    assert scanner.feed_chunk(b"5c\r\n" + token(b"next") + b"\r\n") == 0x5C


TEXTS = st.lists(st.sampled_from([b"a", b'"', b"\\", b"\n", b"\r", b"}", b'"}\n\n', b"data: {", b"\xe6\xbc\xa2"])).map(
    b"".join
)
PIECES = st.one_of(TEXTS.map(token), st.sampled_from(STRANGE), TEXTS.filter(bool))


@settings(deadline=None, max_examples=60)
@given(st.lists(PIECES, max_size=12))
def test_a_chat_is_understood_the_same_by_its_chunks_and_by_its_bytes(pieces: list[bytes]) -> None:
    whole = StreamScanner(Endpoint.CHAT)
    for byte in b"".join([token(b"a"), *pieces]):
        whole.feed(bytes([byte]))
    found, _ = scan_chunks([token(b"a"), *pieces])
    assert (found.tokens, found.finish, found.usage, found.done, found.unparsed) == (
        whole.tokens, whole.finish_reason, whole.usage, whole.done, whole.unparsed,
    )  # fmt: skip


def sift(pieces: list[bytes]) -> bytes:
    remover = UsageRemover()
    return b"".join([*(remover.feed(piece) for piece in pieces), remover.end()])


def without_usage_event(name: str) -> bytes:
    data = golden(name)
    line = b"\r\n" if b"\r" in data else b"\n"
    events = [event + line * 2 for event in data.split(line * 2)[:-1]]
    kept = [event for event in events if b'"choices":[]' not in event]
    assert len(kept) == len(events) - 1
    return b"".join(kept)


@pytest.mark.parametrize("name", WITH_USAGE_EVENT)
def test_exactly_the_usage_event_is_taken_out_wherever_the_stream_is_cut(name: str) -> None:
    data, expected = golden(name), without_usage_event(name)
    for place in range(len(data)):
        assert sift([data[:place], data[place:]]) == expected, place
    assert sift([data[i : i + 1] for i in range(len(data))]) == expected


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(WITH_USAGE_EVENT), st.lists(st.integers(0, 5000), max_size=30))
def test_exactly_the_usage_event_is_taken_out_of_any_segments(name: str, places: list[int]) -> None:
    assert sift(cut(golden(name), places)) == without_usage_event(name)


@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from(sorted(set(EXPECTED) - set(WITH_USAGE_EVENT))), st.lists(st.integers(0, 5000), max_size=30)
)  # fmt: skip
def test_a_stream_without_the_usage_event_passes_unchanged(name: str, places: list[int]) -> None:
    assert sift(cut(golden(name), places)) == golden(name)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.binary(max_size=40), max_size=20))
def test_any_other_bytes_pass_unchanged(pieces: list[bytes]) -> None:
    assert sift(pieces) == b"".join(pieces)


def test_a_whole_event_is_passed_on_by_the_read_that_ends_it() -> None:
    remover = UsageRemover()
    for event in golden("chat").split(b"\n\n")[:-1]:
        whole = event + b"\n\n"
        assert remover.feed(whole[:10]) == b""
        assert remover.feed(whole[10:]) == whole
    assert not remover.removed


def test_only_one_usage_event_is_taken_out_and_nothing_is_held_after_it() -> None:
    data = golden("completions_usage")
    usage = next(event for event in data.split(b"\n\n") if b'"choices":[]' in event) + b"\n\n"
    remover = UsageRemover()
    assert remover.feed(usage + usage[:5]) == usage[:5]
    assert remover.removed
    assert remover.feed(usage[5:]) == usage[5:]


def test_an_event_too_long_to_be_the_usage_event_is_not_held_back() -> None:
    remover = UsageRemover()
    long = b'data: {"usage":1,"choices":[],"x":"' + b"z" * 100_000
    assert len(remover.feed(long)) >= len(long) - 3
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\n'
    rest = remover.feed(b'"}\n\n' + usage) + remover.end()
    assert rest.endswith(b'"}\n\n')
    assert remover.removed


def dechunked(body: bytes) -> bytes:
    data = b""
    while True:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        if length == 0:
            return data
        data += body[:length]
        body = body[length + 2 :]


RECORDED_ENDPOINTS = {"chat": Endpoint.CHAT, "compl": Endpoint.COMPLETIONS, "responses": Endpoint.RESPONSES,
                      "messages": Endpoint.MESSAGES}  # fmt: skip


def recorded_streams(folder: Path) -> dict[str, bytes]:
    found = {}
    for path in sorted(folder.glob("*.resp")):
        head, _, body = path.read_bytes().partition(b"\r\n\r\n")
        if b"text/event-stream" in head:
            found[path.stem] = dechunked(body)
    return found


def last_usage(data: bytes) -> Usage | None:
    """What the stream reports, found by another way than the scanner's."""
    usage = None
    for line in data.splitlines():
        document = json.loads(line[6:]) if line.startswith(b"data: {") else {}
        for holder in (document, document.get("response") or {}, document.get("message") or {}):
            if counts := holder.get("usage"):
                details = counts.get("prompt_tokens_details") or counts.get("input_tokens_details") or {}
                usage = Usage(
                    counts.get("prompt_tokens", counts.get("input_tokens")),
                    counts.get("completion_tokens", counts.get("output_tokens")),
                    details.get("cached_tokens"),
                )
    return usage


@pytest.mark.shared
def test_streams_recorded_from_a_real_engine_are_understood_wherever_they_are_cut(shared: Path) -> None:
    streams = recorded_streams(shared / "fixtures")
    assert len(streams) >= 18
    for name, data in streams.items():
        kind = next((part for part in name.split("_") if part in RECORDED_ENDPOINTS), "chat")
        endpoint = RECORDED_ENDPOINTS[kind]
        whole = scan(endpoint, [data])
        died = name.startswith("death")
        assert (whole.complete, whole.error is not None, whole.done) == (not died, died, True), name
        assert (whole.finish is None) == died, name
        assert whole.usage == last_usage(data), name
        assert whole.unparsed == 0, name
        assert scan(endpoint, [data[i : i + 1] for i in range(len(data))]) == whole, name
        for place in range(0, len(data), 23):
            assert scan(endpoint, [data[:place], data[place:]]) == whole, (name, place)
        expected = b"".join(event + b"\n\n" for event in data.split(b"\n\n")[:-1] if b'"choices":[]' not in event)
        assert sift([data[i : i + 11] for i in range(0, len(data), 11)]) == expected, name


def test_a_delta_without_a_name_teaches_nothing_that_a_cut_line_end_could_be_taken_for() -> None:
    data = b'data:{"type":"content_block_delta","index":0,"delta":{"text":"!"}}\nv\n\r\n}\n\n'
    whole = scan(Endpoint.MESSAGES, [data])
    assert whole.tokens == 1
    assert scan(Endpoint.MESSAGES, [data[i : i + 1] for i in range(len(data))]) == whole
