"""The run folder: `manifest.json` and `shots.jsonl`, readable whatever moment the run was killed at."""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import orjson

from loadgen.failure import StopError, UsageError
from loadgen.result import Result

MANIFEST_SCHEMA = "lanewise.run/1"
MANIFEST = "manifest.json"
SHOTS = "shots.jsonl"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """One run on disk."""

    path: Path

    def manifest(self) -> dict[str, Any]:
        """Read the manifest.

        Raises:
            UsageError: the folder holds no readable manifest of a version known here.
        """
        file = self.path / MANIFEST
        try:
            manifest = orjson.loads(file.read_bytes())
        except FileNotFoundError:
            raise UsageError(f"{self.path}: no {MANIFEST} in it, so this is not a run folder") from None
        except (OSError, ValueError) as error:
            raise UsageError(f"{file}: cannot be read: {error}") from None
        if not isinstance(manifest, dict) or manifest.get("schema") != MANIFEST_SCHEMA:
            raise UsageError(f"{file}: schema is not {MANIFEST_SCHEMA}, the one that this version reads")
        return manifest

    def note(self, **facts: Any) -> None:
        """Add facts to the manifest of a run that is over."""
        _write_manifest(self.path, self.manifest() | facts)

    def results(self) -> Iterator[Result]:
        """Read the shots one by one, in the order they finished. A cut last line (kill -9, full disk) is left out.

        Raises:
            UsageError: a line other than the last cannot be read.
        """
        file = self.path / SHOTS
        try:
            with file.open("rb") as lines:
                yield from _results(file, lines)
        except FileNotFoundError:
            raise UsageError(f"{file}: missing") from None


def _results(file: Path, lines: IO[bytes]) -> Iterator[Result]:
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            return
        try:
            result = Result.from_line(orjson.loads(line))
        except (ValueError, TypeError, AttributeError) as error:
            raise UsageError(f"{file}:{number}: not a line of this journal: {error}") from None
        yield result


def refuse_used(path: Path) -> None:
    """Check that a run may be written to `path`.

    Raises:
        UsageError: it is a file, or a folder with something in it.
    """
    if path.exists() and not path.is_dir():
        raise UsageError(f"--out {path}: is a file; give a new folder")
    if path.is_dir() and any(path.iterdir()):
        raise UsageError(f"--out {path}: exists and is not empty; give a new folder, a run is never overwritten")


class Journal:
    """Writer of one run folder: the manifest at once, each shot as it finishes, `flush` every second by its owner."""

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        """Create the folder and write the manifest with `complete` false.

        Raises:
            UsageError: the folder is in use already, or cannot be made.
            StopError: the disk takes no manifest.
        """
        refuse_used(path)
        self.path = path
        self._lost: StopError | None = None
        self._manifest = {"schema": MANIFEST_SCHEMA, "complete": False, **manifest}
        self._pending = bytearray()
        """Lines in one piece of memory: many small ones scatter over the heap, and it is never given back."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._shots = (path / SHOTS).open("wb", buffering=0)
        except OSError as error:
            raise UsageError(f"--out {path}: cannot be written: {error.strerror}") from None
        try:
            _write_manifest(self.path, self._manifest)
        except StopError:
            self._shots.close()
            raise

    def add(self, result: Result) -> None:
        """Take one finished shot; it reaches the file with the next flush."""
        self._pending += orjson.dumps(result.line(), option=orjson.OPT_APPEND_NEWLINE)

    def flush(self) -> None:
        """Write what has come since the last flush.

        Raises:
            StopError: the disk does not take it, now or at an earlier flush. Nothing is written any more then: the last
                line may be cut, and what would follow it could not be read.
        """
        if self._lost is not None:
            raise self._lost
        block, self._pending = self._pending, bytearray()
        try:
            with _told(self.path):
                _write_all(self._shots, block)
        except StopError as error:
            self._lost = error
            self._shots.close()
            raise

    def note(self, **facts: Any) -> None:
        """Add facts to the manifest and write it."""
        self._manifest.update(facts)
        _write_manifest(self.path, self._manifest)

    def discard(self) -> None:
        """Remove the folder again: nothing was sent, and the next attempt may use its name.

        What cannot be removed stays: why the run did not begin is the more important thing to say.
        """
        self._shots.close()
        shutil.rmtree(self.path, ignore_errors=True)

    def close(self, **facts: Any) -> RunFolder:
        """Write the rest and the last facts; `complete` is among them when the run was whole.

        Raises:
            StopError: the disk does not take them.
        """
        self.flush()
        self._shots.close()
        self.note(**facts)
        return RunFolder(self.path)


def _write_manifest(path: Path, manifest: dict[str, Any]) -> None:
    """Replace the file in one step, so that a reader never sees half of it."""
    draft = path / (MANIFEST + ".new")
    with _told(path):
        try:
            draft.write_bytes(orjson.dumps(manifest, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
            draft.replace(path / MANIFEST)
        except OSError:
            draft.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """Say in one sentence that the disk does not take what is written inside."""
    try:
        yield
    except OSError as error:
        raise StopError(
            f"{path}: cannot be written: {error.strerror}; the run stops here, is not complete, and what was written "
            "until now can be read. Make room, or give another folder with --out"
        ) from None


def _write_all(file: IO[bytes], block: bytes | bytearray) -> None:
    view = memoryview(block)
    while view:
        view = view[file.write(view) :]
