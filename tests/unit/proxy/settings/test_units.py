"""Values with units: what is read, what is refused, and that what is written can be read again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.settings.units import (
    Address,
    format_duration,
    format_size,
    parse_backend_url,
    parse_count,
    parse_duration,
    parse_optional_count,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90us", 0.00009), ("500ms", 0.5), ("1s", 1.0), ("1.5 s", 1.5), ("2m", 120.0), ("3h", 10800.0), ("1d", 86400.0)],
)
def test_a_duration_is_a_number_with_a_unit(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("value", [1, 0, 1.5, "1", "", "s", "1 min", "-1s", "1e3s", "nan s", True, None, [], "1s 2s"])
def test_a_duration_without_a_known_unit_is_refused(value):
    with pytest.raises(ValueError, match="for example"):
        parse_duration(value)


@given(st.floats(min_value=1e-6, max_value=1e7, allow_nan=False))
def test_a_written_duration_is_read_as_the_same_number(seconds):
    seconds = round(seconds, 9)
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.05, "50ms"), (60.0, "1m"), (90.0, "90s"), (86400.0, "1d"), (0.0, "0s")]
)
def test_a_duration_is_written_with_the_largest_unit_that_keeps_it_whole(seconds, text):
    assert format_duration(seconds) == text


@given(st.integers(min_value=0, max_value=2**50))
def test_a_written_size_is_read_as_the_same_number(size):
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(("text", "size"), [("64MiB", 64 * 2**20), ("64MB", 64_000_000), ("1.5KiB", 1536), ("7B", 7)])
def test_a_size_is_a_number_with_a_unit(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("value", [1024, "1024", "64mib", "1.5B", "", None, True, "9" * 30 + "B"])
def test_a_size_without_a_known_unit_or_in_parts_of_bytes_is_refused(value):
    with pytest.raises(ValueError, match=r"for example|whole number"):
        parse_size(value)


@pytest.mark.parametrize(
    ("value", "count"),
    [(2048, 2048), ("2048", 2048), ("32k", 32_000), ("32K", 32_768), ("25.6k", 25_600), ("1M", 2**20)],
)
def test_counts_are_read_as_vllm_reads_its_flags(value, count):
    assert parse_count(value) == count


@pytest.mark.parametrize("value", [1.5, True, "1.5", "2x", "", None, "k"])
def test_what_is_no_whole_number_is_no_count(value):
    with pytest.raises(ValueError, match=r"whole number"):
        parse_count(value)


def test_an_optional_count_may_be_unlimited():
    assert (parse_optional_count("unlimited"), parse_optional_count(None), parse_optional_count("1k")) == (
        None,
        None,
        1000,
    )
    with pytest.raises(ValueError, match='or "unlimited"'):
        parse_optional_count("none")


@pytest.mark.parametrize("text", ["127.0.0.1:8080", "[::1]:80", "localhost:0", "proxy.example:65535"])
def test_an_address_is_written_as_it_was_read(text):
    assert str(Address.parse(text)) == text


@pytest.mark.parametrize(
    "value", ["8080", ":8080", "::1:80", "host:", "host:x", "host:65536", 8080, None, "[]:80", "h:8\u0660"]
)
def test_what_is_no_host_and_port_is_no_address(value):
    with pytest.raises(ValueError, match=r"HOST:PORT|does not exist"):
        Address.parse(value)


def test_loopback_addresses_are_known():
    known = [
        Address.parse(text).is_loopback for text in ("127.8.0.1:1", "[::1]:1", "localhost:1", "0.0.0.0:1", "[::]:1")
    ]
    assert known == [True, True, True, False, False]


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://h:8000/", "http://h:8000"),
        (" http://h ", "http://h:80"),
        ("https://H", "https://h:443"),
        ("http://[::1]:1", "http://[::1]:1"),
    ],
)
def test_a_backend_url_is_scheme_host_and_port(text, url):
    assert parse_backend_url(text) == url


@pytest.mark.parametrize(
    "value",
    ["h:8000", "ftp://h", "http://", "http://h/v1", "http://h?x=1", "http://u:p@h", "http://h:99999", "http://[", 7],
)
def test_anything_more_or_less_than_a_base_url_is_refused(value):
    with pytest.raises(ValueError, match="base URL of the engine"):
        parse_backend_url(value)
