"""A query without data is found, whatever kind of nothing it gives."""

import pytest

from tools.grafana.check import Screen, boards, findings, queries


class Told:
    """A Prometheus that gives one answer to everything."""

    def __init__(self, answer):
        self.answer = answer

    def over(self, _expr, _seconds, _step, _until):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def board():
    return boards()["overview"]


@pytest.mark.parametrize(
    ("answer", "finding"),
    [
        ([], "no series"),
        ([{"metric": {}, "values": [[1, "NaN"], [2, "NaN"]]}], "no number"),
        (ValueError("parse error"), "refused: parse error"),
    ],
)
def test_each_query_without_data_is_a_finding_with_its_panel(board, answer, finding):
    found = list(findings(Told(answer), board, Screen()))
    assert len(found) == len(list(queries(board, Screen()))) > 40
    assert all(finding in line for line in found)
    assert found[0].startswith("请求/秒 / Requests/s: ")


def test_one_number_is_data(board):
    values = [{"metric": {}, "values": [[1, "NaN"], [2, "0"]]}]
    assert list(findings(Told(values), board, Screen())) == []


def test_variables_are_filled_in_as_grafana_does():
    for name, board in boards().items():
        filled = [expr for _, expr in queries(board, Screen(window="20s"))]
        assert not [expr for expr in filled if "$" in expr], name
    overview = " ".join(expr for _, expr in queries(boards()["overview"], Screen(window="20s")))
    assert 'le="1.0"' in overview
    assert "[20s]" in overview
    assert 'experiment="baseline"' in " ".join(expr for _, expr in queries(boards()["compare"], Screen()))
