"""Finding the members of a JSON object in its bytes, and replacing values without touching any other byte."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

_SPACE: Final = re.compile(rb"[ \t\n\r]*")
# Possessive groups match wrongly before Python 3.11.5 (Debian 12 has 3.11.2); possessive classes do not.
_REST_OF_STRING: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*"', re.DOTALL)
_SCALAR: Final = re.compile(rb"[^,\]}\s]+")
# Up to the next bracket or long string; short plain strings are passed over here, which schemas consist of.
_TO_BRACKET: Final = re.compile(rb'(?:[^"{}\[\]]++|"[^"\\]{0,200}+")*')
_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")
_OPEN: Final = frozenset(b"{[")


class NotAnObjectError(ValueError):
    """The bytes are no JSON object at that place."""


@dataclass(frozen=True, slots=True)
class Member:
    """One `"key": value` of an object, by the place of its value."""

    key: str
    start: int
    """First byte of the value."""
    end: int
    """One past its last byte."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Bytes `start` to `end` become `new`."""

    start: int
    end: int
    new: bytes


def members(body: bytes, at: int = 0) -> Iterator[Member]:
    """Walk the members of one object in order, duplicates included, without decoding their values.

    Args:
        body: a document that a JSON parser accepted.
        at: where the object begins; white space may come first.

    Raises:
        NotAnObjectError: there is no object, or it is broken.
    """
    position = _expect(body, at, b"{")
    if body[position : position + 1] == b"}":
        return
    while True:
        if body[position : position + 1] != b'"':
            raise NotAnObjectError(f"no key at byte {position}")
        key_end = _string_end(body, position)
        start = _expect(body, key_end, b":")
        end = _value_end(body, start)
        yield Member(_key(body[position:key_end]), start, end)
        position = _skip(body, end)
        if body[position : position + 1] == b"}":
            return
        position = _expect(body, position, b",")


def insertion(body: bytes, at: int, key: str, value: bytes) -> Edit:
    """Return the edit that makes a member the first of the object that begins at `at`.

    Raises:
        NotAnObjectError: there is no object.
    """
    opening = _skip(body, at)
    inside = _expect(body, opening, b"{")
    comma = b"" if body[inside : inside + 1] == b"}" else b","
    return Edit(opening + 1, opening + 1, b"%b:%b%b" % (json.dumps(key).encode(), value, comma))


def apply(body: bytes, edits: Iterable[Edit]) -> bytes:
    """Return the body with edits applied, which may come in any order and do not overlap."""
    pieces: list[bytes] = []
    position = 0
    for edit in sorted(edits, key=lambda edit: edit.start):
        pieces += (body[position : edit.start], edit.new)
        position = edit.end
    if not pieces:
        return body
    pieces.append(body[position:])
    return b"".join(pieces)


def may_hold(body: bytes, *keys: str) -> bool:
    """Return False when none of the keys occurs anywhere; fast, so that most bodies are not walked at all."""
    if any(b'"%b"' % key.encode() in body for key in keys):
        return True
    escape = body.find(b"\\")  # finding one byte is ten times as fast as finding two: an image has none
    return escape >= 0 and body.find(b"\\u", escape, body.rfind(b"\\") + 2) >= 0


def _value_end(body: bytes, start: int) -> int:
    first = body[start : start + 1]
    if first == b'"':
        return _string_end(body, start)
    if first in {b"{", b"["}:
        return _container_end(body, start)
    scalar = _SCALAR.match(body, start)
    if scalar is None:
        raise NotAnObjectError(f"no value at byte {start}")
    return scalar.end()


def _string_end(body: bytes, start: int) -> int:
    quote = body.find(b'"', start + 1)
    if quote > 0 and body[quote - 1] != _BACKSLASH:
        return quote + 1
    rest = _REST_OF_STRING.match(body, start + 1)
    if rest is None:
        raise NotAnObjectError(f"the string at byte {start} has no end")
    return rest.end()


def _container_end(body: bytes, start: int) -> int:
    if end := _flat_array_end(body, start):
        return end
    depth = 0
    position = start
    while position < len(body):
        byte = body[position]
        if byte == _QUOTE:
            position = _string_end(body, position)
        else:
            depth += 1 if byte in _OPEN else -1
            position += 1
            if depth == 0:
                return position
        skipped = _TO_BRACKET.match(body, position)
        position = skipped.end() if skipped else position
    raise NotAnObjectError(f"the value at byte {start} has no end")


def _flat_array_end(body: bytes, start: int) -> int:
    """Return the end of an array of numbers, such as a million token ids; 0 for anything else."""
    close = body.find(b"]", start) if body[start : start + 1] == b"[" else -1
    plain = close > 0 and not any(body.find(sign, start + 1, close) >= 0 for sign in (b'"', b"[", b"{"))
    return close + 1 if plain else 0


def _expect(body: bytes, position: int, byte: bytes) -> int:
    position = _skip(body, position)
    if body[position : position + 1] != byte:
        raise NotAnObjectError(f"no {byte.decode()} at byte {position}")
    return _skip(body, position + 1)


def _skip(body: bytes, position: int) -> int:
    space = _SPACE.match(body, position)
    return space.end() if space else position


def _key(quoted: bytes) -> str:
    if b"\\" not in quoted:
        return quoted[1:-1].decode("utf-8", "replace")
    try:
        return str(json.loads(quoted))
    except ValueError:
        return ""
