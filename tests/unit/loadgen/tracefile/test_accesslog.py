import pytest

from loadgen.tracefile.accesslog import parse, time_ns
from loadgen.tracefile.row import LineError

LENGTHS = "prompt_tokens=120 completion_tokens=30"
AT = 1_796_064_302_000_000_000  # 2026-11-30 18:45:02 UTC


@pytest.mark.parametrize(
    ("time", "t_ns"),
    [
        ("2026-11-30T18:45:02Z", AT),
        ("2026-11-30 18:45:02.250", AT + 250_000_000),
        ("2026-11-30 18:45:02,250", AT + 250_000_000),
        ("2026-11-30T20:45:02+02:00", AT),
        ("[30/Nov/2026:18:45:02 +0000]", AT),
        ("[30/Nov/2026:19:45:02 +0100]", AT),
        ("ts=1796064302.5", AT + 500_000_000),
        ('{"time": 1796064302}', AT),
    ],
)
def test_every_common_way_to_write_a_time_is_read(time, t_ns):
    row = parse(f"{time} POST /v1/chat/completions 200 {LENGTHS}", 3)
    assert (row.number, row.t_ns, row.prompt_tokens, row.output_tokens) == (3, t_ns, 120, 30)


def test_a_logger_without_a_year_keeps_its_distances():
    first, second = (time_ns(f"INFO 11-30 18:45:{s} [logger.py:41] finished") for s in ("02", "09"))
    assert second - first == 7_000_000_000


@pytest.mark.parametrize(
    "lengths",
    [
        '"usage": {"prompt_tokens": 120, "completion_tokens": 30}',
        "input_tokens: 120, output_tokens: 30",
        "prompt_len=120 output_len=30",
        "output_tokens=30 input_tokens=120",
    ],
)
def test_lengths_are_found_by_their_names(lengths):
    row = parse(f"2026-11-30T18:45:02Z {lengths}", 1)
    assert (row.prompt_tokens, row.output_tokens) == (120, 30)


def test_a_line_without_lengths_is_no_request():
    assert parse('INFO:     127.0.0.1:5000 - "GET /health HTTP/1.1" 200 OK', 1) is None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("2026-11-30T18:45:02Z prompt_tokens=120", "its output length is missing"),
        ("2026-11-30T18:45:02Z completion_tokens=1", "its prompt length is missing"),
        (LENGTHS, "tells no time"),
        (f"2026-13-30T18:45:02Z {LENGTHS}", "does not exist"),
    ],
)
def test_half_a_request_is_a_bad_line(line, said):
    with pytest.raises(LineError, match=said):
        parse(line, 1)
