import pytest

from loadgen.client import read_target
from loadgen.failure import UsageError


@pytest.mark.parametrize(
    ("url", "host", "port", "prefix"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1", 8000, ""),
        ("http://engine/", "engine", 80, ""),
        ("https://engine/v1", "engine", 443, ""),
        ("http://[::1]:8000/gate/v1/", "::1", 8000, "/gate"),
    ],
)
def test_a_base_url_is_taken_apart(url, host, port, prefix):
    target = read_target(url)
    assert (target.host, target.port, target.prefix) == (host, port, prefix)


def test_an_ipv6_address_keeps_its_brackets_in_the_host_header():
    assert read_target("http://[::1]:8000").netloc == "[::1]:8000"


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000", "ftp://x", "http://", "http://x:99999", "http://u:p@x", "http://x/?a=1"]
)
def test_what_is_no_base_url_is_refused(url):
    with pytest.raises(UsageError, match="--target"):
        read_target(url)
