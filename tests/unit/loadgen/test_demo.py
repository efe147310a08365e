"""Where a demo writes, and what it may be asked."""

import pytest

from loadgen.cli import main
from loadgen.demo import unused
from loadgen.failure import StopError


def test_a_new_folder_is_taken_as_it_is(tmp_path):
    assert unused(tmp_path / "demo") == tmp_path / "demo"
    assert unused(tmp_path / "demo") == tmp_path / "demo"


def test_a_used_folder_gets_a_number_and_is_left_alone(tmp_path):
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "kept.txt").write_text("x")
    (tmp_path / "demo-2").write_text("a file")
    assert unused(tmp_path / "demo") == tmp_path / "demo-3"
    assert [path.name for path in (tmp_path / "demo").iterdir()] == ["kept.txt"]


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StopError, match="cannot be used"):
        unused(tmp_path / "file" / "demo")


@pytest.mark.parametrize("arguments", [["--preset", "kind"], ["--rate", "fast"], ["--rate", "0"], ["--nothing"]])
def test_a_wrong_option_is_a_usage_error_and_starts_nothing(arguments, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--out", str(tmp_path / "demo"), *arguments])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("lanewise-load: ")
    assert not (tmp_path / "demo").exists()
