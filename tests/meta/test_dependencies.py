"""The floors of the dependencies have reasons, and what is installed is not below them."""

import re
import tomllib
from importlib.metadata import version

import pytest
from packaging.requirements import Requirement
from packaging.version import Version


def floors_of_the_project(root):
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    optional = [text for extra in project.get("optional-dependencies", {}).values() for text in extra]
    requirements = [Requirement(text) for text in (*project["dependencies"], *optional)]
    return {req.name: next(spec.version for spec in req.specifier if spec.operator == ">=") for req in requirements}


def floors_of_the_table(root):
    rows = re.findall(r"^\| ([a-z][a-z-]*) \| ([\d.]+) \|", (root / "docs/dependencies.md").read_text(), re.MULTILINE)
    return dict(rows)


def test_every_dependency_has_a_row_with_its_floor_and_reason(root):
    project = floors_of_the_project(root)
    table = floors_of_the_table(root)
    assert {name: Version(floor) for name, floor in table.items()} == {
        name: Version(floor) for name, floor in project.items()
    }


def test_nothing_that_is_installed_is_older_than_its_floor(root):
    too_old = {
        name: version(name)
        for name, floor in floors_of_the_project(root).items()
        if Version(version(name)) < Version(floor)
    }
    assert too_old == {}


def test_an_aiohttp_from_before_the_security_fixes_would_be_noticed(root):
    assert Version(floors_of_the_project(root)["aiohttp"]) > Version("3.14.1")


def test_every_locked_package_is_pinned_with_a_hash(root):
    text = (root / "requirements.lock").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip()]
    assert len(lines) > 20
    assert [line for line in lines if "==" not in line or "--hash=sha256:" not in line] == []


@pytest.mark.parametrize("package", ["proxy", "loadgen"])
def test_both_packages_tell_type_checkers_that_they_are_typed(root, package):
    assert (root / package / "py.typed").is_file()
