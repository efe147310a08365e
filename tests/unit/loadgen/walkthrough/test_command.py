"""The walkthrough's command line: what it refuses, and its exit codes."""

import json

import pytest

from loadgen.cli import main

TARGET = ("--target", "http://127.0.0.1:9")


@pytest.fixture
def here(capsys, tmp_path):
    def run(*arguments):
        with pytest.raises(SystemExit) as stopped:
            main(["walkthrough", *TARGET, "--out", str(tmp_path / "walk"), *arguments])
        printed = capsys.readouterr()
        return stopped.value.code, printed.out, printed.err

    return run


def test_it_says_at_once_that_nothing_answers(here):
    code, out, err = here("--yes")
    assert (code, out) == (1, "")
    assert err.startswith("lanewise-load: step 1 of 4 (shortest) failed: http://127.0.0.1:9 does not answer")


def test_json_is_one_document_when_a_step_fails_too(here):
    code, out, _ = here("--yes", "--json")
    document = json.loads(out)
    assert (code, document["complete"], document["failed"], document["steps"]) == (1, False, "shortest", {})
    assert "does not answer" in document["reason"]


def test_it_asks_at_a_terminal_only_and_touches_nothing_else(here, tmp_path):
    code, _, err = here()
    assert code == 2
    assert "say --yes" in err
    assert not (tmp_path / "walk").exists()


@pytest.mark.parametrize("most", ["0", "1025"])
def test_the_highest_concurrency_has_bounds(here, most):
    code, _, err = here("--yes", "--most", most)
    assert (code, "from 1 to 1024" in err) == (2, True)
