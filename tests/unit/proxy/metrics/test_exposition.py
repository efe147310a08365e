"""Written family by family, the text is what the library writes at once."""

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from proxy.metrics.exposition import SLICE, content_type, render, render_at_once, slices
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
    parts = drain(render(families(), accept, pause_s=0))
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


def test_openmetrics_names_a_request_for_a_bucket_and_the_text_form_does_not():
    times = Histogram((0.1, 1.0))
    times.observe_of('odd "id"\\', 0.5)
    family = histogram("wait_seconds", "Waits.", (), (((), times),))
    read = next(iter(read_openmetrics(render_at_once([family], OPENMETRICS).decode())))
    exemplars = [sample.exemplar for sample in read.samples if sample.exemplar is not None]
    assert [(one.labels, one.value) for one in exemplars] == [({"request_id": 'odd "id"\\'}, 0.5)]
    assert b"request_id" not in render_at_once([family])


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_a_large_family_is_written_in_slices_under_one_heading(accept):
    rows = [((f"lane{i}",), float(i)) for i in range(2 * SLICE + 1)]
    family = counter("requests", "Requests.", ("lane",), rows)
    parts = drain(render([family], accept, pause_s=0))
    assert b"".join(parts) == render_at_once([family], accept)
    assert len([part for part in parts if part != b"# EOF\n"]) == 3
    assert [len(part.samples) for part in slices(family)] == [SLICE, SLICE, 1]


def test_a_family_without_samples_keeps_its_heading():
    assert b"# HELP lanewise_requests_total" in b"".join(
        drain(render([counter("requests", "R.", ("lane",), ())], "", pause_s=0))
    )
