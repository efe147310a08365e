"""One record is one line, and a bad line is said in one sentence."""

import json
import string
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.wire.trace import SCHEMA, Record, TraceError, decode, encode

SMALL = Record(1790000000.5, "id-1", "chat", None, None, "ok")
TIMES = st.integers(0, 10**12).map(lambda microseconds: microseconds / 1e6)
WORDS = st.text(max_size=10)
STRATEGIES: dict[Any, st.SearchStrategy[Any]] = {
    float: TIMES,
    float | None: st.none() | TIMES,
    int: st.integers(0, 10**9),
    int | None: st.none() | st.integers(0, 10**9),
    str: WORDS,
    str | None: st.none() | WORDS,
    bool: st.booleans(),
    tuple[str, ...]: st.lists(st.text(string.hexdigits, min_size=1), max_size=3).map(tuple),
}
RECORDS = st.builds(Record, **{field.name: STRATEGIES[field.type] for field in fields(Record)})


def line(**changes: Any) -> bytes:
    document = {"schema": SCHEMA, "arrived_s": 1.0, "request_id": "a", "endpoint": "chat", "outcome": "ok"} | changes
    return json.dumps({key: value for key, value in document.items() if value is not None}).encode()


@settings(deadline=None, max_examples=30)
@given(RECORDS)
def test_a_record_survives_its_line(record: Record) -> None:
    written = encode(record)
    assert b"\n" not in written
    assert decode(written) == record
    assert decode(written.decode() + "\n") == record


def test_the_schema_comes_first_and_absent_fields_are_left_out() -> None:
    written = encode(SMALL)
    assert written.startswith(b'{"schema":"lanewise.trace/1","arrived_s":1790000000.5,')
    assert not {"model", "lane", "reason", "text", "hash_ids", "queue_s"} & set(json.loads(written))


def test_no_text_is_written_unless_it_was_set() -> None:
    assert b"text" not in encode(SMALL)
    with_text = Record(1.0, "id-1", "chat", None, None, "ok", text='{"messages":["说"]}')
    assert decode(encode(with_text)).text == '{"messages":["说"]}'


def test_seconds_are_rounded_to_the_microsecond_and_nonsense_is_left_out() -> None:
    odd = Record(1.0, "id-1", "chat", None, None, "ok", queue_s=0.12345678, end_s=float("nan"), first_token_s=1e999)
    assert json.loads(encode(odd))["queue_s"] == 0.123457
    assert not {"end_s", "first_token_s"} & set(json.loads(encode(odd)))


def test_a_string_that_utf8_cannot_hold_still_makes_a_line() -> None:
    written = encode(Record(1.0, "\udc80", "chat", None, None, "ok"))
    assert decode(written).request_id == "\udc80"


def test_fields_of_a_later_writer_are_ignored() -> None:
    assert decode(line(colour="blue")) == decode(line())


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (b"", "trace.jsonl:3: this is no JSON; a trace has one JSON object per line"),
        (b"{", "trace.jsonl:3: this is no JSON; a trace has one JSON object per line"),
        (b"\xff", "trace.jsonl:3: this is no JSON; a trace has one JSON object per line"),
        (b"[1]", "trace.jsonl:3: this is no JSON object; a trace has one JSON object per line"),
        (line(schema=None), "trace.jsonl:3: schema is absent; allowed is 'lanewise.trace/1'"),
        (line(schema="v2"), "trace.jsonl:3: schema is \"v2\"; allowed is 'lanewise.trace/1'"),
        (line(outcome=None), "trace.jsonl:3: outcome is missing; it must be a string"),
        (line(arrived_s="noon"), 'trace.jsonl:3: arrived_s is "noon"; allowed is a number of seconds'),
        (line(arrived_s=True), "trace.jsonl:3: arrived_s is true; allowed is a number of seconds"),
        (line(prompt_tokens=-1), "trace.jsonl:3: prompt_tokens is -1; allowed is a whole number, 0 or more"),
        (line(prompt_tokens=1.5), "trace.jsonl:3: prompt_tokens is 1.5; allowed is a whole number, 0 or more"),
        (line(stream=1), "trace.jsonl:3: stream is 1; allowed is true or false"),
        (line(hash_ids=["a", 1]), 'trace.jsonl:3: hash_ids is ["a", 1]; allowed is a list of strings'),
    ],
)  # fmt: skip
def test_a_bad_line_is_said_with_file_line_field_and_what_is_allowed(bad: bytes, sentence: str) -> None:
    with pytest.raises(TraceError) as caught:
        decode(bad, "trace.jsonl:3")
    assert str(caught.value) == sentence


def test_a_long_bad_value_is_cut_in_the_sentence() -> None:
    with pytest.raises(TraceError) as caught:
        decode(line(stream="x" * 1000))
    assert len(str(caught.value)) < 120
