"""Where the data files are that come with the product: engine profiles, workload profiles, presets, dashboards."""

import sys
from pathlib import Path

from loadgen.failure import UsageError


def roots() -> tuple[Path, ...]:
    """Return the folders that may hold the shipped files: the source tree first, then the installed share."""
    return Path(__file__).resolve().parent.parent, Path(sys.prefix) / "share" / "lanewise"


def shipped_names(folder: str, suffix: str = ".yaml") -> list[str]:
    """Return the names, without suffix and sorted, of the shipped files in `folder` (like "config/sim")."""
    return sorted({path.stem for root in roots() for path in (root / folder).glob(f"*{suffix}")})


def locate(folder: str, name: str, suffix: str = ".yaml") -> Path:
    """Return the file that `name` means: a path as it stands, else a shipped file of that name.

    Args:
        folder: where shipped files of this kind are, like "config/sim".
        name: a path, or the name of a shipped file without its suffix.
        suffix: with its dot.

    Raises:
        UsageError: neither exists; the sentence lists the shipped names.
    """
    asked = Path(name)
    if asked.is_file():
        return asked
    if asked.name == name:
        for root in roots():
            path = root / folder / f"{name}{suffix}"
            if path.is_file():
                return path
    names = ", ".join(shipped_names(folder, suffix)) or "none found"
    raise UsageError(f"{name}: no such file, and no shipped {folder} of that name (shipped: {names})")
