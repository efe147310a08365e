"""Where a trace file comes from, kept in `FILE.origin.json` beside it, so that a run's manifest can name it.

A trace holds requests and nothing else, in formats that others read too. The file beside it belongs to exactly these
bytes: when its hash does not fit, it is not believed.
"""

import hashlib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson

from loadgen.failure import StopError

SUFFIX = ".origin.json"


def sha256(path: Path) -> str:
    """Return the hash of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def beside(path: Path) -> Path:
    """Return where the origin of a trace is kept."""
    return path.with_name(path.name + SUFFIX)


def steps_of(path: Path) -> list[dict[str, Any]]:
    """Return what was done to get this file, oldest first; empty: not known."""
    try:
        document = orjson.loads(beside(path).read_bytes())
    except (OSError, ValueError):
        return []
    fits = isinstance(document, dict) and document.get("sha256") == sha256(path)
    steps = document.get("steps") if fits else None
    return steps if isinstance(steps, list) else []


def provenance_of(path: Path) -> dict[str, Any]:
    """Return `{"origin": [step, …]}` for a manifest; empty when nothing is known."""
    steps = steps_of(path)
    return {"origin": steps} if steps else {}


def step(command: str, sources: tuple[Path, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Describe one step: what was done to which files, with which options."""
    return {
        "command": command,
        "sources": [{"name": path.name, "sha256": sha256(path), **provenance_of(path)} for path in sources],
        "options": {name: value for name, value in options.items() if value is not None},
        "lanewise": version("lanewise"),
    }


def write(path: Path, last: dict[str, Any]) -> None:
    """Keep the origin of a file that was just written. One source hands its own steps on.

    Raises:
        StopError: the disk does not take it.
    """
    sources = last["sources"]
    earlier = sources[0].get("origin", []) if len(sources) == 1 else []
    if earlier:
        sources = [{name: value for name, value in sources[0].items() if name != "origin"}]
    document = {"sha256": sha256(path), "steps": [*earlier, last | {"sources": sources}]}
    try:
        beside(path).write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
    except OSError as error:
        raise StopError(f"{beside(path)}: cannot be written: {error.strerror}") from None
