"""How a line of the log looks, and which requests get one."""

import io
import json
import logging
import threading

import pytest

from proxy.exchange import Exchange, UpstreamError
from proxy.logs import PROBLEMS, PROBLEMS_S, JsonLines, RequestLog, TextLines, Writer, request_fields, set_up
from proxy.policy.outcome import Outcome, Reason
from proxy.settings import Settings

ODD = 'a"b\n\x1b[31m\u2028\ud800 =c'


def record(message="said", fields=None, error=None):
    made = logging.LogRecord("lanewise", logging.WARNING, "f", 1, message, (), error and (type(error), error, None))
    if fields is not None:
        made.fields = fields
    return made


def settings(**more):
    return Settings.model_validate({"backends": ["http://127.0.0.1:1"], **more})


def failed(number=0, at=100.0, **more):
    more = {"outcome": Outcome.BACKEND_ERROR, "lane": "short", "detail": "the prompt was 'SECRET'", **more}
    return Exchange(f"id-{number}", at - 1.0, 0.0, ended=at, **more)


def test_a_json_line_has_time_level_event_and_fields():
    line = json.loads(JsonLines().format(record(fields={"request_id": "a", "status": 502})))
    assert line.pop("at").endswith("Z")
    assert line == {"level": "warning", "event": "said", "request_id": "a", "status": 502}


@pytest.mark.parametrize("kind", [TextLines, JsonLines])
def test_whatever_is_in_it_one_event_is_one_line(kind):
    line = kind().format(record(ODD, {"detail": ODD}))
    assert line.splitlines() == [line]
    assert "\x1b" not in line


def test_a_json_line_carries_odd_text_whole():
    line = json.loads(JsonLines().format(record(fields={"detail": ODD})))
    assert line["detail"] == ODD.replace("\ud800", "?")


def test_a_text_line_ends_with_its_fields_and_quotes_what_would_be_read_wrongly():
    line = TextLines("%(message)s").format(record(fields={"lane": "short", "detail": "two words", "empty": ""}))
    assert line == 'said lane=short detail="two words" empty=""'


def raised():
    try:
        try:
            {}["SECRET"]
        except KeyError as error:
            raise ValueError("SECRET") from error
    except ValueError as error:
        return error


@pytest.mark.parametrize("kind", [TextLines, JsonLines])
def test_a_traceback_says_where_and_never_what_was_in_the_request(kind):
    error = raised()
    made = record()
    made.exc_info = (type(error), error, error.__traceback__)
    text = kind().format(made)
    told = text.replace('{}["SECRET"]', "").replace('ValueError("SECRET")', "").replace('{}[\\"SECRET\\"]', "")
    assert "SECRET" not in told.replace('ValueError(\\"SECRET\\")', "")  # the source line is this test's own
    assert [word for word in ("KeyError", "ValueError", "test_logs.py") if word not in text] == []


def test_what_the_system_says_of_a_file_stays():
    error = OSError(28, "No space left on device")
    assert "No space left on device" in TextLines().format(record(error=error))


def test_only_what_an_engine_failed_gets_a_line(caplog):
    caplog.set_level(logging.INFO)
    log = RequestLog(settings())
    for outcome in Outcome:
        log.observe(failed(outcome=outcome))
    told = [one.fields["outcome"] for one in caplog.records]
    assert told == ["backend_error", "backend_timeout", "truncated"]


def test_every_request_gets_a_line_where_that_is_wanted(caplog):
    caplog.set_level(logging.INFO)
    log = RequestLog(settings())
    log.configure(settings(access_log=True))
    for outcome in Outcome:
        log.observe(failed(outcome=outcome))
    assert [one.fields["outcome"] for one in caplog.records] == [outcome.value for outcome in Outcome]
    assert {one.levelname for one in caplog.records} == {"INFO", "WARNING"}


def test_an_engine_that_dies_does_not_fill_the_log(caplog):
    log = RequestLog(settings())
    for number in range(1000):
        log.observe(failed(number))
    assert len(caplog.records) == PROBLEMS
    log.observe(failed(at=100.0 + PROBLEMS_S))
    assert caplog.records[-1].fields["more_since"] == 1000 - PROBLEMS
    log.observe(failed(at=100.0 + PROBLEMS_S))
    assert "more_since" not in caplog.records[-1].fields


def test_an_engine_s_words_are_not_repeated_and_ours_are():
    assert "detail" not in request_fields(failed(upstream_status=400, outcome=Outcome.INVALID))
    frame = failed(upstream_status=200, upstream_error=UpstreamError.STREAM_ERROR)
    assert request_fields(frame)["detail"] == "the engine ended its stream with an error"
    full = failed(outcome=Outcome.REJECTED, reason=Reason.QUEUE_FULL, detail="3 wait and at most 3 may")
    assert request_fields(full)["detail"] == "3 wait and at most 3 may"
    nobody = failed(upstream_error=UpstreamError.CONNECT, detail="cannot connect")
    assert request_fields(nobody)["detail"] == "cannot connect"


def test_lines_are_written_by_a_thread_and_all_of_them_are_there_at_the_end():
    stream = io.StringIO()
    writer = Writer(stream)
    writer.setFormatter(TextLines("%(message)s"))
    for number in range(100):
        writer.handle(record(f"line {number}"))
    writer.close()
    assert stream.getvalue().splitlines() == [f"line {number}" for number in range(100)]


def test_when_nobody_reads_lines_are_left_out_and_counted():
    may_write, writing = threading.Event(), threading.Event()

    class Stuck(io.StringIO):
        def write(self, text):
            writing.set()
            may_write.wait(10)
            return super().write(text)

    stream = Stuck()
    writer = Writer(stream, most=2)
    writer.setFormatter(TextLines("%(message)s"))
    writer.handle(record("first"))
    assert writing.wait(10)
    for number in range(5):
        writer.handle(record(f"more {number}"))
    may_write.set()
    while not writer._lines.empty():
        pass
    writer.handle(record("last"))
    writer.close()
    assert stream.getvalue().splitlines() == [
        "first",
        "more 0",
        "more 1",
        "3 lines of this log were left out: nobody read it",
        "last",
    ]


def test_a_log_that_somebody_else_has_set_up_is_left_alone():
    assert logging.getLogger().handlers
    assert set_up("json") is None


def test_it_is_set_up_once_in_the_format_that_was_chosen(monkeypatch):
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", logging.WARNING)
    stream = io.StringIO()
    writer = set_up("json", stream)
    assert set_up("text") is None
    logging.getLogger("lanewise").info("hello %s", "you")
    writer.close()
    assert json.loads(stream.getvalue())["event"] == "hello you"
