"""The tree keeps its shape: tests mirror sources, and no module hides behind a name that says nothing."""

import re

import pytest

NAMES_THAT_SAY_NOTHING = {"utils", "util", "common", "helpers", "helper", "base", "manager", "misc"}


def sources(root):
    return [path for package in ("proxy", "loadgen") for path in (root / package).rglob("*.py")]


def test_no_module_has_a_name_that_says_nothing(root):
    assert [str(path) for path in sources(root) if path.stem in NAMES_THAT_SAY_NOTHING] == []


def test_every_unit_test_mirrors_a_source_file(root):
    unit = root / "tests/unit"
    strays = [
        str(test.relative_to(root)) for test in unit.rglob("test_*.py") if not _sources_of(root, test.relative_to(unit))
    ]
    assert strays == []


def _sources_of(root, test):
    stem = test.stem.removeprefix("test_")
    folder = root / test.parent
    return [path for path in (folder / f"{stem}.py", folder / stem / "__init__.py", folder) if path.exists()][:1] and (
        (folder / f"{stem}.py").exists() or (folder / stem).is_dir()
    )


@pytest.mark.parametrize("package", ["proxy/wire", "proxy/policy"])
def test_every_pure_module_has_a_unit_test(root, package):
    tested = {path.stem.removeprefix("test_") for path in (root / "tests/unit" / package).rglob("test_*.py")}
    modules = {path.stem for path in (root / package).glob("*.py")} - {
        "__init__",
        "limits",
        "ticket",
        "outcome",
        "facts",
    }
    assert modules - tested == set()


def test_data_folders_are_not_importable_packages(root):
    assert [str(p) for name in ("config", "grafana", "tests") for p in (root / name).rglob("__init__.py")] == []


def test_no_pattern_has_a_possessive_group(root):
    """Before Python 3.11.5 they match wrongly, and Debian 12 has 3.11.2; a possessive class is right everywhere."""
    possessive = re.compile(r"re\.compile\(.*\)[*+?]\+")
    assert [str(path) for path in sources(root) if possessive.search(path.read_text())] == []
