"""The tables of the study: what is in them."""

import pytest

from loadgen.sim.profile import load_profile
from loadgen.sim.trials import Study, Trial, front
from loadgen.tables import TABLES

ROWS = [(name, row) for name, table in TABLES.items() for row in table.rows]


@pytest.mark.parametrize("name", TABLES)
def test_rows_of_a_table_have_names_of_their_own(name):
    names = [row.name for row in TABLES[name].rows]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", TABLES)
def test_the_mean_of_a_table_is_over_cases_that_it_has(name):
    assert set(TABLES[name].averaged) <= set(TABLES[name].cases)


@pytest.mark.parametrize(("name", "row"), ROWS, ids=lambda value: value if isinstance(value, str) else value.name)
def test_every_row_can_be_built_for_its_engines(tmp_path, name, row):
    table = TABLES[name]
    profile = load_profile(table.engine)
    study = Study(tmp_path, profile, profile).flagged(**row.flags)
    trial = Trial(**{key: getattr(row.trial, key) for key in Trial.__slots__} | {"backends": table.backends})
    built = front(trial, study.engine)
    assert built.next_wake() is None
    assert len(built.arrive(0.0, 0, 1000, 10)) == 1


def test_every_row_of_a_table_is_a_different_experiment():
    for table in TABLES.values():
        seen = [(repr(row.trial), repr(sorted(row.flags.items())), row.load_factor) for row in table.rows]
        assert len(set(seen)) == len(seen)
