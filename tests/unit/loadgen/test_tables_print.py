"""Tables for people: each layout shows its figures, and says what they stand on."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from loadgen.sim.drive import Driven, Served
from loadgen.sim.engine import EngineProfile
from loadgen.sim.trials import Study, Trial, figures
from loadgen.tables import Row, Table
from loadgen.tables_print import columns, document, show
from loadgen.tables_run import Line, Span

PROFILE = EngineProfile("test", a=0.02, b=3e-5, c=9e-5, d=1.2e-7, e=5e-9, kv_blocks=2000)
CASES = (("mixed", 0.8), ("mixed", 1.0))
SPAN = Span(windows=3, rows=4000, seed=5)
ALL_WELL = figures(Driven([Served(at, 100, 11, at + 0.25, at + 0.75, "ok") for at in range(40)]), 0)
HALF = replace(ALL_WELL, goodput=0.5, short_lost=0.375, others_goodput=0.625, abuser_goodput=0.25)
ROW = Row("strict", Trial("", 0.0, "lanewise"))


@pytest.fixture
def study(tmp_path):
    made = Study(tmp_path, PROFILE, PROFILE)
    made._saturated["mixed"] = 2.5
    return made


def shown(study, table, *lines, span=SPAN):
    out = StringIO()
    show(Console(file=out, width=160), table, lines, study, span)
    return out.getvalue()


def line(averaged=CASES):
    return Line(ROW, dict(zip(CASES, (ALL_WELL, HALF), strict=True)), averaged)


def test_a_table_by_cases_has_goodput_tails_and_losses_of_each_and_the_mean(study):
    text = shown(study, Table("Main", (ROW,), CASES, CASES), line())
    words = [row.split() for row in text.splitlines() if row.strip().startswith("strict")]
    assert words[0] == ["strict", "1.000", "0.500", "0.750"]
    assert words[1] == ["strict", *("0.25", "/", "-") * 3]
    assert words[2] == ["strict", "0.0", "/", "-", "37.5", "/", "-", "18.8", "/", "-"]


def test_a_table_says_its_loads_and_windows(study):
    text = shown(study, Table("Main", (ROW,), CASES, CASES, backends=4), line())
    assert "mixed 10.00 requests/s" in text
    assert "Mean of 3 windows of 4000 requests, seed 5" in text
    assert "mixed 0.8x" in text


def test_a_single_window_is_not_called_a_mean(study):
    text = shown(study, Table("Main", (ROW,), CASES, CASES), line(), span=replace(SPAN, windows=1))
    assert "One window of 4000 requests, seed 5" in text


def test_a_table_of_means_has_one_line_per_row(study):
    text = shown(study, Table("Ablation", (ROW,), CASES, CASES, layout="means"), line())
    (row,) = (row.split() for row in text.splitlines() if row.strip().startswith("strict"))
    assert row == ["strict", "0.750", "0.25", "-", "0.050", "18.8", "-", f"{ALL_WELL.completed_per_s:.2f}", "1.00"]


def test_a_table_of_tenants_tells_the_one_from_the_others(study):
    text = shown(study, Table("Tenants", (ROW,), CASES, CASES, layout="tenants"), line())
    rows = [row.split() for row in text.splitlines() if row.strip().startswith("strict")]
    assert rows[0][:4] == ["strict", "1.000", "-", "1.000"]
    assert rows[1][:4] == ["strict", "0.625", "0.250", "0.500"]


def test_the_document_has_every_case_and_the_mean(study):
    table = Table("Main", (ROW,), CASES, CASES)
    made = document("main", table, [line(), line(averaged=(("azure", 1.0),))], study, SPAN)
    assert (made["table"], made["windows"], made["saturated_per_s"]) == ("main", 3, {"mixed": 2.5})
    first, second = made["rows"]
    assert [(case["workload"], case["load"], case["goodput"]) for case in first["cases"]] == [
        ("mixed", 0.8, 1.0),
        ("mixed", 1.0, 0.5),
    ]
    assert (first["mean"]["goodput"], second["mean"]) == (0.75, None)


def test_a_table_of_many_cases_is_not_cut(study):
    many = tuple(("mixed", load / 10) for load in range(1, 14))
    table = Table("Main", (ROW,), many, many)
    wide = replace(ALL_WELL, long_ttft_p99_s=123.0, short_lost=1.0, long_lost=1.0)
    out = StringIO()
    console = Console(file=out, width=columns(table))
    show(console, table, [Line(ROW, dict.fromkeys(many, wide), many)], study, SPAN)
    assert "…" not in out.getvalue()
    assert out.getvalue().count("100.0 / 100.0") == 14
