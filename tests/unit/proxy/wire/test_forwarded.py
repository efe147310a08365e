"""Which address is the client's, when proxies in front say so."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.forwarded import MOST_HOPS, client_address, network_of

OURS = ("10.0.0.1", "10.0.0.2", "fd00::1")


def trusted(address):
    return address in OURS


def address(peer, *fields):
    return client_address([(name.encode(), value.encode("latin-1")) for name, value in fields], peer, trusted)


def xff(value):
    return ("X-Forwarded-For", value)


def test_what_a_stranger_says_of_itself_does_not_count():
    assert address("203.0.113.9", xff("198.51.100.1"), ("Forwarded", "for=198.51.100.1")) == "203.0.113.9"


def test_a_proxy_of_ours_names_its_client():
    assert address("10.0.0.1", xff("198.51.100.7")) == "198.51.100.7"


def test_what_stands_before_the_first_stranger_anybody_can_have_written():
    assert address("10.0.0.1", xff("1.2.3.4, 198.51.100.7, 10.0.0.2")) == "198.51.100.7"


def test_several_fields_are_one_list():
    assert address("10.0.0.1", xff("1.2.3.4"), xff("198.51.100.7"), xff("10.0.0.2")) == "198.51.100.7"


def test_where_all_are_ours_the_first_is_the_client():
    assert address("10.0.0.1", xff("10.0.0.2, fd00::1")) == "10.0.0.2"


@pytest.mark.parametrize("value", ["", "unknown", "_hidden", "not an address", "1.2.3.4.5", ",", "é", "[::1"])
def test_what_is_no_address_leaves_the_last_proxy(value):
    assert address("10.0.0.1", xff(value)) in {"10.0.0.1", "::1"}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("198.51.100.7:4711", "198.51.100.7"),
        ("[2001:db8::7]:4711", "2001:db8::7"),
        ("2001:DB8::7", "2001:db8::7"),
        ("::ffff:198.51.100.7", "198.51.100.7"),
        ("fe80::1%eth0", "fe80::1"),
    ],
)
def test_addresses_are_read_in_every_usual_form(written, read):
    assert address("10.0.0.1", xff(written)) == read


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("for=198.51.100.7", "198.51.100.7"),
        ('For="[2001:db8::7]:4711";proto=https;by=10.0.0.1', "2001:db8::7"),
        ("proto=http; for = 198.51.100.7 ;host=x", "198.51.100.7"),
        ("for=1.2.3.4, for=198.51.100.7, for=10.0.0.2", "198.51.100.7"),
        ("for=1.2.3.4, proto=https", "10.0.0.1"),
        ("for=unknown", "10.0.0.1"),
    ],
)
def test_forwarded_counts_where_there_is_no_x_forwarded_for(written, read):
    assert address("10.0.0.1", ("Forwarded", written)) == read
    assert address("10.0.0.1", ("Forwarded", written), xff("192.0.2.9")) == "192.0.2.9"


def test_an_endless_chain_is_not_followed():
    chain = ", ".join(["198.51.100.7", *["10.0.0.2"] * (MOST_HOPS + 5)])
    assert address("10.0.0.1", xff(chain)) == "10.0.0.2"


@given(st.binary(max_size=200), st.sampled_from([b"x-forwarded-for", b"forwarded"]))
def test_no_bytes_break_it(value, name):
    found = client_address([(name, value)], "10.0.0.1", trusted)
    assert found.isprintable()
    assert network_of(found)


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("198.51.100.7", "198.51.100.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::ffff:198.51.100.7", "198.51.100.7"),
        ("fe80::1%eth0", "fe80::/64"),
        ("somewhere", "somewhere"),
    ],
)
def test_one_customer_has_one_address_or_a_whole_64(address, network):
    assert network_of(address) == network
