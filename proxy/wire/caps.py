"""Edits of a request body that keep every other byte: a lower output cap, and asking for the usage event."""

import json
import math
from collections.abc import Iterator
from typing import Final

from proxy.wire.facts import Endpoint, OutputFields
from proxy.wire.splice import Edit, NotAnObjectError, apply, insertion, may_hold, members

CAP_KEYS: Final = {
    Endpoint.CHAT: ("max_completion_tokens", "max_tokens"),
    Endpoint.COMPLETIONS: ("max_tokens",),
    Endpoint.RESPONSES: ("max_output_tokens",),
    Endpoint.MESSAGES: ("max_tokens",),
}
"""Keys that carry the output cap, the one that wins first; the last is the one that is inserted."""
_MAX_DIGITS: Final = 300


def set_output_cap(body: bytes, endpoint: Endpoint, fields: OutputFields, new_cap: int) -> bytes:
    """Lower the output cap of a request.

    Every cap field that is present and higher (or null: no limit) is lowered, at each of its occurrences; where the
    dialect's field is absent it is inserted. `min_tokens` is lowered to the cap, thinking budgets to one below it,
    since engines refuse what is higher. Nothing is ever raised, nothing goes below 1, and a value of the wrong type
    stays for the engine to answer.

    Args:
        body: the document as it came, accepted by a JSON parser.
        endpoint: whose dialect; one without an output cap changes nothing.
        fields: what the body asks for (`Facts.output`).
        new_cap: tokens, at least 1.

    Returns:
        The edited bytes; the very same object when nothing had to change or the body is no JSON object.
    """
    keys = CAP_KEYS.get(endpoint)
    if keys is None:
        return body
    new_cap = max(1, new_cap)
    try:
        return apply(body, _cap_edits(body, keys, fields, new_cap))
    except NotAnObjectError:
        return body


def ask_for_usage(body: bytes, *, absent: bool = False) -> bytes:
    """Set `stream_options.include_usage` to true.

    Args:
        body: the document as it came, accepted by a JSON parser.
        absent: it is known to hold no `stream_options`, so it is not searched.

    Returns:
        The edited bytes; unchanged when `stream_options` is neither absent, null nor an object.
    """
    try:
        return apply(body, _usage_edits(body, absent=absent))
    except NotAnObjectError:
        return body


def _cap_edits(body: bytes, keys: tuple[str, ...], fields: OutputFields, new_cap: int) -> Iterator[Edit]:
    lower = dict.fromkeys(keys, new_cap)
    companions = {
        "min_tokens": new_cap,
        "thinking_token_budget": max(1, new_cap - 1),
    }
    present = False
    nested = fields.thinking_budget is not None
    if nested or fields.min_tokens is not None or may_hold(body, *keys):
        for member in members(body):
            raw = body[member.start : member.end]
            present = present or member.key in lower
            if member.key in lower:
                yield from _lowered(raw, member.start, lower[member.key], null_is_unlimited=True)
            elif member.key in companions:
                yield from _lowered(raw, member.start, companions[member.key])
            elif member.key == "thinking" and raw[:1] == b"{":
                yield from _budget_edits(body, member.start, max(1, new_cap - 1))
    if not present:
        yield insertion(body, 0, keys[-1], b"%d" % new_cap)


def _budget_edits(body: bytes, at: int, limit: int) -> Iterator[Edit]:
    for member in members(body, at):
        if member.key == "budget_tokens":
            yield from _lowered(body[member.start : member.end], member.start, limit)


def _lowered(raw: bytes, start: int, limit: int, *, null_is_unlimited: bool = False) -> Iterator[Edit]:
    value = _number(raw)
    if (null_is_unlimited and raw == b"null") or (value is not None and value > limit):
        yield Edit(start, start + len(raw), b"%d" % limit)


def _number(raw: bytes) -> float | None:
    """Read a number, or a string of digits, which engines take for one."""
    try:
        value = json.loads(raw.strip(b'"')) if len(raw) <= _MAX_DIGITS else None
    except ValueError:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return None
    return value


def _usage_edits(body: bytes, *, absent: bool) -> Iterator[Edit]:
    present = False
    if not absent and may_hold(body, "stream_options"):
        for member in members(body):
            if member.key == "stream_options":
                present = True
                yield from _include_usage(body, member.start, member.end)
    if not present:
        yield insertion(body, 0, "stream_options", b'{"include_usage":true}')


def _include_usage(body: bytes, start: int, end: int) -> Iterator[Edit]:
    if body[start:end] == b"null":
        yield Edit(start, end, b'{"include_usage":true}')
    if body[start : start + 1] != b"{":
        return
    present = False
    for member in members(body, start):
        if member.key == "include_usage":
            present = True
            yield Edit(member.start, member.end, b"true")
    if not present:
        yield insertion(body, start, "include_usage", b"true")
