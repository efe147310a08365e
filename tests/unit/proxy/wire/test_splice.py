"""Walking the members of an object in its bytes."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.wire.splice import Edit, NotAnObjectError, apply, insertion, may_hold, members

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
    | st.sampled_from(["\\", '"', "a" * 300, '\\"' * 150, "}]"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@settings(deadline=None, max_examples=40)
@given(st.dictionaries(st.text(max_size=6), JSON, max_size=5), st.sampled_from([None, 0, 3]), st.booleans())
def test_the_members_found_are_those_of_a_parser(
    document: dict[str, Any], indent: int | None, ascii_only: bool
) -> None:
    body = json.dumps(document, indent=indent, ensure_ascii=ascii_only).encode()
    found = {member.key: json.loads(body[member.start : member.end]) for member in members(body)}
    assert found == document


def test_repeated_keys_are_all_found_in_order() -> None:
    body = b'{"a":1,"b":[2],"a":{"a":3}}'
    assert [(member.key, body[member.start : member.end]) for member in members(body)] == [
        ("a", b"1"),
        ("b", b"[2]"),
        ("a", b'{"a":3}'),
    ]


def test_a_long_string_of_escapes_is_passed_over() -> None:
    body = json.dumps({"a": '\\"' * 50_000, "b": [['"]}' * 100, 1], {"c": "\\"}], "d": 4}).encode()
    assert [member.key for member in members(body)] == ["a", "b", "d"]


@pytest.mark.parametrize(
    "body", [b"", b" ", b"[1]", b"{", b"{1:2}", b'{"a" 1}', b'{"a":}', b'{"a":1 "b":2}', b'{"a":"x']
)
def test_what_is_no_object_is_said(body: bytes) -> None:
    with pytest.raises(NotAnObjectError):
        list(members(body))


def test_edits_are_applied_in_any_order() -> None:
    assert apply(b"0123456789", [Edit(8, 9, b"X"), Edit(0, 0, b"<"), Edit(2, 5, b"")]) == b"<01567X9"
    body = b"same"
    assert apply(body, []) is body


def test_an_insertion_goes_first_and_knows_an_empty_object() -> None:
    body = b'{"a":{ }, "b":1}'
    assert apply(body, [insertion(body, 0, "k", b"2")]) == b'{"k":2,"a":{ }, "b":1}'
    assert apply(body, [insertion(body, 5, "k", b"2")]) == b'{"a":{"k":2 }, "b":1}'
    with pytest.raises(NotAnObjectError):
        insertion(body, 1, "k", b"2")


def test_a_body_that_cannot_hold_a_key_is_known_without_walking() -> None:
    assert not may_hold(b'{"max":1,"text":"max_tokens"}', "max_token")
    assert may_hold(b'{"max_tokens":1}', "x", "max_tokens")
    assert may_hold(b'{"max\\u005ftokens":1}', "max_tokens")
    assert may_hold(b'{"text":"\\n","max\\u005ftokens":1,"stop":"\\t"}', "max_tokens")
    assert not may_hold(b'{"text":"\\n u","stop":"\\t"}', "max_tokens")
