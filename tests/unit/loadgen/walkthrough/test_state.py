"""The folder of a walkthrough goes on under the same conditions only."""

import pytest

from loadgen.failure import UsageError
from loadgen.walkthrough.state import FILE, State


def test_what_was_done_is_there_when_it_is_opened_again(tmp_path):
    State.opened(tmp_path / "w", {"target": "a"}).done("shortest", {"sentence": "x"})
    assert State.opened(tmp_path / "w", {"target": "a"}).steps == {"shortest": {"sentence": "x"}}


def test_other_conditions_are_refused_and_named(tmp_path):
    State.opened(tmp_path / "w", {"target": "a"})
    with pytest.raises(UsageError, match="target was 'a' and is 'b'"):
        State.opened(tmp_path / "w", {"target": "b"})


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(UsageError, match="no walkthrough"):
        State.opened(tmp_path, {})


@pytest.mark.parametrize("text", ["{", '{"schema": "other"}', "3"])
def test_a_state_that_cannot_be_read_is_refused(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(UsageError, match=FILE):
        State.opened(tmp_path, {})


def test_a_run_that_was_broken_off_stays_and_the_next_try_gets_a_number(tmp_path, made):
    state = State.opened(tmp_path / "w", {})
    folder, there = state.run_folder("run")
    assert (folder.path.name, there) == ("run", False)
    made.folder("w/run", [made.ok(0)], complete=False)
    assert state.run_folder("run")[0].path.name == "run-2"
    made.folder("w/run-2", [made.ok(0)], complete=True)
    again, there = state.run_folder("run")
    assert (again.path.name, there) == ("run-2", True)
