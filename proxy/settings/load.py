"""Where settings come from: flags win over LANEWISE_* variables, these over the file, the file over the defaults."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from proxy.settings.model import Settings
from proxy.settings.sections import PRESETS, SHORT_FORMS
from proxy.settings.security import Auth
from proxy.settings.sentences import explain, unknown_key
from proxy.settings.tree import dotted, leaves, section_at
from proxy.settings.units import Address
from proxy.settings.yamlfile import ConfigurationError, Document, KeyPath, parse, read

PREFIX = "LANEWISE_"
CONFIG_VARIABLE = "LANEWISE_CONFIG"
DEFAULT = "default"

_SERVICE_LINK = re.compile(r"LANEWISE(_[A-Z0-9_]+)?_(SERVICE_(HOST|PORT)(_.*)?|PORT(_\d+_(TCP|UDP)(_.*)?)?)")
"""Kubernetes puts these into every pod of a namespace with a Service called lanewise; they are not ours."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One value from the command line."""

    name: str
    """As the user typed it: what an error names."""
    path: KeyPath
    value: Any


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings, and where each of their values comes from."""

    settings: Settings
    origins: Mapping[str, str]
    """Source of every leaf by dotted path: `default`, `preset NAME`, `FILE:LINE`, a variable, or a flag."""
    file: Path | None


def load(config: Path | Sequence[Path] | None = None, flags: Sequence[Flag] = ()) -> Loaded:
    """Read file, environment and flags.

    Args:
        config: the YAML file, or several of which the later ones win key by key; None: the file that LANEWISE_CONFIG
            names, or none at all.
        flags: values from the command line, later ones win.

    Returns:
        The settings with their sources.

    Raises:
        ConfigurationError: anything is wrong; all problems at once.
    """
    files = _files(config)
    given = _Given(read(files[0]) if files else Document(""))
    for more in files[1:]:
        given.add_document(read(more))
    strays = [unknown_key(path, name) for name, path in _stray_variables()]
    given.add_environment()
    for flag in flags:
        given.add(flag.path, flag.value, flag.name)
    try:
        settings = Settings.model_validate(given.values)
    except ValidationError as error:
        raise ConfigurationError((*strays, *explain(error, given.place))) from None
    if strays:
        raise ConfigurationError(tuple(strays))
    return Loaded(settings, given.origins(settings), files[0] if files else None)


def load_text(text: str, name: str) -> Settings:
    """Read a configuration from YAML text alone: no file, no environment, no flags.

    Args:
        text: the YAML.
        name: what its errors call it.

    Raises:
        ConfigurationError: anything is wrong; all problems at once.
    """
    given = _Given(parse(text, name))
    try:
        return Settings.model_validate(given.values)
    except ValidationError as error:
        raise ConfigurationError(explain(error, given.place)) from None


def admin_address(config: Path | Sequence[Path] | None = None, flags: Sequence[Flag] = ()) -> Address:
    """Return the admin address alone, from the same sources as `load`, whatever else is wrong with them.

    A proxy that runs can be asked and told things while its file is broken.

    Raises:
        ConfigurationError: what is written there is no address.
    """
    given = _readable_parts(config, flags)
    value = given.values.get("admin")
    if value is None:
        return Settings.model_fields["admin"].get_default()  # type: ignore[no-any-return]
    try:
        return Address.parse(value)
    except ValueError as error:
        raise ConfigurationError((f"{given.place(('admin',))}: admin is {value!r}: {error}",)) from None


def auth_section(config: Path | Sequence[Path] | None = None, flags: Sequence[Flag] = ()) -> Auth:
    """Return where keys are, from the same sources as `load`, whatever else is wrong with them.

    The defaults, where that section is wrong itself. Whoever asks a proxy that runs needs its admin key, while its file
    is broken, too.
    """
    try:
        return Auth.model_validate(_readable_parts(config, flags).values.get("auth") or {})
    except ValidationError:
        return Auth()


def _readable_parts(config: Path | Sequence[Path] | None, flags: Sequence[Flag]) -> "_Given":
    files = _files(config)
    given = _Given(_readable(files[0]) if files else Document(""))
    for more in files[1:]:
        given.add_document(_readable(more))
    given.add_environment()
    for flag in flags:
        given.add(flag.path, flag.value, flag.name)
    return given


def _files(config: Path | Sequence[Path] | None) -> tuple[Path, ...]:
    if config:
        return (config,) if isinstance(config, Path) else tuple(config)
    named = os.environ.get(CONFIG_VARIABLE)
    return (Path(named),) if named else ()


def _readable(file: Path) -> Document:
    """Return what a file says; nothing when it is broken."""
    try:
        return read(file)
    except ConfigurationError:
        return Document(str(file))


class _Given:
    """What was written anywhere, merged, with the place of each value."""

    def __init__(self, document: Document) -> None:
        self.values: dict[str, Any] = _without_empty_sections(document.values, ())
        self._document = document
        self._places: dict[KeyPath, str] = {path: document.place(path) for path in document.lines}
        for name, key in SHORT_FORMS.items():
            if isinstance(self.values.get(name), (str, bool)):
                self.values[name] = {key: self.values[name]}
                self._places[name, key] = self._places[name,]

    def add(self, path: KeyPath, value: Any, place: str) -> None:
        """Let one value win over what was there before; a mapping is merged key by key."""
        if len(path) == 1 and path[0] in SHORT_FORMS and isinstance(value, (str, bool)):
            path = (path[0], SHORT_FORMS[str(path[0])])
        if isinstance(value, dict) and value and section_at(Settings, path) is not None:
            for key, inner in value.items():
                self.add((*path, key), inner, place)
            return
        here: Any = self.values
        for part in path[:-1]:
            if not isinstance(here.get(part), dict):
                here[part] = {}
            here = here[part]
        here[path[-1]] = value
        self._forget_below(path)
        self._places[path] = place

    def add_document(self, document: Document) -> None:
        """Let a further file win, key by key."""
        for path, value in _flat(_without_empty_sections(document.values, ()), ()):
            self.add(path, value, document.place(path))
            for below in document.lines:
                if below[: len(path)] == path:
                    self._places[below] = document.place(below)

    def _forget_below(self, path: KeyPath) -> None:
        """Drop the lines of list items and keys that a later source replaced."""
        for known in [known for known in self._places if known[: len(path)] == path]:
            del self._places[known]

    def add_environment(self) -> None:
        """Add LANEWISE_* variables, named by the variable that holds each value."""
        if not any(_is_ours(name) for name in os.environ):
            return
        from proxy.settings import environment  # noqa: PLC0415 - only when there is something to read

        for path, value in _flat(environment.read(), ()):
            self.add(path, value, _variable(path))

    def place(self, path: KeyPath) -> str:
        """Return where a key, or the nearest key around it or below it, was written; the file when nowhere."""
        for length in range(len(path), 0, -1):
            if path[:length] in self._places:
                return self._places[path[:length]]
        below = (place for known, place in self._places.items() if path and known[: len(path)] == path)
        return next(below, self._document.name)

    def origins(self, settings: Settings) -> dict[str, str]:
        """Return the source of every leaf."""
        preset = {f"scheduling.{key}" for key in PRESETS[settings.scheduling.preset]}
        from_preset = f"preset {settings.scheduling.preset}" if ("scheduling", "preset") in self._places else DEFAULT
        found = {}
        for path in leaves(Settings):
            parts: KeyPath = tuple(path.split("."))
            written = next((self._places[parts[:n]] for n in range(len(parts), 0, -1) if self._holds(parts, n)), None)
            found[path] = written or (from_preset if path in preset else DEFAULT)
        return found

    def _holds(self, parts: KeyPath, length: int) -> bool:
        """Return whether `parts[:length]` is a written place whose value really reaches the leaf `parts`."""
        here: Any = self.values
        for part in parts:
            if not isinstance(here, dict) or part not in here:
                return False
            here = here[part]
        return parts[:length] in self._places


def _without_empty_sections(values: Mapping[str, Any], path: KeyPath) -> dict[str, Any]:
    """Drop sections whose keys are all commented out: YAML reads them as null."""
    kept = {}
    for key, value in values.items():
        inner = (*path, key)
        if isinstance(value, dict):
            kept[key] = _without_empty_sections(value, inner)
        elif value is not None or section_at(Settings, inner) is None or inner == ("backends",):
            kept[key] = value
    return kept


def _flat(values: Mapping[str, Any], path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    for key, value in values.items():
        if isinstance(value, dict) and section_at(Settings, (*path, key)) is not None:
            yield from _flat(value, (*path, key))
        else:
            yield (*path, key), value


def _variable(path: KeyPath) -> str:
    """Return the variable that set a key: its own, or that of the section around it."""
    present = {name.upper() for name in os.environ}
    for length in range(len(path), 0, -1):
        name = PREFIX + "__".join(str(part) for part in path[:length]).upper()
        if name in present:
            return name
    return PREFIX + dotted(path).upper()


def _is_ours(name: str) -> bool:
    upper = name.upper()
    return upper.startswith(PREFIX) and upper != CONFIG_VARIABLE and _SERVICE_LINK.fullmatch(upper) is None


def _stray_variables() -> Iterator[tuple[str, KeyPath]]:
    """Yield variables with our prefix that lead to no key, which the library skips without a word."""
    for name in sorted(os.environ):
        if not _is_ours(name):
            continue
        path: KeyPath = tuple(name.upper().removeprefix(PREFIX).lower().split("__"))
        parent = section_at(Settings, path[:-1])
        if parent is None or (len(path) == 1 and path[0] not in parent.model_fields):
            yield name, path
