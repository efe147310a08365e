"""Running tables: rows get their own figures back, and means are over what they say."""

from dataclasses import replace

import pytest

from loadgen.failure import UsageError
from loadgen.sim.engine import EngineProfile
from loadgen.sim.trials import Study, Trial
from loadgen.sim.workloads import Workload
from loadgen.tables import Row, Table
from loadgen.tables_run import Span, cells_of, lines_of, run_cells

PROFILE = EngineProfile("test", a=0.02, b=3e-5, c=9e-5, d=1.2e-7, e=5e-9, kv_blocks=2000)
SPAN = Span(windows=2, rows=150, seed=3)
DIRECT, OURS = (Row(policy, Trial("", 0.0, policy)) for policy in ("direct", "lanewise"))


@pytest.fixture
def studies(tmp_path):
    study = Study(tmp_path, PROFILE, PROFILE)
    lengths = tuple((9000 if n % 9 == 0 else 100 + n % 400, 5 + n % 60) for n in range(400))
    study._workloads["mixed"] = Workload("mixed", tuple(n * 0.7 + n % 3 for n in range(400)), lengths)
    return {"test": study}


def table(*rows, loads=(0.5, 1.2)):
    cases = tuple(("mixed", load) for load in loads)
    return Table("t", rows, cases, cases, engine="test")


def test_each_cell_is_what_its_trial_gives_alone(studies):
    asked = table(DIRECT, OURS)
    lines = lines_of(asked, run_cells(studies, cells_of(asked), SPAN, 1))
    alone = studies["test"].run(Trial("mixed", 1.2, "lanewise", windows=2, rows=150, seed=3))
    assert lines[1].cells["mixed", 1.2] == alone
    assert lines[0].cells["mixed", 1.2] != alone
    assert [line.row.name for line in lines] == ["direct", "lanewise"]


def test_the_mean_is_over_the_cases_that_count_and_absent_when_one_is_missing(studies):
    asked = replace(table(DIRECT), averaged=(("mixed", 0.5),))
    (line,) = lines_of(asked, run_cells(studies, cells_of(asked), SPAN, 1))
    assert line.mean == line.cells["mixed", 0.5]
    assert replace(line, averaged=(("mixed", 9.9),)).mean is None


def test_a_row_may_have_engines_and_a_load_of_its_own(studies):
    asked = table(replace(OURS, flags={"long_prefill_token_threshold": 256}), replace(OURS, load_factor=0.5))
    lines = lines_of(asked, run_cells(studies, cells_of(asked), SPAN, 1))
    plain = studies["test"].run(Trial("mixed", 0.6, "lanewise", windows=2, rows=150, seed=3))
    assert lines[1].cells["mixed", 1.2] == plain
    assert lines[0].cells["mixed", 1.2].goodput != plain.goodput


def test_flags_that_no_engine_could_run_with_name_the_row(studies):
    asked = table(replace(OURS, flags={"kv_blocks": 0}))
    with pytest.raises(UsageError, match=r"row lanewise: .*kv_blocks"):
        list(run_cells(studies, cells_of(asked), SPAN, 1))


def test_two_processes_give_the_same_figures_as_one(studies):
    cells = cells_of(table(DIRECT, OURS))
    assert list(run_cells(studies, cells, SPAN, 2)) == list(run_cells(studies, cells, SPAN, 1))
