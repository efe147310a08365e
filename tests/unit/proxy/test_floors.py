"""The oldest versions that lanewise runs on, and what is said of older ones."""

from importlib.metadata import PackageNotFoundError, version

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from proxy.floors import disagreements, floors, installed_version, older, too_old

PARTS = st.lists(st.integers(0, 30), min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts)))
SUFFIX = st.sampled_from(["", "a1", "b2", "rc1", ".dev3"])


def with_version(package, told):
    return lambda name: told if name == package else installed_version(name)


def test_nothing_that_is_installed_here_is_too_old():
    assert too_old() == ()


def test_an_old_aiohttp_is_named_with_its_reason_and_what_to_do():
    (sentence,) = too_old(with_version("aiohttp", "3.14.0"))
    assert sentence.startswith("aiohttp 3.14.0 is installed, and lanewise needs 3.14.3 or newer (")
    assert "CVE-2026-54273" in sentence
    assert sentence.endswith(": pip install 'aiohttp>=3.14.3'")


def test_what_is_not_installed_is_not_too_old():
    def nothing(name):
        raise PackageNotFoundError(name)

    assert too_old(nothing) == ()


def test_every_floor_has_a_purpose_and_a_reason():
    assert [one.package for one in floors() if not one.purpose or not one.reason or not one.version] == []


def test_the_version_that_is_read_is_the_one_that_the_library_tells():
    assert {one.package: installed_version(one.package) for one in floors()} == {
        one.package: version(one.package) for one in floors()
    }
    with pytest.raises(PackageNotFoundError):
        installed_version("a-package-that-nobody-has")


@given(PARTS, SUFFIX, PARTS)
def test_versions_compare_with_releases_as_packaging_has_it(one, suffix, other):
    assert older(one + suffix, other) == (Version(one + suffix) < Version(other))


@pytest.mark.parametrize("later", ["3.14.3", "3.14.3.post1", "3.14.3+local", "v3.14.10", "1!0.1", "4"])
def test_what_is_later_or_the_same_is_not_older(later):
    assert not older(later, "1!0.1" if "!" in later else "3.14.3")


def test_a_version_that_cannot_be_read_counts_as_older():
    assert older("unknown", "0.1")


def test_the_table_and_the_project_must_name_the_same_floors():
    required = {one.package: one.version for one in floors()}
    assert disagreements(required) == ()
    assert disagreements({**required, "aiohttp": "3.8"}) == (
        "aiohttp: 3.14.3 in proxy/floors.toml, 3.8 in pyproject.toml",
    )
    assert disagreements({**required, "left-pad": "1"}) == (
        "left-pad >= 1 is required, and proxy/floors.toml has no row that says why",
    )
    del required["rich"]
    assert disagreements(required) == ("proxy/floors.toml has a row for rich, which nothing requires",)
