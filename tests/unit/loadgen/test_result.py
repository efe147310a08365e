import pytest

from loadgen.result import Result

LEAST = {"index": 3, "row": 5, "lane": "short", "prompt_tokens": 10, "output_tokens": 4, "due": 0.0, "outcome": "ok"}


def test_a_line_is_read_back_as_it_was_written():
    result = Result(**LEAST, sent=0.1, first=0.2, events=(5, 7), kinds="oc", counts=(1, 2), retry_after=0.0)
    assert Result.from_line(result.line()) == result


def test_what_did_not_happen_is_left_out_but_the_send():
    assert Result(**LEAST).line() == {**LEAST, "sent": None}


def test_keys_of_a_newer_version_are_ignored():
    assert Result.from_line(LEAST | {"phase_of_the_moon": 3}) == Result(**LEAST)


def test_a_line_without_an_outcome_is_an_error():
    with pytest.raises(TypeError):
        Result.from_line({"index": 1})
