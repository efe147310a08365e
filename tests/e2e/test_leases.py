"""Three real proxies over one engine and a real Redis, through kills, freezes and a cut network: the small form."""

import shutil

import pytest


def test_the_limit_holds_whatever_happens(acceptance):
    if shutil.which("redis-server") is None:
        pytest.skip("there is no redis-server here: tools/system-packages.sh installs it")
    document = acceptance("leases", "--admissions", 700, "--clients", 100, timeout=400)
    assert document["checks"] == dict.fromkeys(document["checks"], True), document
    assert document["phases"][0]["peak"] > document["limit"] // 4
    assert document["admissions"] >= 700
