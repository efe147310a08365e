"""What the end of a request says about its backend."""

import pytest

from proxy.evidence import Reports, report, report_answer, report_broken
from proxy.exchange import Exchange, UpstreamError
from proxy.policy.outcome import Outcome
from proxy.upstream.connection import Broken
from proxy.upstream.head import Head, parse_head
from proxy.wire.errors import ErrorSeen


class Told:
    """Keeps what is reported."""

    def __init__(self):
        self.said = []
        self.reports = Reports(
            served=lambda name, began: self.said.append(("served", name, began)),
            fault=lambda name, began, why: self.said.append(("fault", name, began, why)),
            busy=lambda name, seconds: self.said.append(("busy", name, seconds)),
        )


def head(status, *fields) -> Head:
    return parse_head(b"HTTP/1.1 %d X\r\n%b\r\n" % (status, b"".join(b"%b\r\n" % field for field in fields)))


def ended(status, *fields, outcome=None, error=None, seen=None):
    told = Told()
    exchange = Exchange("id", 0.0, 0.0, backend="a", outcome=outcome, upstream_error=error)
    report(told.reports, exchange, 5.0, head(status, *fields), seen)
    return told.said


def test_a_whole_answer_shows_that_it_works():
    assert ended(200, outcome=Outcome.OK) == [("served", "a", 5.0)]


@pytest.mark.parametrize("status", [400, 401, 404, 408, 413, 422, 501])
def test_what_is_about_the_request_says_nothing(status):
    assert ended(status, outcome=Outcome.INVALID) == []


@pytest.mark.parametrize("status", [500, 502, 504, 505, 529])
def test_a_5xx_is_a_fault(status):
    assert ended(status, outcome=Outcome.BACKEND_ERROR) == [("fault", "a", 5.0, f"answered {status}")]


@pytest.mark.parametrize("status", [429, 503])
def test_one_that_says_it_has_enough_to_do_is_busy_as_long_as_it_says(status):
    assert ended(status, outcome=Outcome.BACKEND_ERROR) == [("busy", "a", None)]
    assert ended(status, b"retry-after: 3", outcome=Outcome.BACKEND_ERROR) == [("busy", "a", 3.0)]
    assert ended(status, b"retry-after: 3", b"retry-after-ms: 250") == [("busy", "a", 0.25)]


@pytest.mark.parametrize(
    ("code", "fault"), [(None, True), ("500", True), ("internal", True), ("400", False), ("4" * 5000, True)]
)
def test_an_error_inside_a_stream_is_a_fault_unless_it_is_about_the_request(code, fault):
    said = ended(
        200,
        outcome=Outcome.BACKEND_ERROR,
        error=UpstreamError.STREAM_ERROR,
        seen=ErrorSeen("went wrong", code=code),
    )
    assert said == ([("fault", "a", 5.0, "an error inside a stream")] if fault else [])


def test_a_redirect_says_nothing():
    assert ended(302, outcome=Outcome.BACKEND_ERROR) == []


def test_a_broken_answer_is_a_fault():
    told = Told()
    report_broken(told.reports, "a", 5.0, Broken(UpstreamError.TIMEOUT, "no first byte within 1 s"))
    assert told.said == [("fault", "a", 5.0, "no first byte within 1 s")]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (200, [("served", "a", 5.0)]),
        (400, []),
        (501, []),
        (500, [("fault", "a", 5.0, "answered 500")]),
        (503, [("busy", "a", 2.0)]),
    ],
)
def test_a_request_of_our_own_says_the_same(status, said):
    told = Told()
    report_answer(told.reports, "a", 5.0, status, 2.0)
    assert told.said == said


def test_where_nobody_listens_nothing_happens():
    reports = Reports()
    report_answer(reports, "a", 5.0, 500, None)
    assert not reports.on_trial("a")
