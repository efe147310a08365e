import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.failure import UsageError
from loadgen.tracefile import Reading, Skipped, open_trace, sharegpt
from loadgen.tracefile.row import LineError

TALK = {
    "id": "1",
    "conversations": [
        {"from": "human", "value": "What is two and two?"},
        {"from": "gpt", "value": "Four."},
        {"from": "human", "value": "And three?"},
        {"from": "gpt", "value": "Seven, if I may add it to the four from before."},
        {"from": "human", "value": "Thanks"},
    ],
}


def written(tmp_path, text):
    path = tmp_path / "talks.json"
    path.write_text(text)
    return path


@pytest.mark.parametrize("text", [json.dumps([TALK]), json.dumps([TALK], indent=2), json.dumps(TALK) + "\n"])
def test_every_answered_turn_is_a_request_with_all_before_it(tmp_path, text):
    path = written(tmp_path, text)
    assert open_trace(path).format.name == "sharegpt"
    first, second = open_trace(path, reading=Reading(bodies="chat")).rows()
    assert [message["content"] for message in json.loads(b"{" + second.body + b"}")["messages"]] == [
        "What is two and two?",
        "Four.",
        "And three?",
    ]
    assert (first.parent, second.parent, second.turn) == (-1, first.chat, 2)
    assert first.prompt_tokens < second.prompt_tokens
    assert first.output_tokens < second.output_tokens


def test_a_bad_conversation_is_named_by_its_place_and_can_be_skipped(tmp_path):
    path = written(tmp_path, json.dumps([TALK, {"conversations": [{"from": "cat", "value": "?"}]}, TALK]))
    with pytest.raises(UsageError, match="conversation 2 has a message"):
        list(open_trace(path).rows())
    skipped = Skipped()
    assert len(list(open_trace(path, skipped=skipped).rows())) == 4
    assert skipped.count == 1


def test_an_array_that_ends_too_early_is_refused(tmp_path):
    path = written(tmp_path, json.dumps([TALK])[:-1])
    with pytest.raises(UsageError, match="is not JSON"):
        list(open_trace(path).rows())


@settings(max_examples=30)
@given(
    st.lists(st.dictionaries(st.text(), st.text(alphabet=st.characters(codec="utf-8")) | st.integers()), max_size=8),
    st.integers(1, 40),
    st.sampled_from([None, 2]),
)
def test_an_array_is_read_the_same_in_pieces_of_any_size(documents, size, indent):
    whole = sharegpt.CHUNK_BYTES
    sharegpt.CHUNK_BYTES = size
    try:
        raw = io.BytesIO(json.dumps(documents, indent=indent, ensure_ascii=False).encode())
        assert list(sharegpt.conversations(raw)) == documents
    finally:
        sharegpt.CHUNK_BYTES = whole


def test_bytes_that_are_no_text_are_refused():
    with pytest.raises(LineError, match="UTF-8"):
        list(sharegpt.conversations(io.BytesIO(b'[{"a": "\xff"}]')))


def test_chinese_has_more_tokens_a_byte_apart_from_english():
    assert sharegpt.tokens_of("hello there, how are you") == pytest.approx(6, abs=2)
    assert sharegpt.tokens_of("你好吗今天天气") == pytest.approx(5, abs=1)
