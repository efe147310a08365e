"""JSON values as the engine would take them: what it coerces is coerced, all else is absent."""

import json
import re
from typing import Final

_DIGITS: Final = re.compile(r"\s*[+-]?[0-9]{1,18}\s*")
_TRUE: Final = frozenset({"1", "true", "t", "yes", "y", "on"})


def as_int(value: object) -> int | None:
    """Return a whole number: an integer, a float without fraction, or a string of digits; else None."""
    if value is None:
        return None
    if type(value) is int:
        return value
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    if isinstance(value, str) and len(value) <= 40 and _DIGITS.fullmatch(value):
        return int(value)
    return None


def as_bool(value: object) -> bool:
    """Return whether the engine takes the value for true (`true`, 1, "yes" …)."""
    if value is None or value is True or value is False:
        return value is True
    if isinstance(value, str):
        return value.lower() in _TRUE
    return isinstance(value, int | float) and value == 1


def as_str(value: object) -> str | None:
    """Return a string that is not empty, else None."""
    return value if isinstance(value, str) and value else None


def as_text(value: object) -> str:
    """Return a JSON value written as text, as a chat template would print it; any depth, never raises."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, TypeError, RecursionError):
        return " ".join(_strings(value))


def _strings(value: object) -> list[str]:
    found: list[str] = []
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            found.append(item)
        elif isinstance(item, dict):
            waiting += item.values()
            waiting += item.keys()
        elif isinstance(item, list):
            waiting += item
    return found
