"""The commit is what the installer wrote down, and nothing else."""

import pytest

from proxy.metrics.build import COMMIT_FILE, commit_in, commit_of, release_of


def test_an_installation_from_a_repository_names_its_commit():
    told = '{"url": "https://x/lanewise.git", "vcs_info": {"vcs": "git", "commit_id": "4f2d"}}'
    assert commit_in(told) == "4f2d"


@pytest.mark.parametrize("told", [None, "", "{", "[]", '{"dir_info": {}}', '{"vcs_info": 1}', '{"vcs_info": {}}'])
def test_anything_else_names_none(told):
    assert commit_in(told) == ""


def test_a_package_that_is_not_installed_has_none():
    assert commit_of("no-such-package-of-lanewise") == ""


@pytest.fixture
def wheel_of(tmp_path, monkeypatch):
    """Installs a package of one metadata folder, as a wheel would."""

    def install(name, files):
        folder = tmp_path / f"{name}-1.2.dist-info"
        for path, text in ({"METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n"} | files).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        monkeypatch.syspath_prepend(tmp_path)

    return install


def test_a_wheel_that_was_built_in_a_repository_says_its_commit_with_its_version(wheel_of):
    wheel_of("built_lanewise", {COMMIT_FILE: "4f2d-dirty\n"})
    assert release_of("built_lanewise") == "1.2 (commit 4f2d-dirty)"


def test_a_wheel_from_elsewhere_says_its_version_alone(wheel_of):
    wheel_of("other_lanewise", {})
    assert release_of("other_lanewise") == "1.2"
