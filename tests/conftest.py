"""Places that tests read."""

from pathlib import Path

import pytest
from hypothesis import settings

from tools.prometheus.server import binaries

# A busy machine is no fault of the code: examples are bounded by count, not by time.
settings.register_profile("lanewise", deadline=None)
settings.load_profile("lanewise")

ROOT = Path(__file__).resolve().parent.parent
ALONE = tuple(
    ROOT / "tests" / path
    for path in (
        "component/loadgen/sim/test_server.py",
        "component/loadgen/test_corner.py",
        "e2e/test_agreement.py",
        "e2e/test_alerts.py",
        "e2e/test_demo.py",
        "e2e/test_leases.py",
        "e2e/test_monitoring.py",
        "e2e/test_readme.py",
        "e2e/test_scrape.py",
        "e2e/test_walkthrough.py",
        "e2e/test_workers.py",
    )
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts several processes and looks at the clock: beside other tests it would measure those."""
    for item in items:
        if item.path in ALONE:
            item.add_marker(pytest.mark.alone)


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


@pytest.fixture(scope="session")
def promtools():
    """Folder of prometheus and promtool; skips where there is neither a Prometheus nor apt."""
    try:
        return binaries()
    except FileNotFoundError as why:
        pytest.skip(str(why))
