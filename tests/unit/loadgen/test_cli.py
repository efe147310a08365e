import json

import pytest

from loadgen.cli import main


@pytest.fixture
def compared(made, capsys):
    """Compare two runs by command; gives exit code, stdout and stderr."""

    def run(a, b, *options):
        folders = [made.folder("a", a), made.folder("b", b[0], **b[1])]
        with pytest.raises(SystemExit) as stopped:
            main(["compare", *(str(folder.path) for folder in folders), *options])
        printed = capsys.readouterr()
        return stopped.value.code, printed.out, printed.err

    return run


def test_a_refused_comparison_exits_with_4_and_names_the_condition(made, compared):
    results = [made.ok(n) for n in range(20)]
    code, out, err = compared(results, (results, {"plan": {"hash": "other"}}))
    assert (code, out) == (4, "")
    assert "plan differs: abc and other" in err


def test_a_roll_back_exits_with_3_and_its_document_says_so(made, compared):
    before, after = ([made.ok(n, ttft) for n in range(20)] for ttft in (0.1, 0.9))
    code, out, _ = compared(before, (after, {}), "--json")
    assert (code, json.loads(out)["verdict"]) == (3, "roll back")


def test_a_table_is_printed_for_people(made, compared):
    results = [made.ok(n) for n in range(20)]
    code, out, _ = compared(results, (results, {}))
    assert code == 0
    assert "short TTFT p50" in out
    assert "verdict: keep tuning" in out


@pytest.mark.parametrize("option", ["--set", "--slo-short"])
def test_a_value_without_sense_is_refused(capsys, option, tmp_path):
    with pytest.raises(SystemExit) as stopped:
        main(["replay", "--target", "http://127.0.0.1:1", "--out", str(tmp_path / "x"), option, "nonsense"])
    assert stopped.value.code == 2
    assert "nonsense" in capsys.readouterr().err
