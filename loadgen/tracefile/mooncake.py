"""Mooncake's JSONL: timestamp (milliseconds from 0), input_length, output_length, hash_ids of 512-token blocks."""

import math
from typing import Any

import orjson

from loadgen.tracefile.row import LineError, Row

BLOCK_TOKENS = 512
TIME_UNIT = "milliseconds from the start"
KEYS = frozenset({"timestamp", "input_length", "output_length", "hash_ids"})


def parse(line: str, number: int) -> Row:
    """Read one line.

    Raises:
        LineError: a key is missing or of the wrong type, or the block ids do not cover the prompt exactly.
    """
    try:
        document = orjson.loads(line)
    except ValueError as error:
        raise LineError(f"is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise LineError("is not a JSON object")
    prompt, output = _count(document, "input_length"), _count(document, "output_length")
    return Row(number, _time_ns(document), prompt, output, _blocks(document, prompt), BLOCK_TOKENS)


def _time_ns(document: dict[str, Any]) -> int:
    value = document.get("timestamp")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise LineError(f"timestamp is {value!r}; it must be milliseconds from 0")
    return round(value * 1_000_000)


def _count(document: dict[str, Any], key: str) -> int:
    if key not in document:
        raise LineError(f"{key} is missing; it must be a whole number")
    value = document[key]
    if isinstance(value, bool) or not isinstance(value, int):
        raise LineError(f"{key} is {value!r}; it must be a whole number")
    return value


def _blocks(document: dict[str, Any], prompt: int) -> tuple[int, ...]:
    ids = document.get("hash_ids")
    if not isinstance(ids, list) or not all(type(block) is int and 0 <= block < 1 << 63 for block in ids):
        raise LineError("hash_ids is not a list of whole numbers from 0")
    if len(ids) != -(-prompt // BLOCK_TOKENS):
        wanted = -(-prompt // BLOCK_TOKENS)
        raise LineError(f"has {len(ids)} hash_ids, but input_length {prompt} is {wanted} blocks of {BLOCK_TOKENS}")
    return tuple(ids)
