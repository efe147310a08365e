"""The folder of a walkthrough: what was done, under which conditions, so that it goes on where it stopped."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from loadgen.failure import StopError, UsageError
from loadgen.journal import RunFolder

SCHEMA = "lanewise.walkthrough/1"
FILE = "walkthrough.json"


@dataclass(slots=True)
class State:
    """What is known so far."""

    path: Path
    conditions: Mapping[str, Any]
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Step → what it found; only steps that are done."""

    @classmethod
    def opened(cls, path: Path, conditions: Mapping[str, Any]) -> "State":
        """Open the folder of a walkthrough, new or begun.

        Raises:
            UsageError: it holds something else, or was begun under other conditions.
            StopError: it cannot be made.
        """
        file = path / FILE
        if not file.exists():
            if path.exists() and (not path.is_dir() or any(path.iterdir())):
                raise UsageError(f"--out {path}: holds something that is no walkthrough; give a new folder")
            state = cls(path, conditions)
            state.write()
            return state
        try:
            document = orjson.loads(file.read_bytes())
        except (OSError, ValueError) as error:
            raise UsageError(f"{file}: cannot be read: {error}") from None
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise UsageError(f"{file}: schema is not {SCHEMA}, the one that this version reads")
        begun = document.get("conditions", {})
        other = [name for name in conditions if begun.get(name) != conditions[name]]
        if other:
            told = ", ".join(f"{name} was {begun.get(name)!r} and is {conditions[name]!r}" for name in other)
            raise UsageError(f"--out {path}: was begun under other conditions ({told}); give a new folder")
        return cls(path, conditions, dict(document.get("steps", {})))

    def write(self) -> None:
        """Write what is known.

        Raises:
            StopError: the disk does not take it.
        """
        document = {"schema": SCHEMA, "conditions": self.conditions, "steps": self.steps}
        draft = self.path / f"{FILE}.new"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
            draft.replace(self.path / FILE)
        except OSError as error:
            raise StopError(f"{self.path}: cannot be written: {error.strerror}") from None

    def done(self, step: str, found: dict[str, Any]) -> None:
        """Note that a step is done."""
        self.steps[step] = found
        self.write()

    def run_folder(self, name: str) -> tuple[RunFolder, bool]:
        """Return where a run goes, and whether it is already there and whole.

        A run that was broken off stays as it is; the next try gets a number.
        """
        for number in range(1, 1000):
            path = self.path / (name if number == 1 else f"{name}-{number}")
            if not path.exists() or not any(path.iterdir()):
                return RunFolder(path), False
            if RunFolder(path).manifest().get("complete"):
                return RunFolder(path), True
        raise StopError(f"{self.path}: {name} was tried too often; begin a new walkthrough")
