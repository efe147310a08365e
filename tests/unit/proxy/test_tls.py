"""When a certificate ends, read from its bytes."""

import contextlib
import datetime as dt
import ssl

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from proxy.tls import UnreadableError, ends_at, not_after

CA = trustme.CA()


@pytest.mark.parametrize("year", [2026, 2049, 2050, 2106])
def test_the_end_of_a_certificate_is_found_before_and_after_2050(year, tmp_path):
    ends = dt.datetime(year, 12, 24, 18, 30, 15, tzinfo=dt.UTC)
    cert = CA.issue_cert("localhost", not_before=dt.datetime(2020, 1, 1, tzinfo=dt.UTC), not_after=ends)
    path = tmp_path / "cert.pem"
    path.write_bytes(b"some words before\n" + b"".join(blob.bytes() for blob in cert.cert_chain_pems))
    assert ends_at(path) == ends.timestamp()


def test_what_is_no_certificate_has_no_end(tmp_path):
    path = tmp_path / "cert.pem"
    assert ends_at(path) is None
    for text in ("", "nonsense", f"{ssl.PEM_HEADER}\n", f"{ssl.PEM_HEADER}\n!!!\n{ssl.PEM_FOOTER}\n"):
        path.write_text(text)
        assert ends_at(path) is None


@given(st.binary(max_size=80))
def test_no_bytes_break_it(data):
    with pytest.raises(UnreadableError):
        not_after(data)


@given(st.integers(min_value=0), st.integers(0, 255))
def test_a_damaged_certificate_has_another_end_or_none(place, byte):
    der = bytearray(ssl.PEM_cert_to_DER_cert(CA.cert_pem.bytes().decode()))
    der[place % len(der)] = byte
    with contextlib.suppress(UnreadableError):
        assert isinstance(not_after(bytes(der)), float)
