"""Where spans go."""

import pytest
from pydantic import ValidationError

from proxy.settings.tracing import Tracing


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (None, None),
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("http://127.0.0.1:4318/", "http://127.0.0.1:4318/v1/traces"),
        ("https://collector/own/path", "https://collector/own/path"),
    ],
)
def test_an_address_without_a_path_gets_the_usual_one(written, meant):
    assert Tracing(endpoint=written).endpoint == meant


@pytest.mark.parametrize("bad", ["127.0.0.1:4318", "grpc://127.0.0.1:4317", "http://", ""])
def test_what_is_no_url_is_refused(bad):
    with pytest.raises(ValidationError, match="write a URL such as"):
        Tracing(endpoint=bad)


@pytest.mark.parametrize("bad", [-0.1, 1.1, "nan"])
def test_a_share_is_from_nothing_to_everything(bad):
    with pytest.raises(ValidationError):
        Tracing(sample=bad)
