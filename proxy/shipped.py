"""Where the files are that come with lanewise and are read by people and by other programs, not by lanewise itself."""

import sys
from pathlib import Path

FOLDERS = ("config", "grafana", "deploy")


def folder() -> Path | None:
    """Return the folder that holds them: the source tree, else the share of the environment; None: there is neither."""
    places = (Path(__file__).resolve().parent.parent, Path(sys.prefix) / "share" / "lanewise")
    return next((place for place in places if all((place / name).is_dir() for name in FOLDERS)), None)


def shipped(where: Path) -> list[str]:
    """Return the paths of all of them, sorted, relative to `where`."""
    found = (path for name in FOLDERS for path in (where / name).rglob("*") if path.is_file())
    return sorted(str(path.relative_to(where)) for path in found)
