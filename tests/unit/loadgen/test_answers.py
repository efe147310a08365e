"""Answers that do not look like answers."""

from hypothesis import given
from hypothesis import strategies as st

from loadgen.answers import Answers, abnormal, answers_of, requantised, shifted, streamed_text


def test_an_empty_answer_has_no_token_or_ended_at_once_by_itself(made):
    results = [made.ok(0), made.ok(1, tokens=0), made.ok(2)]
    found = answers_of(results)
    assert (found.ok, found.empty, found.finishes) == (3, 1, {"length": 3})
    assert list(abnormal(found)) == ["1 of 3 answers are empty"]


def test_failed_requests_are_no_answers(made):
    assert answers_of([made.failed(0)]).ok == 0


def test_answers_that_the_engine_stopped_for_repeating_are_told(made):
    found = answers_of([made.ok(0, finish="repetition"), made.ok(1)])
    assert "1 of 2 answers were stopped" in next(abnormal(found))


def test_ordinary_answers_are_not_abnormal(made):
    assert list(abnormal(answers_of([made.ok(at) for at in range(5)]))) == []


def test_a_shift_of_finish_reasons_is_told_and_chance_is_not():
    before = Answers(400, 0, {"stop": 300, "length": 100})
    assert list(shifted(before, Answers(400, 0, {"stop": 290, "length": 110}))) == []
    told = list(shifted(before, Answers(400, 0, {"stop": 200, "length": 200})))
    assert told == [
        "finish reason length: 25.0% of the answers before, 50.0% now",
        "finish reason stop: 75.0% of the answers before, 50.0% now",
    ]


def test_few_answers_do_not_shift():
    assert list(shifted(Answers(10, 0, {"stop": 10}), Answers(10, 0, {"length": 10}))) == []


def test_more_empty_answers_than_before_are_told():
    assert "empty answers" in next(shifted(Answers(100, 0, {"stop": 100}), Answers(100, 9, {"stop": 100})))


def test_a_changed_quantisation_asks_for_an_accuracy_regression():
    assert "accuracy regression" in requantised("w8a8", "w4a8")
    assert requantised("w8a8", "w8a8") is None
    assert requantised(None, "w8a8") is None


def test_answers_that_go_round_in_circles_are_counted_where_somebody_looked(made):
    found = answers_of([made.ok(0, repeats=True), made.ok(1, repeats=False), made.ok(2)])
    assert (found.looked_at, found.repeating) == (2, 1)
    assert list(abnormal(found)) == ["1 of 2 answers go round in circles"]


def test_more_repetition_than_before_is_told():
    before, after = (Answers(100, 0, {"length": 100}, 100, count) for count in (10, 40))
    assert list(shifted(before, after)) == ["answers that go round in circles: 10.0% before, 40.0% now"]


def test_the_text_of_a_stream_is_put_together():
    thought = b'data: {"choices":[{"index":0,"delta":{"reasoning":"a"}}]}\n\n'
    said = b'data: {"choices":[{"index":0,"delta":{"content":"b"}}]}\n\n'
    rest = b'data: {"choices":[{"index":1,"text":"x"}]}\n\ndata: {"choices":[]}\n\ndata: [DONE]\n\n'
    assert streamed_text(thought + said + rest) == "ab"


@given(st.binary())
def test_any_bytes_can_be_looked_at(body):
    assert isinstance(streamed_text(b"data: " + body), str)
