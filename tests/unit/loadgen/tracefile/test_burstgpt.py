import pytest

from loadgen.tracefile.burstgpt import Parser, is_header
from loadgen.tracefile.row import LineError

FIRST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
SESSIONS = "Timestamp,Session ID,Model,Request tokens,Response tokens,Total tokens,Log Type"
ELAPSED = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"


@pytest.mark.parametrize(
    ("header", "line"),
    [
        (FIRST, "5.5,ChatGPT,472,18,490,Conversation log"),
        (SESSIONS, "5.5,77,ChatGPT,472,18,490,Conversation log"),
        (ELAPSED, '5.5,77,3.25,"GPT-4, turbo",472,18,490,API log'),
    ],
)
def test_all_three_sets_of_columns_are_read(header, line):
    assert is_header(header)
    parser = Parser(256)
    assert parser.parse(header, 1) is None
    row = parser.parse(line, 2)
    assert (row.t_ns, row.prompt_tokens, row.output_tokens, row.assumed) == (5_500_000_000, 472, 18, False)


def test_a_request_that_failed_there_is_asked_again_with_an_assumed_length():
    parser = Parser(99)
    parser.parse(FIRST, 1)
    row = parser.parse("5,ChatGPT,472,0,472,API log", 2)
    assert (row.output_tokens, row.assumed) == (99, True)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("5,ChatGPT,472,18", "has 4 fields; the header has 6"),
        ("x,ChatGPT,472,18,490,API log", "Timestamp 'x'"),
        ("-5,ChatGPT,472,18,490,API log", "Timestamp '-5'"),
        ("5,ChatGPT,4.5,18,490,API log", "Request tokens '4.5'"),
        ("5,ChatGPT,472,,490,API log", "Response tokens ''"),
    ],
)
def test_a_broken_line_says_which_column(line, said):
    parser = Parser(256)
    parser.parse(FIRST, 1)
    with pytest.raises(LineError, match=said):
        parser.parse(line, 2)


@pytest.mark.parametrize("line", ["", "a,b", '{"timestamp": 1, "x": "y"}', 'Timestamp,"Request'])
def test_other_first_lines_are_no_header(line):
    assert not is_header(line)
