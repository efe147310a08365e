"""What a build adds to the files of the tree: the commit that it was made from.

A wheel keeps it beside its metadata (`extra_metadata/commit`), a source distribution as `.commit`, so that a wheel made
from that knows it too. An editable installation has none: the tree moves on under it.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FILE = ".commit"


class CommitHook(BuildHookInterface[Any]):
    """Writes the commit into what is built."""

    PLUGIN_NAME = "custom"
    _folder = ""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file (hatchling)."""
        commit = "" if version == "editable" else commit_of(Path(self.root))
        if not commit:
            return
        self._folder = tempfile.mkdtemp(prefix="lanewise-build-")
        file = Path(self._folder) / "commit"
        file.write_text(commit + "\n")
        if self.target_name == "wheel":
            build_data["extra_metadata"][str(file)] = "commit"
        else:
            build_data["force_include"][str(file)] = FILE

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove what `initialize` left (hatchling)."""
        if self._folder:
            shutil.rmtree(self._folder)


def commit_of(root: Path) -> str:
    """Return the commit of a tree, with `-dirty` where tracked files differ from it; "" where nobody knows.

    LANEWISE_COMMIT says it for a tree that came without its history (an image build); then the repository; then the
    file that a source distribution holds.
    """
    told = os.environ.get("LANEWISE_COMMIT", "").strip()
    if told:
        return told
    if (root / ".git").exists():
        commit = _git(root, "rev-parse", "--short=12", "HEAD")
        return f"{commit}-dirty" if commit and _git(root, "status", "--porcelain", "--untracked-files=no") else commit
    file = root / FILE
    return file.read_text().strip() if file.is_file() else ""


def _git(root: Path, *arguments: str) -> str:
    git = shutil.which("git")
    if git is None:
        return ""
    done = subprocess.run([git, "-C", root, *arguments], capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout.strip() if done.returncode == 0 else ""
