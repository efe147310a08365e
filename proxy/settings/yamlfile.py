"""A YAML file as nested values that remember their lines."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

KeyPath = tuple[str | int, ...]

_PLAIN = {f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "str", "int", "float", "bool", "null")}
_DATE = "tag:yaml.org,2002:timestamp"
"""A bare `2026-11-30`; it stays the text that was written, and whoever wants a date reads it."""
_MOST_VALUES = 10_000
"""A configuration has a few hundred values; aliases that unfold into more are a mistake or worse."""


class ConfigurationError(Exception):
    """The configuration cannot be used.

    Attributes:
        sentences: every problem found, each one line for people that names its place.
    """

    def __init__(self, sentences: tuple[str, ...]) -> None:
        self.sentences = tuple(_on_one_line(sentence) for sentence in sentences)
        super().__init__("\n".join(self.sentences))


def _on_one_line(sentence: str) -> str:
    """Escape what would break the line or the terminal: keys and values may hold anything."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in sentence)


@dataclass(slots=True)
class Document:
    """What one file says."""

    name: str
    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[KeyPath, int] = field(default_factory=dict)
    """Line of each key, counted from 1."""

    def place(self, path: KeyPath) -> str:
        """Return `file:line` of a key."""
        return f"{self.name}:{self.lines[path]}" if path in self.lines else self.name


def read(path: Path) -> Document:
    """Read a configuration file.

    Raises:
        ConfigurationError: it is missing, unreadable, not YAML, or not a mapping of keys.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigurationError((f"{path}: not UTF-8 text (byte {error.start})",)) from None
    except OSError as error:
        raise ConfigurationError((f"{path}: cannot be read: {error.strerror}",)) from None
    return parse(text, str(path))


def parse(text: str, name: str) -> Document:
    """Turn YAML text into values with lines; an empty text is an empty mapping.

    Raises:
        ConfigurationError: not YAML, not a mapping, a key written twice, or a value that is no plain data.
    """
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        walk = _Walk(loader, Document(name))
        if root is not None:
            walk.document.values = walk.top(root)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark is not None else ""
        raise ConfigurationError((f"{name}{line}: not valid YAML: {error.problem}",)) from None
    except RecursionError:
        raise ConfigurationError((f"{name}: nested too deeply (an alias that contains itself?)",)) from None
    except (yaml.YAMLError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigurationError((f"{name}: not valid YAML: {reason}",)) from None
    if walk.problems:
        raise ConfigurationError(tuple(walk.problems))
    return walk.document


class _Walk:
    """One pass over the nodes of a document; collects problems instead of stopping at the first."""

    def __init__(self, loader: yaml.SafeLoader, document: Document) -> None:
        self.document = document
        self.problems: list[str] = []
        self._loader = loader
        self._seen = 0

    def top(self, node: yaml.Node) -> dict[str, Any]:
        value = self._value(node, ())
        if isinstance(value, dict):
            return value
        if value is not None:
            self._report(node, "the file must be a mapping of keys, such as `listen: 127.0.0.1:8080`")
        return {}

    def _value(self, node: yaml.Node, path: KeyPath) -> Any:
        self._seen += 1
        if self._seen > _MOST_VALUES:
            raise ValueError(f"more than {_MOST_VALUES} values (an alias that contains itself?)")
        if node.tag == _DATE:
            return node.value
        if node.tag not in _PLAIN:
            self._report(node, f"the tag {node.tag} has no meaning here")
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._item(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._loader.construct_object(node)

    def _item(self, node: yaml.Node, path: KeyPath) -> Any:
        self.document.lines[path] = node.start_mark.line + 1
        return self._value(node, path)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else "?"
            if key in values:
                first = self.document.lines[(*path, key)]
                self._report(key_node, f'key "{key}" is written twice (first in line {first}); keep one')
                continue
            self.document.lines[(*path, key)] = key_node.start_mark.line + 1
            values[key] = self._value(value_node, (*path, key))
        return values

    def _report(self, node: yaml.Node, problem: str) -> None:
        self.problems.append(f"{self.document.name}:{node.start_mark.line + 1}: {problem}")
