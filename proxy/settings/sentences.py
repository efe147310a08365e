"""Validation errors as sentences for people: where, which key, which value, what is allowed."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import SecretStr, ValidationError

from proxy.settings.checks import Problem
from proxy.settings.model import Settings
from proxy.settings.tree import dotted, keys, section_at, undotted
from proxy.settings.yamlfile import KeyPath

Place = Callable[[KeyPath], str]
"""Where a key was written: `file:line`, a variable, a flag; "" when nowhere."""

_CREDENTIALS = re.compile(r"//[^@/]*@")
_BOUNDS = {
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "string_pattern_mismatch": "must match {pattern}",
    "string_type": "must be a text; put it in quotes",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "path_type": "must be a path",
    "tuple_type": "must be a list",
    "dict_type": 'must be a mapping of key to text, for example {{scheduling.drop_factor: "..."}}',
}


def explain(error: ValidationError, place: Place) -> tuple[str, ...]:
    """Turn everything that validation found into sentences, each once, in the order of the keys."""
    found: dict[str, None] = {}
    for one in error.errors(include_url=False):
        for sentence in _sentences(one, place):
            found[sentence] = None
    return tuple(found)


def unknown_key(path: KeyPath, place: str) -> str:
    """Say that a key does not exist: what was probably meant, and what is allowed there."""
    *parents, name = path
    section = section_at(Settings, tuple(parents))
    allowed = sorted(section.model_fields) if section is not None else []
    under = f' under "{dotted(tuple(parents))}"' if parents else ""
    hint = _meant(str(name), allowed, "key")
    if allowed:
        hint += f"{' Allowed' if hint else '; allowed'}{under}: {', '.join(allowed)}"
    else:
        hint += f'; "{dotted(tuple(parents))}" has no keys of its own'
    return f'{_at(place)}unknown key "{dotted(path)}"{hint}'


def _sentences(error: Mapping[str, Any], place: Place) -> Iterator[str]:
    path: KeyPath = tuple(error["loc"])
    if error["type"] == "across":
        for problem in error["ctx"]["problems"]:
            yield f"{_at(_where(problem, place))}{problem.key}: {problem.text}"
    elif error["type"] == "extra_forbidden":
        yield unknown_key(path, place(path))
    elif error["type"] == "missing":
        yield f"{_at(place(path[:-1]))}{_missing(path)}"
    else:
        yield f"{_at(place(path))}{_key(path)} is {_shown(path, error['input'])}: {_problem(path, error)}"


def _where(problem: Problem, place: Place) -> str:
    """Return where the key of a problem was written, or else the key on its other side."""
    nowhere = place(())
    written = place(undotted(problem.key))
    return place(undotted(problem.other)) if written == nowhere and problem.other else written


def _missing(path: KeyPath) -> str:
    if path == ("backends",):
        return "no backend is named: write `backends: [http://HOST:PORT]`, or give --backend http://HOST:PORT"
    return f'key "{dotted(path)}" is missing'


def _problem(path: KeyPath, error: Mapping[str, Any]) -> str:
    kind, context = error["type"], error.get("ctx") or {}
    if kind == "value_error":
        return str(context["error"])
    if kind in {"literal_error", "enum"}:
        allowed = [word.strip("'") for word in context["expected"].replace(" or ", ", ").split(", ")]
        given = error["input"] if isinstance(error["input"], str) else ""
        return f"allowed: {', '.join(allowed)}{_meant(given, allowed, 'value')}"
    if kind in {"model_type", "model_attributes_type"}:
        section = section_at(Settings, path)
        names = ", ".join(section.model_fields) if section is not None else ""
        return f"must be a mapping with keys among: {names}"
    if kind in _BOUNDS:
        return _BOUNDS[kind].format(**context)
    return str(error["msg"])


def _meant(given: str, allowed: list[str], what: str) -> str:
    close = get_close_matches(given, allowed, n=1, cutoff=0.6)
    if close:
        return f'; did you mean "{close[0]}"?'
    elsewhere = [key.path for key in keys(Settings) if key.path.rpartition(".")[2] == given and "[]" not in key.path]
    return f'; did you mean "{elsewhere[0]}"?' if what == "key" and len(elsewhere) == 1 else ""


def _shown(path: KeyPath, value: Any) -> str:
    section = section_at(Settings, path[:-1]) if path else None
    field = section.model_fields.get(str(path[-1])) if section is not None else None
    if field is not None and SecretStr in (field.annotation, *getattr(field.annotation, "__args__", ())):
        return "(hidden)"
    if path == ("tenants",) or (path[:2] == ("tenants", "named") and (len(path) < 4 or path[3] == "keys")):
        return "(hidden)"  # somebody may have written an API key there instead of its digest
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = str(value)
    text = _CREDENTIALS.sub("//(hidden)@", text)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _key(path: KeyPath) -> str:
    return dotted(path) or "the configuration"


def _at(place: str) -> str:
    return f"{place}: " if place else ""
