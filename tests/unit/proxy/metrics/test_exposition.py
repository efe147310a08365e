"""Written family by family, the text is what the library writes at once."""

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from proxy.metrics.exposition import content_type, render, render_at_once
from proxy.metrics.series import Histogram, counter, histogram

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


def families():
    times = Histogram((0.1, 1.0))
    times.observe(0.5)
    return [
        counter("requests", "Requests.", ("lane",), ((("short",), 2), (("long",), 0))),
        histogram("wait_seconds", "Waits.", ("lane",), ((("short",), times),)),
    ]


def drain(generator):
    """Run an asynchronous generator that only yields to the loop, without a loop."""
    parts = []
    while True:
        step = generator.__anext__()
        try:
            while True:
                step.send(None)
        except StopIteration as part:
            parts.append(part.value)
        except StopAsyncIteration:
            return parts


@pytest.mark.parametrize("accept", ["", "text/plain", OPENMETRICS])
def test_a_chunked_scrape_is_the_whole_scrape_in_pieces(accept):
    parts = drain(render(families(), accept))
    assert b"".join(parts) == render_at_once(families(), accept)
    assert len(parts) >= len(families())


def test_the_text_form_can_be_read():
    names = [family.name for family in read_text(render_at_once(families()).decode())]
    assert names == ["lanewise_requests", "lanewise_wait_seconds"]


def test_the_openmetrics_form_can_be_read_and_has_no_created_series():
    text = render_at_once(families(), OPENMETRICS).decode()
    samples = [sample.name for family in read_openmetrics(text) for sample in family.samples]
    assert "lanewise_requests_total" in samples
    assert not [name for name in samples if name.endswith("_created")]


def test_the_content_type_follows_what_is_accepted():
    assert content_type("").startswith("text/plain")
    assert content_type(OPENMETRICS).startswith("application/openmetrics-text")
