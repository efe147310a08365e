"""What an observation must satisfy, as data: the verdict of a row is computed from its rule and from nothing else.

A rule is a plain value or a list (equal to it), or a mapping that holds when all of its parts do: operators look at the
value itself, any other key names a key of the observation with a rule of its own. A key that was not observed fails.

| operator | holds when the value |
|---|---|
| `at_most`, `at_least` | is a number within that bound |
| `one_of` | equals one of them |
| `is_not` | differs from it |
| `contains`, `lacks` | has, or has not, that item or substring |
| `matches` | matches that regular expression somewhere |
| `each` | is a list, not empty, and the rule holds for each item |
| `count` | is a list or mapping whose length satisfies the rule |
| `any_of` | satisfies one of the rules |
"""

import re
from typing import Any

Rule = Any


def unmet(rule: Rule, value: Any, where: str = "got") -> list[str]:
    """Return one sentence for each part of the rule that the value does not satisfy; [] when it holds."""
    if not isinstance(rule, dict):
        return [] if _same(rule, value) else [f"{where} is {_short(value)}, not {_short(rule)}"]
    found = [text for key in rule if key in _OPERATORS for text in _OPERATORS[key](rule[key], value, where)]
    keys = {key: inner for key, inner in rule.items() if key not in _OPERATORS}
    if keys and not isinstance(value, dict):
        return [*found, f"{where} is {_short(value)}, where {', '.join(keys)} should be"]
    for key, inner in keys.items():
        path = f"{where}.{key}"
        found += unmet(inner, value[key], path) if key in value else [f"{path} was not observed"]
    return found


def _same(rule: Any, value: Any) -> bool:
    return type(rule) is type(value) and rule == value if isinstance(rule, bool) else rule == value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 90 else f"{text[:87]}..."


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _at_most(wanted: Any, value: Any, where: str) -> list[str]:
    return [] if _number(value) and value <= wanted else [f"{where} is {_short(value)}, over {wanted}"]


def _at_least(wanted: Any, value: Any, where: str) -> list[str]:
    return [] if _number(value) and value >= wanted else [f"{where} is {_short(value)}, under {wanted}"]


def _one_of(wanted: Any, value: Any, where: str) -> list[str]:
    return [] if any(_same(item, value) for item in wanted) else [f"{where} is {_short(value)}, none of {wanted}"]


def _is_not(wanted: Any, value: Any, where: str) -> list[str]:
    return [f"{where} is {_short(value)}"] if _same(wanted, value) else []


def _contains(wanted: Any, value: Any, where: str) -> list[str]:
    return [] if _has(wanted, value) else [f"{where} is {_short(value)}, without {_short(wanted)}"]


def _lacks(wanted: Any, value: Any, where: str) -> list[str]:
    return [f"{where} is {_short(value)}, with {_short(wanted)}"] if _has(wanted, value) else []


def _has(wanted: Any, value: Any) -> bool:
    return isinstance(value, str | list | dict) and wanted in value


def _matches(wanted: Any, value: Any, where: str) -> list[str]:
    fits = isinstance(value, str) and re.search(wanted, value) is not None
    return [] if fits else [f"{where} is {_short(value)}, which does not match {wanted}"]


def _each(wanted: Any, value: Any, where: str) -> list[str]:
    if not isinstance(value, list) or not value:
        return [f"{where} is {_short(value)}, no list with items"]
    return [text for number, item in enumerate(value) for text in unmet(wanted, item, f"{where}[{number}]")]


def _count(wanted: Any, value: Any, where: str) -> list[str]:
    if not isinstance(value, list | dict):
        return [f"{where} is {_short(value)}, which has no length"]
    return unmet(wanted, len(value), f"length of {where}")


def _any_of(wanted: Any, value: Any, where: str) -> list[str]:
    tries = [unmet(rule, value, where) for rule in wanted]
    return [] if not all(tries) else ["either " + ", or ".join("; ".join(texts) for texts in tries)]


_OPERATORS = {
    "at_most": _at_most,
    "at_least": _at_least,
    "one_of": _one_of,
    "is_not": _is_not,
    "contains": _contains,
    "lacks": _lacks,
    "matches": _matches,
    "each": _each,
    "count": _count,
    "any_of": _any_of,
}
