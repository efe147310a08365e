"""Which build runs, as far as its installation says."""

import json
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, version

COMMIT_FILE = "extra_metadata/commit"
"""Where a wheel keeps the commit that it was built from; `hatch_build.py` writes it."""


@cache
def commit_of(package: str) -> str:
    """Return the commit that a package was built or installed from, "" when nobody wrote one down.

    A wheel that was built in a repository holds it. Installers write it into `direct_url.json` (PEP 610) when they
    install from a repository themselves.
    """
    try:
        found = distribution(package)
    except PackageNotFoundError:
        return ""
    return (found.read_text(COMMIT_FILE) or "").strip() or commit_in(found.read_text("direct_url.json"))


@cache
def version_of(package: str) -> str:
    """Return the version of a package; its files are read once."""
    return version(package)


def release_of(package: str) -> str:
    """Return version and, where it is known, commit of a package, as people read it: `0.1.0 (commit 4f2d…)`."""
    commit = commit_of(package)
    return f"{version(package)} (commit {commit})" if commit else version(package)


def commit_in(direct_url: str | None) -> str:
    """Return the commit that the text of a `direct_url.json` names, or ""."""
    try:
        document = json.loads(direct_url or "{}")
    except ValueError:
        return ""
    origin = document.get("vcs_info") if isinstance(document, dict) else None
    commit = origin.get("commit_id") if isinstance(origin, dict) else None
    return commit if isinstance(commit, str) else ""
