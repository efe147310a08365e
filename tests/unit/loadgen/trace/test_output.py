import gzip

import pytest

from loadgen.failure import StopError, UsageError
from loadgen.trace.output import Output


def test_a_file_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "t"
    with Output(path) as out:
        out.write("one")
        assert not path.exists()
    assert path.read_bytes() == b"one\n"


def test_nothing_is_left_when_it_goes_wrong(tmp_path):
    def half():
        with Output(tmp_path / "t.gz") as out:
            out.write("one")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        half()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_stays_unless_it_may_be_replaced(tmp_path):
    path = tmp_path / "t"
    path.write_text("old")
    with pytest.raises(UsageError, match="is there already"):
        Output(path)
    with Output(path, force=True) as out:
        out.write("new")
    assert path.read_text() == "new\n"


def test_equal_lines_are_equal_compressed_files(tmp_path):
    for name in ("a.gz", "b.gz"):
        with Output(tmp_path / name) as out:
            out.write("one")
    assert gzip.decompress((tmp_path / "a.gz").read_bytes()) == b"one\n"
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


def test_a_folder_that_is_not_there_is_said(tmp_path):
    with pytest.raises(StopError, match="cannot be written"), Output(tmp_path / "no" / "t"):
        pass
