"""The commit is what the installer wrote down, and nothing else."""

import pytest

from proxy.metrics.build import commit_in, commit_of


def test_an_installation_from_a_repository_names_its_commit():
    told = '{"url": "https://x/lanewise.git", "vcs_info": {"vcs": "git", "commit_id": "4f2d"}}'
    assert commit_in(told) == "4f2d"


@pytest.mark.parametrize("told", [None, "", "{", "[]", '{"dir_info": {}}', '{"vcs_info": 1}', '{"vcs_info": {}}'])
def test_anything_else_names_none(told):
    assert commit_in(told) == ""


def test_a_package_that_is_not_installed_has_none():
    assert commit_of("no-such-package-of-lanewise") == ""
