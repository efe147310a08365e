"""What a configuration names, read as a whole: what a reload takes for new."""

import pytest

from proxy import credentials
from proxy.credentials import read
from proxy.settings import ConfigurationError, Settings

FIRST, SECOND = "k" * 24, "s" * 24


@pytest.fixture
def keys(tmp_path):
    file = tmp_path / "keys"
    file.touch(mode=0o600)
    file.write_text(FIRST, "ascii")
    return file


def naming(file):
    return Settings.model_validate({"backends": ["http://127.0.0.1:8000"], "auth": {"keys_file": str(file)}})


def test_a_file_that_is_as_it_was_is_not_new(keys):
    assert read(naming(keys), {}).renewed(read(naming(keys), {})) == ()


def test_what_changes_while_it_is_read_is_new_to_the_next_reload(keys, monkeypatch):
    read_keyring = credentials.read_keyring

    def changed_behind(*arguments):
        ring = read_keyring(*arguments)
        keys.write_text(SECOND, "ascii")
        return ring

    monkeypatch.setattr(credentials, "read_keyring", changed_behind)
    before = read(naming(keys), {})
    monkeypatch.undo()
    after = read(naming(keys), {})
    assert before.clients.find(FIRST) is not None
    assert after.clients.find(SECOND) is not None
    assert after.renewed(before) == ("auth.keys_file",)


def test_a_file_that_is_missing_is_told_in_a_sentence(tmp_path):
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read(naming(tmp_path / "nothing"), {})
