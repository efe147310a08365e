"""The last configurations that were in force, what was judged of them, and the file that remembers them."""

import json
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from proxy.settings import Settings

KEPT = 10
KEEP, BAD = "keep", "bad"
VERDICTS = (KEEP, BAD)
LARGEST_FILE = 4 * 2**20
"""Of the state directory; what lanewise writes there is far smaller."""
_SCHEMA = "lanewise.history/1"
_SYSTEM = Path("/var/lib/lanewise")


@dataclass(slots=True)
class Entry:
    """One configuration that was in force."""

    sha: str
    text: str
    """What differs from the defaults, as a file: secrets are left out."""
    since: float
    """When it came into force last, Unix seconds."""
    verdict: str | None = None
    """`keep`, `bad`, or None: nobody has judged it."""
    reason: str = ""


@dataclass(slots=True)
class History:
    """Configurations in the order in which they came into force, at most `KEPT`; one of them is in force."""

    entries: list[Entry] = field(default_factory=list)
    current: str | None = None
    """Hash of the one in force."""

    def enter(self, sha: str, text: str, since: float) -> None:
        """Put a configuration in force; one that is known keeps what was judged of it."""
        known = self.find(sha) or Entry(sha, text, since)
        known.text, known.since = text, since
        self.entries = [entry for entry in self.entries if entry is not known][-(KEPT - 1) :]
        self.entries.append(known)
        self.current = sha

    def return_to(self, sha: str, since: float) -> None:
        """Put a known configuration in force again, at its old place: what came after it stays after it.

        Raises:
            KeyError: it is not known.
        """
        entry = self.find(sha)
        if entry is None:
            raise KeyError(sha)
        entry.since, self.current = since, sha

    def find(self, sha: str | None) -> Entry | None:
        """Return the configuration with a hash, if it is known."""
        return next((entry for entry in self.entries if entry.sha == sha), None)

    @property
    def in_force(self) -> Entry | None:
        """The one in force."""
        return self.find(self.current)

    def earlier_good(self) -> Entry | None:
        """Return the latest before the one in force that was not judged bad."""
        shas = [entry.sha for entry in self.entries]
        before = self.entries[: shas.index(self.current)] if self.current in shas else []
        return next((entry for entry in reversed(before) if entry.verdict != BAD), None)

    def judge(self, verdict: str, reason: str) -> None:
        """Write down what is thought of the one in force."""
        entry = self.in_force
        if entry is not None:
            entry.verdict, entry.reason = verdict, reason


def state_directory(settings: Settings, environ: Mapping[str, str], system: Path = _SYSTEM) -> Path | None:
    """Return where the history belongs, or None: nowhere.

    Args:
        settings: the directory that they name comes first. Without it, a proxy on a port of chance remembers nothing.
        environ: for `XDG_STATE_HOME`.
        system: used when it is there and can be written.
    """
    if settings.state_dir is not None:
        return settings.state_dir
    if not settings.admin.port:
        return None
    if environ.get("XDG_STATE_HOME"):
        return Path(environ["XDG_STATE_HOME"]) / "lanewise"
    return system if os.access(system, os.W_OK | os.X_OK) else None


class HistoryFile:
    """Keeps a history on disk, for one proxy of a machine.

    Args:
        directory: made when it is missing.
        port: of the admin listener: several proxies may share the directory.
    """

    def __init__(self, directory: Path, port: int) -> None:
        self.path = directory / f"history-{port}.json"
        self.in_force = directory / f"in-force-{port}.yaml"
        """The configuration in force, as a file to copy from."""

    def read(self) -> History:
        """Return what is written there; an empty history when nothing is.

        Raises:
            OSError: it cannot be read.
            ValueError: it is no history.
        """
        document = read_document(self.path)
        if document is None:
            return History()
        if not isinstance(document, dict) or document.get("schema") != _SCHEMA:
            raise ValueError(f"its schema is not {_SCHEMA}")
        return History([_entry(one) for one in document["entries"]], document["current"])

    def write(self, history: History) -> None:
        """Replace both files, each whole or not at all.

        Raises:
            OSError: they cannot be written.
        """
        directory = self.path.parent
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        document = {
            "schema": _SCHEMA,
            "current": history.current,
            "entries": [asdict(entry) for entry in history.entries],
        }
        replace_file(self.path, json.dumps(document, ensure_ascii=False, indent=1) + "\n")
        entry = history.in_force
        if entry is not None:
            head = f"# Configuration {entry.sha}, written by lanewise. Secrets are left out.\n"
            replace_file(self.in_force, head + entry.text)


def _entry(document: Any) -> Entry:
    try:
        entry = Entry(**document)
    except TypeError as error:
        raise ValueError(f"an entry is not understood ({error})") from None
    words = (entry.sha, entry.text, entry.reason)
    since: object = entry.since
    known = isinstance(since, int | float) and (entry.verdict is None or entry.verdict in VERDICTS)
    if not all(isinstance(word, str) for word in words) or not known:
        raise ValueError("an entry is not understood")
    return entry


def read_document(path: Path) -> Any:
    """Return the JSON document of a file of the state directory; None when the file is not there.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no regular file, larger than any that lanewise writes, or no JSON.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is no regular file")  # to open a pipe would wait for whoever writes into it
        if found.st_size > LARGEST_FILE:
            raise ValueError(f"it is larger than {LARGEST_FILE // 2**20} MiB")
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def replace_file(path: Path, text: str) -> None:
    """Write a file anew, whole or not at all, readable by its owner alone.

    Raises:
        OSError: it cannot be written; then the old one is as it was.
    """
    file, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        # A text from a shell may hold bytes that are no UTF-8: escaped, JSON still says the same.
        with os.fdopen(file, "w", encoding="utf-8", errors="backslashreplace") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(opened.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
