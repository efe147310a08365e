"""Places that tests read."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """Public traces and recorded bytes, laid beside the repository; a fresh machine does not have them."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("public traces and recorded fixtures are not beside the repository")
    return folder
