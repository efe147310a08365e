"""The keys of the configuration as a tree: for messages, printing, documentation and the check of variable names."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo

from proxy.settings.sections import Section


@dataclass(frozen=True, slots=True)
class Key:
    """One key: a section with keys of its own, or a leaf with a value."""

    path: str
    """In dots; the keys of a list's items follow `[]`."""
    field: FieldInfo
    section: type[Section] | None
    """The section behind it; None for a leaf."""
    in_list: bool = False

    @property
    def is_leaf(self) -> bool:
        """Whether it holds a value of its own (a list counts as one)."""
        return self.section is None or self.in_list


def section_of(annotation: Any) -> tuple[type[Section] | None, bool]:
    """Return the section class inside an annotation, and whether a list of them is meant."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation, False
    if get_origin(annotation) is tuple:
        found, _ = section_of(get_args(annotation)[0])
        return found, found is not None
    if get_origin(annotation) is UnionType:
        return next((pair for part in get_args(annotation) if (pair := section_of(part))[0]), (None, False))
    return None, False


def keys(section: type[Section], prefix: str = "") -> Iterator[Key]:
    """Yield every key below a section, parents before their children, in the order they are declared."""
    for name, declared in section.model_fields.items():
        inner, in_list = section_of(declared.annotation)
        key = Key(prefix + name, declared, inner, in_list)
        yield key
        if inner is not None:
            yield from keys(inner, f"{key.path}[]." if in_list else f"{key.path}.")


def leaves(section: type[Section]) -> dict[str, Key]:
    """Return the keys that hold values, by path; a list of sections is one leaf."""
    return {key.path: key for key in keys(section) if key.is_leaf and "[]" not in key.path}


def section_at(section: type[Section], path: tuple[str | int, ...]) -> type[Section] | None:
    """Return the section that a path leads to, or None where it leads to a value or nowhere."""
    here: type[Section] | None = section
    for part in path:
        if isinstance(part, int):
            continue
        if here is None or part not in here.model_fields:
            return None
        here, _ = section_of(here.model_fields[part].annotation)
    return here


def value_at(document: Any, path: str) -> Any:
    """Return the value under a dotted path of nested mappings.

    Raises:
        KeyError: a part of the path is not there.
    """
    for part in path.split("."):
        document = document[part]
    return document


def dotted(path: tuple[str | int, ...]) -> str:
    """Write a path as people read it: `backends[0].url`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def undotted(text: str) -> tuple[str | int, ...]:
    """Read what `dotted` wrote."""
    parts = re.findall(r"[^.\[\]]+", text)
    return tuple(int(part) if part.isdecimal() else part for part in parts)
