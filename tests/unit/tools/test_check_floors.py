"""`make check` fails where a package is older than its floor, or table and project disagree."""

import os
import subprocess
import sys

import pytest

from tools.check_floors import required


@pytest.fixture
def with_old_aiohttp(tmp_path):
    """An environment in which an aiohttp with known holes is found first."""
    info = tmp_path / "aiohttp-3.9.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: aiohttp\nVersion: 3.9.1\n")
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


def run(root, *command, env=None):
    return subprocess.run([sys.executable, *command], cwd=root, env=env, capture_output=True, text=True, check=False)


def test_the_check_of_ci_passes_here_and_fails_on_an_old_aiohttp(root, with_old_aiohttp):
    assert (root / "Makefile").read_text().count("-m tools.check_floors") == 1
    good = run(root, "-m", "tools.check_floors")
    assert (good.returncode, good.stdout) == (0, "")
    bad = run(root, "-m", "tools.check_floors", env=with_old_aiohttp)
    assert bad.returncode == 1
    assert bad.stdout.startswith("aiohttp 3.9.1 is installed, and lanewise needs 3.14.3 or newer")


@pytest.mark.parametrize("command", ["serve", "validate"])
def test_the_proxy_neither_starts_nor_validates_on_an_old_aiohttp(root, with_old_aiohttp, command):
    done = run(root, "-m", "proxy", command, "--backend", "http://127.0.0.1:1", env=with_old_aiohttp)
    assert done.returncode == 1
    assert done.stderr.startswith("lanewise: aiohttp 3.9.1 is installed, and lanewise needs 3.14.3 or newer")


def test_a_requirement_without_a_floor_is_refused(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["aiohttp>=3.14.3,<4", "rich"]\n')
    with pytest.raises(ValueError, match="rich has no floor"):
        required(tmp_path)


def test_extras_count_too(root):
    assert required(root)["pyarrow"] == "18"
