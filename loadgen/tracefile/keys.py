"""Values of a JSON object that is one line of a trace, checked one by one."""

import math
from collections.abc import Mapping
from typing import Any

import orjson

from loadgen.tracefile.row import LineError

MOST_ID = 1 << 63


def document_of(line: str) -> dict[str, Any]:
    """Return the object that a line is.

    Raises:
        LineError: it is no JSON object.
    """
    try:
        document = orjson.loads(line)
    except ValueError as error:
        raise LineError(f"is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise LineError("is not a JSON object")
    return document


def count(document: Mapping[str, Any], key: str) -> int:
    """Return a whole number.

    Raises:
        LineError: the key is missing or holds something else.
    """
    if key not in document:
        raise LineError(f"{key} is missing; it must be a whole number")
    value = document[key]
    if isinstance(value, bool) or not isinstance(value, int):
        raise LineError(f"{key} is {value!r}; it must be a whole number")
    return value


def time_ns(document: Mapping[str, Any], unit_ns: int, words: str) -> int:
    """Return `timestamp` in nanoseconds.

    Args:
        document: the object.
        unit_ns: nanoseconds in one of its units.
        words: what it must be, for the sentence.

    Raises:
        LineError: it is missing, negative or no finite number.
    """
    value = document.get("timestamp")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise LineError(f"timestamp is {value!r}; it must be {words}")
    return round(value * unit_ns)


def block_ids(document: Mapping[str, Any], prompt: int, block_tokens: int) -> tuple[int, ...]:
    """Return `hash_ids`, of which there must be exactly one for each block of the prompt.

    Raises:
        LineError: they are no list of whole numbers, or too many, or too few.
    """
    ids = document.get("hash_ids")
    if not isinstance(ids, list) or not all(type(block) is int and 0 <= block < MOST_ID for block in ids):
        raise LineError("hash_ids is not a list of whole numbers from 0")
    wanted = -(-prompt // block_tokens)
    if len(ids) != wanted:
        raise LineError(f"has {len(ids)} hash_ids, but input_length {prompt} is {wanted} blocks of {block_tokens}")
    return tuple(ids)
