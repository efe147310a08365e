"""Edits of a body: the document changes as asked, every other byte stays."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.wire.caps import CAP_KEYS, ask_for_usage, set_output_cap
from proxy.wire.facts import Endpoint, OutputFields

GENERATING = sorted(CAP_KEYS)
NOTHING = OutputFields()


def test_a_body_known_to_hold_no_stream_options_is_edited_without_a_search() -> None:
    body = b'{"stream":true,"prompt":"\\u00e9 \\"stream_options\\""}'
    assert ask_for_usage(body, absent=True) == ask_for_usage(body) != body


def test_a_higher_cap_is_lowered_and_all_else_stays() -> None:
    body = b'{ "max_tokens" : 32000,\t"messages":[{"role":"user","content":"\\u00e9\\"max_tokens\\":1"}]}\n'
    lowered = set_output_cap(body, Endpoint.CHAT, NOTHING, 4096)
    assert lowered == body.replace(b"32000", b"4096")


def test_a_lower_cap_leaves_the_very_same_bytes() -> None:
    body = b'{"max_tokens":10,"prompt":"x"}'
    assert set_output_cap(body, Endpoint.COMPLETIONS, NOTHING, 4096) is body


def test_both_cap_fields_of_a_chat_are_lowered() -> None:
    body = b'{"max_completion_tokens":9000,"max_tokens":8000}'
    assert set_output_cap(body, Endpoint.CHAT, NOTHING, 100) == b'{"max_completion_tokens":100,"max_tokens":100}'


@pytest.mark.parametrize(
    ("endpoint", "key"),
    [
        (Endpoint.CHAT, "max_tokens"),
        (Endpoint.COMPLETIONS, "max_tokens"),
        (Endpoint.RESPONSES, "max_output_tokens"),
        (Endpoint.MESSAGES, "max_tokens"),
    ],
)
def test_an_absent_cap_is_inserted_under_the_name_of_the_dialect(endpoint: Endpoint, key: str) -> None:
    assert set_output_cap(b' { "a":1}', endpoint, NOTHING, 7) == b' {"%b":7, "a":1}' % key.encode()
    assert set_output_cap(b"{ }", endpoint, NOTHING, 7) == b'{"%b":7 }' % key.encode()


def test_null_means_no_limit_and_is_replaced() -> None:
    assert set_output_cap(b'{"max_tokens":null}', Endpoint.COMPLETIONS, NOTHING, 7) == b'{"max_tokens":7}'


def test_a_cap_in_digits_is_one_and_a_cap_of_another_type_is_for_the_engine_to_answer() -> None:
    assert set_output_cap(b'{"max_tokens":"9000"}', Endpoint.CHAT, NOTHING, 7) == b'{"max_tokens":7}'
    assert set_output_cap(b'{"max_tokens":1e9}', Endpoint.CHAT, NOTHING, 7) == b'{"max_tokens":7}'
    for wrong in (b"true", b'"many"', b"[900]", b'{"a":900}', b"-1", b"0"):
        body = b'{"max_tokens":%b}' % wrong
        assert set_output_cap(body, Endpoint.CHAT, NOTHING, 7) == body


def test_min_tokens_and_thinking_budgets_follow_the_cap() -> None:
    body = b'{"max_tokens":5000,"min_tokens":300,"thinking_token_budget":4000,"thinking":{"type":"enabled"}}'
    fields = OutputFields(cap=5000, min_tokens=300, thinking_budget=4000)
    assert json.loads(set_output_cap(body, Endpoint.CHAT, fields, 100)) == {
        "max_tokens": 100,
        "min_tokens": 100,
        "thinking_token_budget": 99,
        "thinking": {"type": "enabled"},
    }


def test_a_nested_thinking_budget_stays_below_the_cap() -> None:
    body = b'{"thinking":{"type":"enabled", "budget_tokens": 4096},"max_tokens":8192}'
    fields = OutputFields(cap=8192, thinking_budget=4096)
    expected = b'{"thinking":{"type":"enabled", "budget_tokens": 1023},"max_tokens":1024}'
    assert set_output_cap(body, Endpoint.MESSAGES, fields, 1024) == expected


def test_nothing_goes_below_one() -> None:
    body = b'{"max_tokens":5,"min_tokens":3,"thinking":{"budget_tokens":4}}'
    fields = OutputFields(cap=5, min_tokens=3, thinking_budget=4)
    for cap in (1, 0, -5):
        lowered = json.loads(set_output_cap(body, Endpoint.MESSAGES, fields, cap))
        assert lowered == {"max_tokens": 1, "min_tokens": 1, "thinking": {"budget_tokens": 1}}


def test_companions_follow_also_when_the_cap_was_absent() -> None:
    fields = OutputFields(min_tokens=50)
    assert set_output_cap(b'{"min_tokens":50}', Endpoint.CHAT, fields, 9) == b'{"max_tokens":9,"min_tokens":9}'


def test_every_occurrence_of_a_repeated_key_is_edited() -> None:
    body = b'{"max_tokens":900,"max_tokens":800,"max\\u005ftokens":700}'
    assert set_output_cap(body, Endpoint.CHAT, NOTHING, 9) == b'{"max_tokens":9,"max_tokens":9,"max\\u005ftokens":9}'


def test_keys_inside_other_values_are_not_touched() -> None:
    body = b'{"metadata":{"max_tokens":900,"min_tokens":900},"tools":[{"max_tokens":900}],"max_tokens":901}'
    assert set_output_cap(body, Endpoint.CHAT, NOTHING, 9) == body.replace(b"901", b"9")


def test_endpoints_without_an_output_cap_are_left_alone() -> None:
    body = b'{"max_tokens":900}'
    assert set_output_cap(body, Endpoint.EMBEDDINGS, NOTHING, 9) is body
    assert set_output_cap(body, Endpoint.UTILITY, NOTHING, 9) is body


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"a"', b'{"a":', b'{"a":"b', b'{"a":[1', b"nonsense", b'{"a":1]'])
def test_what_is_no_object_comes_back_as_it_was(body: bytes) -> None:
    assert set_output_cap(body, Endpoint.CHAT, OutputFields(min_tokens=5), 9) == body
    if not body.startswith(b"{"):
        assert ask_for_usage(body) == body


def test_asking_for_usage_inserts_edits_or_replaces() -> None:
    asked = b'{"stream_options":{"include_usage":true}'
    assert ask_for_usage(b'{"stream":true}') == asked + b',"stream":true}'
    assert ask_for_usage(b"{}") == asked + b"}"
    assert ask_for_usage(b'{"stream_options":null}') == asked + b"}"
    assert ask_for_usage(b'{"stream_options":{}}') == asked + b"}"
    assert ask_for_usage(b'{"stream_options":{ "include_usage": false }}') == (
        b'{"stream_options":{ "include_usage": true }}'
    )
    assert ask_for_usage(b'{"stream_options":{"x":[1]}}') == b'{"stream_options":{"include_usage":true,"x":[1]}}'


def test_stream_options_of_a_wrong_type_are_for_the_engine_to_answer() -> None:
    body = b'{"stream_options":"yes"}'
    assert ask_for_usage(body) == body


def test_a_value_that_mentions_stream_options_does_not_hide_that_they_are_absent() -> None:
    body = b'{"prompt":["stream_options","\\"stream_options\\":1"]}'
    assert json.loads(ask_for_usage(body))["stream_options"] == {"include_usage": True}


# Property: a body is rendered from pieces with odd white space and escapes, once as it is and once as it should become.

SPACE = st.text(alphabet=" \t\r\n", max_size=2)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**25) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6) | st.sampled_from(["\\", '"', "{", "]", "max_tokens", '\\"', "é😀"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
KEYS = st.sampled_from(
    ["max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens", "thinking_token_budget", "model", 'x"y']
)


@dataclass(frozen=True)
class Piece:
    key: str
    value: Any
    before: bytes
    between: bytes
    after: bytes


def escaped(key: str, how: str) -> bytes:
    plain = json.dumps(key).encode()
    if how == "plain":
        return plain
    return b'"' + b"".join(b"\\u%04x" % ord(character) for character in key) + b'"'


@st.composite
def pieces(draw: st.DrawFn) -> list[Piece]:
    found = []
    for _ in range(draw(st.integers(0, 5))):
        key = draw(KEYS)
        value = draw(st.integers(0, 5000) | st.none() | PLAIN)
        left, colon, right, comma = (draw(SPACE).encode() for _ in range(4))
        name = escaped(key, draw(st.sampled_from(["plain", "escapes"])))
        found.append(Piece(key, value, left + name + colon + b":", right, comma))
    return found


def rendered(found: list[Piece], values: list[bytes], first: bytes) -> bytes:
    members = b",".join(
        piece.before + piece.between + value + piece.after for piece, value in zip(found, values, strict=True)
    )
    return b"{" + first + (b"," if first and members.strip() else b"") + members + b"}"


def lowered(endpoint: Endpoint, key: str, value: Any, cap: int) -> Any:
    number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    if key in CAP_KEYS[endpoint] and (value is None or (is_number and number > cap)):
        return cap
    limit = {"min_tokens": cap, "thinking_token_budget": max(1, cap - 1)}.get(key)
    return limit if limit is not None and is_number and number > limit else value


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(GENERATING), pieces(), st.integers(1, 6000), st.booleans())
def test_the_cap_is_the_only_thing_that_changes(
    endpoint: Endpoint, found: list[Piece], cap: int, ascii_only: bool
) -> None:
    def dump(value: Any) -> bytes:
        return json.dumps(value, ensure_ascii=ascii_only).encode()

    before = [dump(piece.value) for piece in found]
    after = [dump(lowered(endpoint, piece.key, piece.value, cap)) for piece in found]
    present = any(piece.key in CAP_KEYS[endpoint] for piece in found)
    first = b"" if present else b'"%b":%d' % (CAP_KEYS[endpoint][-1].encode(), cap)
    fields = OutputFields(min_tokens=1, thinking_budget=1)
    result = set_output_cap(rendered(found, before, b""), endpoint, fields, cap)
    assert result == rendered(found, after, first)
    assert isinstance(json.loads(result), dict)


@settings(deadline=None, max_examples=30)
@given(st.dictionaries(st.text(max_size=4) | st.just("stream_options"), PLAIN, max_size=4), st.booleans())
def test_asking_for_usage_changes_the_document_only_there(document: dict[str, Any], indented: bool) -> None:
    options = document.get("stream_options")
    body = json.dumps(document, indent=1 if indented else None).encode()
    result = json.loads(ask_for_usage(body))
    if options is None or isinstance(options, dict):
        assert result == document | {"stream_options": (options or {}) | {"include_usage": True}}
    else:
        assert result == document
