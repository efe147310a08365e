"""Hold the table of floors against pyproject.toml and against what is installed: part of `make check`."""

import re
import sys
import tomllib
from pathlib import Path

from proxy.floors import disagreements, too_old

ROOT = Path(__file__).resolve().parent.parent
_FLOOR = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*])?\s*>=\s*([^,;\s]+)")


def required(root: Path = ROOT) -> dict[str, str]:
    """Return the floor of each package that lanewise itself depends on, extras included.

    Raises:
        ValueError: a requirement without a floor.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project.get("optional-dependencies", {})
    found = {}
    for text in (*project["dependencies"], *(one for extra in extras.values() for one in extra)):
        floor = _FLOOR.match(text)
        if floor is None:
            raise ValueError(
                f"pyproject.toml: {text} has no floor; write {text}>=VERSION, and why in proxy/floors.toml"
            )
        found[floor[1].lower()] = floor[2]
    return found


def main() -> int:
    """Print what does not agree or is too old; return 1 when anything is."""
    try:
        said = (*disagreements(required()), *too_old())
    except ValueError as error:
        said = (str(error),)
    for sentence in said:
        print(sentence)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
