"""What differs between two configurations: which keys, which of them steer the scheduling, which need a restart."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import SecretStr

from proxy.settings.model import Settings
from proxy.settings.sections import PRESETS
from proxy.settings.tree import leaves, value_at

_AT_START = ("listen", "admin", "state_dir", "log_format", "tracing.", "recorder.", "estimate.remember", "sharing.")
"""Bound, opened or named once, when the process starts. With a dot: the whole section."""
_STEERING = (
    *("mode", "scheduling.", "installments.", "lanes.", "limits.prompt_tokens", "estimate.tokenize", "estimate.near"),
    *("tenants.", "priority.", "length_policies", "repeats.", "prefixes.", "share"),
)
_NOT_STEERING = (".first_byte_timeout", ".salt")
_IDENTITY = frozenset({"url", "name", "models"})
"""Keys of a backend that say which engine it is."""
_DESCRIPTIVE = (".engine_flags",)
"""Keys of a backend that steer nothing."""


@dataclass(frozen=True, slots=True)
class Change:
    """One key whose value differs."""

    key: str
    """In dots; the keys of a backend as `backends[NAME].weight`, a backend that came or went as `backends[NAME]`."""
    before: Any
    """As an operator writes it; None for what was not there."""
    after: Any

    def __str__(self) -> str:
        return f"{self.key}: {_shown(self.before)} -> {_shown(self.after)}"


def changes(old: Settings, new: Settings) -> tuple[Change, ...]:
    """Return every key that differs, in the order of the reference; `why` texts are no change."""
    before, after = old.model_dump(mode="json"), new.model_dump(mode="json")
    found: list[Change] = []
    for path in leaves(Settings):
        if path == "backends":
            found += _backend_changes(before[path], after[path], old, new)
        elif path != "why" and (here := value_at(before, path)) != (there := value_at(after, path)):
            found.append(Change(path, here, there))
        elif _secret(old, path) != _secret(new, path):
            found.append(Change(path, "(hidden)", "(hidden)"))
    return tuple(found)


def need_restart(found: Sequence[Change]) -> tuple[Change, ...]:
    """Return the changes that a running process cannot follow."""
    return tuple(change for change in found if _among(change.key, _AT_START))


def steering(found: Sequence[Change], old: Settings, new: Settings) -> tuple[str, ...]:
    """Return the scheduling parameters that differ, each counted once, as an operator would say what he changed.

    A preset counts as one, whatever it brings with it; so do backends that come, go or move: they are one fleet.

    Args:
        found: `changes(old, new)`.
        old: the configuration in force.
        new: the one to come.
    """
    by_preset = _brought_by_preset(old, new)
    named: dict[str, None] = {}
    for change in found:
        if change.key.endswith(_DESCRIPTIVE):
            continue
        if change.key.startswith("backends["):
            key = change.key.rpartition("].")[2]
            named["backends" if key in _IDENTITY or key == change.key else change.key] = None
        elif _among(change.key, _STEERING) and not change.key.endswith(_NOT_STEERING) and change.key not in by_preset:
            named[change.key] = None
    return tuple(named)


def with_secrets_of(settings: Settings, other: Settings, *, hidden: bool = False) -> Settings:
    """Return settings with every secret taken from others, or, if `hidden`, left out where they have one."""
    for path in leaves(Settings):
        section, _, key = path.partition(".")
        here, there = getattr(settings, section), getattr(other, section)
        if key and isinstance(value := getattr(there, key, None), SecretStr):
            settings = settings.model_copy(update={section: here.model_copy(update={key: None if hidden else value})})
    return settings


def _backend_changes(
    before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]], old: Settings, new: Settings
) -> Iterator[Change]:
    here = dict(zip((one.label for one in old.backends), before, strict=True))
    there = dict(zip((one.label for one in new.backends), after, strict=True))
    for name in dict.fromkeys((*here, *there)):
        if name not in there:
            yield Change(f"backends[{name}]", here[name]["url"], None)
        elif name not in here:
            yield Change(f"backends[{name}]", None, there[name]["url"])
        else:
            for key, value in here[name].items():
                if key != "name" and value != there[name][key]:
                    yield Change(f"backends[{name}].{key}", value, there[name][key])


def _brought_by_preset(old: Settings, new: Settings) -> frozenset[str]:
    """Return the keys that only follow the preset: they had the old one's values and have the new one's."""
    was, now = PRESETS[old.scheduling.preset], PRESETS[new.scheduling.preset]
    return frozenset(
        f"scheduling.{key}"
        for key in now
        if old.scheduling.preset != new.scheduling.preset
        and getattr(old.scheduling, key) == was[key]
        and getattr(new.scheduling, key) == now[key]
    )


def _among(key: str, names: Sequence[str]) -> bool:
    return any(key == name or (name.endswith(".") and key.startswith(name)) for name in names)


def _secret(settings: Settings, path: str) -> str | None:
    value: Any = settings
    for part in path.split("."):
        value = getattr(value, part)
    return value.get_secret_value() if isinstance(value, SecretStr) else None


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(map(_shown, value)) or "none"
    if isinstance(value, dict):  # as YAML has it; what is not set says nothing
        return "{" + ", ".join(f"{key}: {_of_entry(key, one)}" for key, one in value.items() if one is not None) + "}"
    return str(value)


def _of_entry(key: str, value: Any) -> str:
    if key == "keys":  # digests of API keys: neither logs nor answers show them
        return f"{len(value)} hidden"
    return f"[{_shown(value)}]" if isinstance(value, list) else _shown(value)
