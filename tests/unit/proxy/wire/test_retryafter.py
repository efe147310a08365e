import pytest

from proxy.wire.retryafter import retry_after_s


@pytest.mark.parametrize(
    ("seconds", "milliseconds", "meant"),
    [
        (b"3", b"", 3.0),
        (b"0.3", b"", 0.3),
        (b"3", b"250", 0.25),
        (b"3", b"soon", 3.0),
        (b"0", b"", 0.0),
        (b"", b"", None),
        (b"Wed, 21 Oct 2026 07:28:00 GMT", b"", None),
        (b"-1", b"", None),
        (b"nan", b"", None),
        (b"-inf", b"", None),
        (b"-0", b"", 0.0),
        (b"1e9", b"", 86_400.0),
        (b"9" * 400, b"", 86_400.0),
        (b"3", b"-5", 3.0),
        (b"3", b"nan", 3.0),
        (b"\xff", b"", None),
    ],
)
def test_what_an_engine_asks_for(seconds, milliseconds, meant):
    assert retry_after_s(seconds, milliseconds) == meant
