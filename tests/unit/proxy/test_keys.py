"""API keys: what files and variables may hold, and that only digests stay."""

import os
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.keys import Keyring, Known, plain_key, read_key, read_keyring
from proxy.settings import ConfigurationError

ONE, TWO = "sk-first-key-0123456789", "sk-second-key-0123456789"
PRINTABLE = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters="#"), min_size=16)


@pytest.fixture
def keyfile(tmp_path):
    def write(text, mode=0o600):
        path = tmp_path / "keys"
        path.write_text(text)
        path.chmod(mode)
        return path

    return write


def sentences(reading, *args):
    with pytest.raises(ConfigurationError) as caught:
        reading(*args)
    return caught.value.sentences


def test_each_line_is_a_key_and_perhaps_its_tenant(keyfile):
    digest = sha256(b"sk-third-key-0123456789").hexdigest()
    path = keyfile(f"\ufeff# all of them\n\n{ONE}\n  {TWO}\tsearch  # of the search team\nsha256:{digest} batch\n")
    ring = read_keyring("auth.keys", path, None, {})
    assert len(ring) == 3
    assert ring.find(ONE).tenant is None
    assert ring.find(TWO).tenant == "search"
    assert ring.find("sk-third-key-0123456789").tenant == "batch"
    assert ring.tenants == {sha256(TWO.encode()).hexdigest(): "search", digest: "batch"}


@pytest.mark.parametrize("key", ["", ONE[:-1], ONE + "0", ONE.upper(), f" {ONE}", "sha256:" + "0" * 64, "ключ\udc80"])
def test_whatever_is_not_exactly_a_key_is_none(keyfile, key):
    assert read_keyring("auth.keys", keyfile(ONE), None, {}).find(key) is None


@given(st.lists(PRINTABLE, min_size=1, max_size=20), PRINTABLE)
def test_a_keyring_finds_its_keys_and_no_other(keys, other):
    ring = Keyring(Known(sha256(key.encode()).digest()) for key in keys)
    assert all(ring.find(key) is not None for key in keys)
    assert (ring.find(other) is not None) == (other in keys)


def test_two_keys_whose_digests_begin_alike_are_told_apart():
    digest = sha256(ONE.encode()).digest()
    twin = digest[:4] + bytes(28)
    assert Keyring([Known(twin, "twin"), Known(digest, "mine")]).find(ONE).tenant == "mine"


def test_keys_of_a_variable_and_of_a_file_both_count(keyfile):
    ring = read_keyring("auth.keys", keyfile(ONE), "KEYS", {"KEYS": f"{TWO} search,sk-another-0123456789"})
    assert [ring.find(key) is not None for key in (ONE, TWO, "sk-another-0123456789")] == [True] * 3


def test_a_keyring_holds_and_shows_no_key(keyfile):
    ring = read_keyring("auth.keys", keyfile(f"{ONE} search"), None, {})
    assert repr(ring) == "<Keyring of 1 keys>"
    assert ONE not in repr(vars(ring))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("short\n", ":1: a key has at least 16 characters; `openssl rand -hex 24` makes a good one"),
        (f"{ONE}\nsha256:12\n", ":2: behind sha256: come 64 hexadecimal digits"),
        (f"{ONE} a b\n", ":1: a line holds a key and, behind it, the name of its tenant; nothing more"),
        (
            f"{ONE} other\n",
            ":1: the name of a tenant is of letters, digits and . _ : -, and neither other nor none",
        ),
        (f'{ONE} a"b\n', ":1: the name of a tenant is of letters, digits and . _ : -, and neither other nor none"),
        ("sk-ключ-0123456789012\n", ":1: a key is of printable ASCII characters"),
        (f"{ONE} a\n{ONE} b\n", ":2: this key is there already, for somebody else"),
    ],
)
def test_a_bad_line_is_named_without_what_stands_there(keyfile, text, sentence):
    path = keyfile(text)
    assert sentences(read_keyring, "auth.keys", path, None, {}) == (f"{path}{sentence}",)


def test_all_bad_lines_are_named_at_once(keyfile):
    assert len(sentences(read_keyring, "auth.keys", keyfile("a\nb\nc\n"), None, {})) == 3


@pytest.mark.parametrize(("mode", "what"), [(0o644, "read"), (0o604, "read"), (0o602, "change")])
def test_a_file_that_everybody_may_read_is_refused(keyfile, mode, what):
    path = keyfile(ONE, mode)
    told = f"auth.keys_file: everybody on this machine may {what} {path} (mode {mode:o}): chmod o-rwx {path}"
    assert sentences(read_keyring, "auth.keys", path, None, {}) == (told,)


def test_a_file_that_its_group_may_read_will_do(keyfile):
    assert len(read_keyring("auth.keys", keyfile(ONE, 0o640), None, {})) == 1


def test_no_key_at_all_would_lock_everybody_out_and_is_refused(keyfile):
    path = keyfile("# none yet\n")
    told = f"auth.keys: {path} holds no key, so nobody could get in; write one per line"
    assert sentences(read_keyring, "auth.keys", path, None, {}) == (told,)


def test_what_cannot_be_read_is_said(tmp_path, keyfile):
    missing = tmp_path / "missing"
    assert sentences(read_keyring, "auth.keys", missing, None, {}) == (
        f"auth.keys_file: {missing} cannot be read: No such file or directory",
    )
    assert sentences(read_keyring, "auth.keys", tmp_path, None, {}) == (f"auth.keys_file: {tmp_path} is no file",)
    path = keyfile("")
    path.write_bytes(b"\xff\xfe")
    assert sentences(read_keyring, "auth.keys", path, None, {}) == (
        f"auth.keys_file: {path} is not UTF-8 text (byte 0)",
    )
    assert sentences(read_keyring, "auth.keys", None, "KEYS", {}) == (
        "auth.keys_env: the environment variable KEYS is not set",
    )
    path.write_bytes(b"")
    os.truncate(path, 17 * 2**20)
    assert sentences(read_keyring, "auth.keys", path, None, {}) == (f"auth.keys_file: {path} is larger than 16 MiB",)


def test_the_key_of_an_engine_is_the_first_line(keyfile):
    path = keyfile("# of the engine\n\nengine-key\n")
    assert read_key("backends[0].api_key", path, None, {}) == "engine-key"
    assert read_key("backends[0].api_key", None, "E", {"E": " engine-key "}) == "engine-key"
    assert read_key("backends[0].api_key", None, None, {}) is None


@pytest.mark.parametrize("value", ["", "  ", "two words", "with\x00nul", "schlüssel"])
def test_what_no_header_can_hold_is_no_key_of_an_engine(value):
    (told,) = sentences(read_key, "backends[0].api_key", None, "E", {"E": value})
    assert told.startswith("backends[0].api_key: the variable E holds no key")
    assert "words" not in told


def test_who_has_to_send_a_key_of_a_keyring_takes_the_first_that_stands_there(keyfile):
    path = keyfile(f"sha256:{'0' * 64}\n# of the scraper\n{ONE} scraper\n{TWO}\n")
    assert plain_key("auth.admin_key", path, None, {}) == ONE
    assert plain_key("auth.admin_key", None, "K", {"K": f"sha256:{'0' * 64}"}) is None
