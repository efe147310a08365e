"""Which build runs, as far as its installation says."""

import json
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution


@cache
def commit_of(package: str) -> str:
    """Return the commit that a package was installed from, "" when its installer did not write one down.

    Installers write it into `direct_url.json` (PEP 610) when they install from a repository; a wheel has none.
    """
    try:
        told = distribution(package).read_text("direct_url.json")
    except PackageNotFoundError:
        return ""
    return commit_in(told)


def commit_in(direct_url: str | None) -> str:
    """Return the commit that the text of a `direct_url.json` names, or ""."""
    try:
        document = json.loads(direct_url or "{}")
    except ValueError:
        return ""
    origin = document.get("vcs_info") if isinstance(document, dict) else None
    commit = origin.get("commit_id") if isinstance(origin, dict) else None
    return commit if isinstance(commit, str) else ""
