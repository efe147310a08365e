"""The wheel holds what a user needs. tests/component/deploy/test_bundle.py installs it and lets it work."""

import os
import subprocess
import sys
import tarfile
import zipfile

import pytest

from proxy.metrics.build import COMMIT_FILE
from proxy.statuspage import ASSETS


@pytest.fixture(scope="module")
def dist(root, tmp_path_factory):
    """A source distribution, and the wheel that was made of it, out of reach of the repository."""
    out = tmp_path_factory.mktemp("dist")
    clean = {name: value for name, value in os.environ.items() if name != "LANEWISE_COMMIT"}
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out)]
    subprocess.run(command, cwd=root, check=True, capture_output=True, env=clean)
    return out


@pytest.fixture(scope="module")
def wheel(dist):
    return next(dist.glob("lanewise-*.whl"))


def test_the_top_level_names_are_exactly_the_two_packages(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name and ".data" not in name}
    assert tops == {"proxy", "loadgen"}


def test_the_shipped_configuration_and_profiles_are_inside(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    shipped = [name.split("/share/lanewise/")[1] for name in names if "/share/lanewise/" in name]
    assert {"config/minimal.yaml", "config/sim/8b.yaml", "config/workloads/mixed.yaml"} <= set(shipped)


def test_the_files_of_the_status_page_are_inside_with_the_licence_of_its_charts(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    wanted = {*ASSETS, "uPlot.LICENSE"}
    assert {name.rpartition("/")[2] for name in names if name.startswith("proxy/statuspage/assets/")} == wanted


def test_what_is_needed_to_deploy_is_inside(wheel, root):
    names = zipfile.ZipFile(wheel).namelist()
    shipped = {name.split("/share/lanewise/")[1] for name in names if "/share/lanewise/" in name}
    tree = {
        str(path.relative_to(root))
        for folder in ("config", "deploy", "grafana")
        for path in (root / folder).rglob("*")
        if path.is_file()
    }
    assert shipped == tree


def test_every_module_and_file_of_the_packages_is_inside(wheel, root):
    tree = {
        str(path.relative_to(root))
        for package in ("proxy", "loadgen")
        for path in (root / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {
        name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info" not in name and ".data" not in name
    } == tree


def test_the_commit_is_inside_though_the_wheel_was_made_away_from_the_repository(wheel, root):
    if not (root / ".git").exists():
        pytest.skip("this tree is no repository: nobody knows its commit")
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(f".dist-info/{COMMIT_FILE}"))
        commit = archive.read(name).decode().strip().removesuffix("-dirty")
    assert len(commit) == 12
    subprocess.run(["git", "-C", str(root), "cat-file", "-e", f"{commit}^{{commit}}"], check=True)


def test_the_source_distribution_is_enough_to_develop_with(dist):
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "Makefile",
        "tools/bootstrap.sh",
        "tests/conftest.py",
        "requirements.lock",
        ".ci/run",
        "docs/metrics.md",
    } <= names
