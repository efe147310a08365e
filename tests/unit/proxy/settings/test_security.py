"""What of `auth`, `tls` and `trusted_proxies` cannot work, and what works and is dangerous."""

import re

import pytest
import yaml
from pydantic import ValidationError

from proxy.keys import read_keyring
from proxy.settings import Settings, warnings
from proxy.settings.security import reads_files

HTTPS = {"url": "https://engine:8000", "name": "engine"}


def settings(**document):
    return Settings.model_validate({"backends": ["http://127.0.0.1:8000"], **document})


def problems(**document):
    with pytest.raises(ValidationError) as caught:
        settings(**document)
    return [(one.key, one.text) for one in caught.value.errors()[0]["ctx"]["problems"]]


def warned(**document):
    return {one.key: one.text for one in warnings(settings(**document))}


@pytest.mark.parametrize("key", ["key", "client_ca"])
def test_without_a_certificate_nothing_is_encrypted(key):
    told = "there is no tls.certificate, so nothing is encrypted; name it, too"
    assert problems(tls={key: "there"}) == [(f"tls.{key}", told)]


@pytest.mark.parametrize(("key", "value"), [("ca_file", "there"), ("insecure", True)])
def test_a_plain_backend_has_no_certificate(key, value):
    backend = {"url": "http://engine:8000", key: value}
    told = "http://engine:8000 is not encrypted; write https://"
    assert problems(backends=[backend]) == [(f"backends[0].{key}", told)]


def test_a_certificate_is_checked_or_not():
    told = "true, beside a ca_file: either its certificate is checked or it is not"
    assert problems(backends=[{**HTTPS, "ca_file": "there", "insecure": True}]) == [("backends[0].insecure", told)]


def test_an_engine_has_one_key():
    told = "there is also an api_key_file; one key is enough"
    backend = {**HTTPS, "api_key_file": "there", "api_key_env": "KEY"}
    assert problems(backends=[backend]) == [("backends[0].api_key_env", told)]


@pytest.mark.parametrize("admin", ["0.0.0.0:9100", "[::]:9100", "10.0.0.1:9100"])
def test_an_admin_listener_on_the_network_without_a_key_is_warned_about(admin):
    assert "asks for no key" in warned(admin=admin)["admin"]
    assert warned(admin=admin, auth={"admin_key_file": "there"}) == {}


def test_the_admin_listener_is_on_loopback_by_default():
    assert settings().admin.is_loopback
    assert settings().listen.is_loopback
    assert warned() == {}


def test_keys_that_come_unencrypted_are_warned_about_unless_something_in_front_encrypts():
    auth = {"keys_file": "there"}
    assert "keys come to 0.0.0.0:8080 unencrypted" in warned(listen="0.0.0.0:8080", auth=auth)["tls.certificate"]
    assert warned(listen="0.0.0.0:8080", auth=auth, tls={"certificate": "there"}) == {}
    assert warned(listen="0.0.0.0:8080", auth=auth, trusted_proxies=["10.0.0.0/8"]) == {}
    assert warned(auth=auth) == {}


def test_insecure_is_warned_about_loudly():
    told = warned(backends=[{**HTTPS, "insecure": True}])["backends[0].insecure"]
    assert "whatever certificate engine shows is taken" in told
    assert "can read and change every prompt and answer" in told


@pytest.mark.parametrize(
    ("document", "reads"),
    [
        ({}, False),
        ({"auth": {"keys_file": "there"}}, True),
        ({"auth": {"admin_key_env": "KEY"}}, True),
        ({"tls": {"certificate": "there"}}, True),
        ({"backends": [HTTPS]}, True),
        ({"backends": [{"url": "http://engine:1", "api_key_env": "KEY"}]}, True),
    ],
)
def test_only_what_names_a_file_or_a_variable_has_to_be_read(document, reads):
    assert reads_files(settings(**document)) is reads


@pytest.mark.parametrize("name", ["", "1KEY", "MY KEY", "KEY=1", "K" * 129])
def test_a_variable_has_a_name_that_a_shell_can_set(name):
    with pytest.raises(ValidationError, match=r"auth\.keys_env"):
        settings(auth={"keys_env": name})


def test_every_example_of_the_page_is_a_configuration(root):
    text = (root / "docs/security.md").read_text()
    blocks = [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)]
    assert len(blocks) >= 5
    for block in blocks:
        assert settings(**block).model_dump()


def test_the_key_file_of_the_page_can_be_read(root, tmp_path):
    text = (root / "docs/security.md").read_text()
    (listed,) = re.findall(r"^```\n(# one key per line.*?)^```", text, re.MULTILINE | re.DOTALL)
    path = tmp_path / "keys"
    path.write_text(listed)
    path.chmod(0o600)
    ring = read_keyring("auth.keys", path, None, {})
    assert sorted(ring.tenants.values()) == ["batch", "search"]
    assert len(ring) == 3
