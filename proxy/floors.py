"""The oldest versions of its dependencies that lanewise runs on, and why: the table is `floors.toml` beside this file.

A package manager that is told to ignore requirements installs anything; what is older lacks fixes that a proxy in front
of production cannot be without. So they are looked at when the proxy starts, by `validate`, `doctor` and `make check`.
"""

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata, resources

_RELEASE = re.compile(r"(?:\d+!)?(\d+(?:\.\d+)*)(.*)")
_VERSION = re.compile(r"^Version:[ \t]*(\S+)", re.MULTILINE)
_BEFORE = re.compile(r"[-_.]?(?:a|b|c|rc|alpha|beta|pre|preview|dev)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Floor:
    """The oldest version of one package."""

    package: str
    version: str
    purpose: str
    """Why the package is here."""
    reason: str
    """Why not an older one: an advisory, or behaviour that lanewise relies on."""


@lru_cache(maxsize=1)
def floors() -> tuple[Floor, ...]:
    """Return the table, in the order of the packages' names."""
    text = resources.files("proxy").joinpath("floors.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    return tuple(Floor(name, row["floor"], row["purpose"], row["reason"]) for name, row in sorted(table.items()))


def installed_version(package: str) -> str:
    """Return the version of an installed package. The library's own way parses all its metadata, ten times as long.

    Raises:
        PackageNotFoundError: it is not installed.
    """
    text = metadata.distribution(package).read_text("METADATA") or ""
    found = _VERSION.search(text)
    return metadata.version(package) if found is None else found[1]


def too_old(version: Callable[[str], str] = installed_version) -> tuple[str, ...]:
    """Return a sentence for each installed package that is older than its floor.

    Args:
        version: returns what is installed; raises `PackageNotFoundError` for what is not. That is no fault here: some
            are optional, and without the others nothing could be imported.
    """
    found = []
    for floor in floors():
        try:
            installed = version(floor.package)
        except metadata.PackageNotFoundError:
            continue
        if older(installed, floor.version):
            found.append(
                f"{floor.package} {installed} is installed, and lanewise needs {floor.version} or newer "
                f"({floor.reason}): pip install '{floor.package}>={floor.version}'"
            )
    return tuple(found)


def disagreements(required: Mapping[str, str]) -> tuple[str, ...]:
    """Return a sentence for each package whose floor in the table is not the one that the project requires.

    Args:
        required: floor by package, as pyproject.toml has it.
    """
    table = {floor.package: floor.version for floor in floors()}
    found = [f"{name} >= {floor} is required, and proxy/floors.toml has no row that says why" for name, floor in
             required.items() if name not in table]  # fmt: skip
    found += [f"proxy/floors.toml has a row for {name}, which nothing requires" for name in table.keys() - required]
    for name in table.keys() & required:
        if table[name] != required[name]:
            found.append(f"{name}: {table[name]} in proxy/floors.toml, {required[name]} in pyproject.toml")
    return tuple(sorted(found))


def older(one: str, other: str) -> bool:
    """Return whether a version comes before another; a pre-release comes before its release (PEP 440)."""
    return _key(one) < _key(other)


def _key(version: str) -> tuple[tuple[int, ...], bool]:
    found = _RELEASE.match(version.strip().lstrip("v"))
    if found is None:
        return (), False
    numbers = tuple(int(part) for part in found[1].split("."))
    while numbers and numbers[-1] == 0:
        numbers = numbers[:-1]
    return numbers, _BEFORE.match(found[2]) is None
