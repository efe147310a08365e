"""Which mode a request has, and who may choose."""

from ipaddress import ip_network
from types import SimpleNamespace

import pytest

from proxy.answers import EndedError
from proxy.modes import HEADER, Modes
from proxy.policy.limits import Mode

TRUSTED = [ip_network("10.0.0.0/8"), ip_network("fd00::/8")]


def request(remote="10.1.2.3", **headers):
    return SimpleNamespace(remote=remote, headers={name.replace("_", "-"): value for name, value in headers.items()})


def asking(mode, remote="10.1.2.3"):
    return request(remote, **{HEADER.replace("-", "_"): mode})


def test_without_the_header_it_is_the_configured_one():
    assert Modes(Mode.OBSERVE, TRUSTED).of(request()) is Mode.OBSERVE


@pytest.mark.parametrize("remote", ["10.1.2.3", "::ffff:10.1.2.3", "fd00::1", "fd00::1%eth0"])
def test_a_trusted_peer_chooses(remote):
    assert Modes(Mode.ENFORCE, TRUSTED).of(asking(" Passthrough", remote)) is Mode.PASSTHROUGH


@pytest.mark.parametrize("remote", ["11.0.0.1", "::1", "", None, "somebody"])
def test_anybody_else_does_not(remote):
    assert Modes(Mode.ENFORCE, TRUSTED).of(asking("passthrough", remote)) is Mode.ENFORCE


def test_nobody_is_trusted_by_default():
    assert Modes().of(asking("passthrough", "127.0.0.1")) is Mode.ENFORCE


def test_a_mode_that_does_not_exist_is_told_to_a_trusted_peer_alone():
    with pytest.raises(EndedError) as ended:
        Modes(Mode.ENFORCE, TRUSTED).of(asking("dry-run"))
    assert (ended.value.status, ended.value.message) == (
        400,
        "x-lanewise-mode is 'dry-run'; allowed: enforce, observe, passthrough",
    )
    assert Modes(Mode.ENFORCE, TRUSTED).of(asking("dry-run", "11.0.0.1")) is Mode.ENFORCE
