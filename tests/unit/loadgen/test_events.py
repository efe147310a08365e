import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.events import EventReader


def chat(delta, finish=None, **more):
    return frame({"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more})


def frame(document, separators=(",", ":")):
    return b"data: " + json.dumps(document, separators=separators).encode() + b"\n\n"


def text(value, finish=None):
    return frame({"id": "c", "choices": [{"index": 0, "text": value, "finish_reason": finish}]})


USAGE = frame({"choices": [], "usage": {"prompt_tokens": 64, "completion_tokens": 7, "total_tokens": 71}})
DONE = b"data: [DONE]\n\n"


def read(*pieces):
    reader = EventReader()
    for at, piece in enumerate(pieces, 1):
        reader.feed(piece, at)
    return reader


def test_neither_a_role_chunk_nor_an_empty_chunk_stops_the_clock():
    reader = read(chat({"role": "assistant", "content": ""}), chat({"content": ""}), chat({"content": " the"}))
    assert reader.first_ns == 3
    assert "".join(reader.kinds) == "oec"
    assert reader.chunks == 1


@pytest.mark.parametrize(("key", "letter"), [("reasoning", "r"), ("reasoning_content", "R")])
def test_reasoning_is_a_first_token_but_not_a_first_answer_token(key, letter):
    reader = read(chat({key: "hm"}), chat({"content": "yes"}))
    assert (reader.first_ns, reader.first_content_ns) == (1, 2)
    assert "".join(reader.kinds) == letter + "c"


def test_a_tool_call_is_an_answer_token():
    reader = read(chat({"content": None, "tool_calls": [{"index": 0}]}))
    assert (reader.first_ns, reader.first_content_ns, reader.chunks) == (1, 1, 1)


def test_usage_done_and_comments_never_move_the_last_token():
    reader = read(chat({"content": "a"}, "length"), b": keep-alive\n\n", USAGE, DONE)
    assert reader.last_ns == 1
    assert (reader.completion_tokens, reader.prompt_tokens, reader.finish, reader.done) == (7, 64, "length", True)


def test_completion_chunks_without_text_are_no_tokens():
    reader = read(text(""), text("a"), text("b", "length"))
    assert "".join(reader.kinds) == "ecc"
    assert reader.first_ns == 2


def test_events_that_look_like_the_one_before_take_the_short_way_and_count_the_same():
    reader = read(*[text(word) for word in ("one", "two", 'quo"te', "", "back\\slash", "ünï")], text("x", "stop"))
    assert "".join(reader.kinds) == "cccecc" + "c"
    assert reader.finish == "stop"


def test_several_events_in_one_read_have_one_time():
    reader = read(text("a") + text("b"), text("c"))
    assert reader.times_ns == [1, 1, 2]


def test_usage_on_every_chunk_gives_the_tokens_so_far():
    reader = read(*(chat({"content": "x"}, usage={"completion_tokens": n}) for n in (1, 4, 5)))
    assert reader.counts == [1, 4, 5]


def test_an_error_inside_the_stream_is_kept_with_its_code():
    reader = read(text("a"), frame({"error": {"message": "EngineCore died", "code": 500}}))
    assert (reader.error, reader.error_code) == ("EngineCore died", "500")


@pytest.mark.parametrize("bad", [b"data: {\n\n", b"data: 1\n\n", b"data: \xff\xfe\n\n"])
def test_bad_events_are_an_error_and_never_an_exception(bad):
    assert read(bad).error is not None


def test_spaces_in_the_json_and_crlf_line_ends_are_understood():
    spaced = frame({"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": None}]}, (", ", ": "))
    reader = read(spaced.replace(b"\n\n", b"\r\n\r\n"), spaced, spaced)
    assert (reader.chunks, reader.error) == (3, None)


STREAM = (
    chat({"role": "assistant", "content": ""})
    + chat({"reasoning": "\n\n"})
    + chat({"content": 'a"b'})
    + chat({"content": "c"})
    + chat({"content": "d"})
    + chat({"content": "e"}, "length")
    + USAGE
    + DONE
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_where_the_network_cuts_the_stream_changes_nothing(cuts):
    borders = [0, *sorted(cuts), len(STREAM)]
    reader = EventReader()
    for low, high in pairwise(borders):
        reader.feed(STREAM[low:high], 1)
    assert "".join(reader.kinds) == "orcccc"
    assert (reader.chunks, reader.completion_tokens, reader.finish, reader.error) == (5, 7, "length", None)


FUSED = text("x").replace(b'"text":"x",', b'"text":",')
"""No JSON: what comes before a text and what comes after it share a quote."""
ODD = [text("a"), text(""), text('"'), text("\\"), chat({"content": "b"}), USAGE, b": note\n\n", FUSED]
events_drawn = st.lists(st.text(max_size=4).map(text) | st.sampled_from(ODD), max_size=12)


@given(events_drawn)
def test_events_that_come_together_are_read_as_they_are_one_by_one(events):
    together, singly = read(b"".join(events)), EventReader()
    for event in events:
        singly.feed(event[:-1], 1)
        singly.feed(event[-1:], 1)
    for what in ("kinds", "chunks", "times_ns", "first_ns", "last_ns", "completion_tokens", "error"):
        assert getattr(together, what) == getattr(singly, what), what


@given(st.binary(max_size=300))
def test_any_bytes_are_survived(junk):
    reader = read(text("a"), junk, text("b"))
    assert len(reader.times_ns) == len(reader.kinds)


@pytest.mark.shared
@pytest.mark.parametrize("name", ["compl_stream_usage", "chat_stream_usage"])
def test_a_recorded_stream_of_a_real_engine_is_read(shared, name):
    raw = (shared / "fixtures" / f"{name}.resp").read_bytes().partition(b"\r\n\r\n")[2]
    body = b"".join(raw.split(b"\r\n")[1::2])
    reader = read(body)
    assert reader.error is None
    assert reader.done
    assert reader.completion_tokens is not None
    assert 0 < reader.chunks <= reader.completion_tokens
