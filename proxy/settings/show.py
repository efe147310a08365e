"""The configuration as text: what differs from the defaults, everything with its source, a full file, a schema."""

import datetime as dt
import json
import textwrap
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BeforeValidator, SecretStr

from proxy.settings.load import Loaded
from proxy.settings.model import Settings
from proxy.settings.sections import Backend, read_drop_factor, read_networks, split_names
from proxy.settings.security import OBVIOUS
from proxy.settings.tree import Key, keys, leaves, value_at
from proxy.settings.units import (
    Address,
    parse_backend_url,
    parse_count,
    parse_duration,
    parse_optional_count,
    parse_size,
)

EXAMPLE_BACKEND = "http://127.0.0.1:8000"
HIDDEN = "**********"
_SELF_EXPLAINING = frozenset({"url", "name", "models", "engine_flags", "ca_file", "api_key_file", "api_key_env"})
"""Keys of a backend that describe the engine rather than steer it."""

Remark = Callable[[str], str]
"""Comment for a leaf by path; "" for none."""


def values(settings: Settings) -> dict[str, Any]:
    """Return every leaf by dotted path, in the form an operator writes it; secrets are hidden."""
    dumped = settings.model_dump(mode="json")
    return {path: _brief(value_at(dumped, path)) for path in leaves(Settings)}


def defaults() -> dict[str, Any]:
    """Return the default of every leaf; `backends`, which has none, is an empty list."""
    plain = Settings.model_construct(backends=()).model_dump(mode="json")
    return {path: value_at(plain, path) for path in leaves(Settings)}


def differing(loaded: Loaded) -> dict[str, Any]:
    """Return the leaves that somebody set to something else than the default (or than the chosen preset)."""
    plain = defaults()
    return {
        path: value
        for path, value in values(loaded.settings).items()
        if value != plain[path] and not loaded.origins[path].startswith("preset ") and path != "why"
    }


def missing_whys(loaded: Loaded) -> tuple[str, ...]:
    """Return the differing keys that no `why` explains; addresses, directories and engines explain themselves."""
    secrets = {"recorder.salt", "probes.api_key", "tenants.salt", "sharing.password"}
    obvious = {"listen", "admin", "backends", "state_dir", "recorder.directory", *secrets, *OBVIOUS}
    why = loaded.settings.why
    plain = tuple(
        path
        for path in differing(loaded)
        if path not in obvious and path not in why and not path.startswith("measured.")
    )
    return plain + tuple(path for path, reason in _backend_whys(loaded.settings) if reason is None)


def _backend_whys(settings: Settings) -> Iterator[tuple[str, str | None]]:
    """Yield what each backend sets beside where it is and what it serves, and why: its own reason or that of all."""
    plain = Backend.model_construct().model_dump(mode="json", exclude={"url"})
    for backend in settings.backends:
        for key, value in backend.model_dump(mode="json").items():
            if key not in _SELF_EXPLAINING and value != plain[key]:
                path = f"backends[{backend.label}].{key}"
                yield path, settings.why.get(path, settings.why.get(f"backends[].{key}"))


def as_document(loaded: Loaded, *, resolved: bool) -> dict[str, Any]:
    """Return the JSON form: the hash, and per key its value, source and why."""
    chosen = values(loaded.settings) if resolved else differing(loaded)
    why = loaded.settings.why
    entries = {
        path: {"value": value, "source": loaded.origins[path]} | ({"why": why[path]} if path in why else {})
        for path, value in chosen.items()
        if path != "why"
    }
    return {"config": loaded.settings.hash, "settings": entries}


def minimal(loaded: Loaded) -> str:
    """Write what differs from the defaults as YAML, each key with its why."""
    why = loaded.settings.why
    chosen = differing(loaded)
    if why:
        chosen = {**chosen, "why": why}
    reasons = {path: f"why: {text}" for path, text in why.items()}
    items = [f"{path.rpartition('.')[2]}: {reason}" for path, reason in _backend_whys(loaded.settings) if reason]
    if items and "backends" not in reasons:
        reasons["backends"] = "why: " + "; ".join(dict.fromkeys(items))
    return _yaml(chosen, lambda path: reasons.get(path, ""))


def resolved(loaded: Loaded) -> str:
    """Write every key as YAML, each with the source of its value."""
    chosen = {path: value for path, value in values(loaded.settings).items() if path != "why" or value}
    return _yaml(chosen, lambda path: loaded.origins[path])


def full_file() -> str:
    """Write the complete configuration file: every key at its default below its description."""
    lines = [
        "# Every key at its default, with what it means. Generated from proxy/settings by tools/generate_docs.py.",
        "# Start from minimal.yaml instead: write only what differs, and why.",
    ]
    plain = {**defaults(), "backends": [EXAMPLE_BACKEND]}
    for key in keys(Settings):
        if "[]" not in key.path:
            lines += _described(key, plain)
    return "\n".join(lines) + "\n"


def schema() -> dict[str, Any]:
    """Return the JSON schema of the configuration file, for editors."""
    document = Settings.model_json_schema()
    items = document["properties"]["backends"]["items"]
    document["properties"]["backends"]["items"] = {"anyOf": [{"type": "string", "format": "uri"}, items]}
    document["title"] = "lanewise configuration"
    return document


def reference() -> Iterator[tuple[Key, str, str]]:
    """Yield every key with its type and its default as an operator writes them; the default is "" for a section."""
    plain = defaults()
    for key in keys(Settings):
        if not key.is_leaf:
            yield key, "section", ""
        elif key.field.is_required():
            yield key, _kind(key), "required"
        else:
            default = key.field.default if "[]" in key.path else plain[key.path]
            yield key, _kind(key), "none" if default in (None, "", (), []) else scalar(default)


def scalar(value: Any) -> str:
    """Write one value as YAML on one line."""
    if isinstance(value, tuple):
        value = list(value)
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10_000, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def _described(key: Key, plain: Mapping[str, Any]) -> list[str]:
    indent = "  " * key.path.count(".")
    name = key.path.rpartition(".")[2]
    text = key.field.description or (key.section.__doc__ or "" if key.section is not None else "")
    comment = textwrap.wrap(
        " ".join(text.split()),
        width=118 - len(indent),
        initial_indent=f"{indent}# ",
        subsequent_indent=f"{indent}# ",
        break_on_hyphens=False,
    )
    line = f"{indent}{name}: {scalar(plain[key.path])}" if key.is_leaf else f"{indent}{name}:"
    return ["", *comment, line]


def _brief(value: Any) -> Any:
    """Leave out of each backend what is at its default; a URL alone stays one text."""
    if not isinstance(value, list):
        return value
    return [_one_backend(item) if isinstance(item, dict) else item for item in value]


def _one_backend(item: dict[str, Any]) -> Any:
    plain = Backend.model_construct().model_dump(mode="json", exclude={"url"})
    written = {key: inner for key, inner in item.items() if key == "url" or inner != plain.get(key)}
    return written["url"] if set(written) == {"url"} else written


def _yaml(chosen: Mapping[str, Any], remark: Remark) -> str:
    lines: list[str] = []
    opened: tuple[str, ...] = ()
    for path, value in chosen.items():
        *parents, name = path.split(".")
        for depth, parent in enumerate(parents):
            if opened[: depth + 1] != tuple(parents[: depth + 1]):
                lines.append(f"{'  ' * depth}{parent}:")
        opened = tuple(parents)
        lines += _entry("  " * len(parents), name, value, remark(path))
    return "\n".join(lines) + "\n"


def _entry(indent: str, name: str, value: Any, comment: str) -> list[str]:
    tail = f"  # {' '.join(comment.split())}" if comment else ""
    if value == HIDDEN:
        return [f"{indent}# {name} is set, and hidden{': ' + comment if comment else ''}"]
    if isinstance(value, list) and value:
        return [f"{indent}{name}:{tail}", *(f"{indent}  - {scalar(item)}" for item in value)]
    if isinstance(value, dict) and value:
        return [
            f"{indent}{name}:{tail}",
            *(f"{indent}  {scalar(key)}: {json.dumps(item, ensure_ascii=False)}" for key, item in value.items()),
        ]
    return [f"{indent}{name}: {scalar(value)}{tail}"]


_BY_READER: dict[Any, str] = {
    parse_duration: "duration",
    parse_size: "size",
    parse_count: "count",
    parse_optional_count: "count | unlimited",
    read_drop_factor: "number | never",
    split_names: "list of names",
    read_networks: "list of networks",
    parse_backend_url: "URL",
}
_BY_TYPE: dict[Any, str] = {
    Address: "address",
    Path: "path",
    SecretStr: "secret",
    bool: "boolean",
    float: "number",
    int: "whole number",
    dt.date: "date",
    str: "text",
    dict: "mapping of key to text",
}


def _kind(key: Key) -> str:
    """Return what an operator writes there, in words."""
    if key.section is not None:
        return "list of backends" if key.path == "backends" else "list of mappings"
    if (options := _options(key)) is not None:
        return " | ".join(options)
    annotation = key.field.annotation
    parts = (annotation, *get_args(annotation))
    readers = [*key.field.metadata, *(found for part in parts for found in getattr(part, "__metadata__", ()))]
    for reader in readers:
        if isinstance(reader, BeforeValidator) and reader.func in _BY_READER:
            return _BY_READER[reader.func]
    return next(_BY_TYPE[part] for part in (get_origin(annotation), *parts) if part in _BY_TYPE)


def _options(key: Key) -> list[str] | None:
    annotation = key.field.annotation
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return [member.value for member in annotation]
    return [str(word) for word in get_args(annotation)] if get_origin(annotation) is Literal else None
