import json
import resource
from contextlib import contextmanager

import pytest

from loadgen.failure import Exit, StopError, UsageError
from loadgen.journal import Journal, RunFolder
from loadgen.result import Result


def result(index):
    return Result(index, index + 2, "short", 10, 4, float(index), "ok")


def test_a_folder_is_readable_at_every_moment_and_complete_at_the_end(tmp_path):
    out = tmp_path / "deep" / "run"
    journal = Journal(out, {"label": "x"})
    assert RunFolder(out).manifest()["complete"] is False
    journal.add(result(1))
    assert list(RunFolder(out).results()) == []
    journal.flush()
    journal.add(result(0))
    assert list(RunFolder(out).results()) == [result(1)]
    run = journal.close(complete=True, sent=2)
    assert list(run.results()) == [result(1), result(0)]
    assert run.manifest() == {"schema": "lanewise.run/1", "complete": True, "label": "x", "sent": 2}


def test_a_line_cut_by_a_kill_is_left_out(tmp_path):
    journal = Journal(tmp_path / "run", {})
    journal.add(result(0))
    run = journal.close()
    with (run.path / "shots.jsonl").open("ab") as file:
        file.write(b'{"index": 1, "ro')
    assert list(run.results()) == [result(0)]


@pytest.mark.parametrize("line", ["{}", "[]", "1", "{"])
def test_a_broken_line_in_the_middle_is_named(tmp_path, line):
    journal = Journal(tmp_path / "run", {})
    run = journal.close()
    (run.path / "shots.jsonl").write_text(f"{json.dumps(result(0).line())}\n{line}\n{json.dumps(result(1).line())}\n")
    with pytest.raises(UsageError, match=r"shots\.jsonl:2: "):
        list(run.results())


def test_a_folder_with_something_in_it_is_never_overwritten(tmp_path):
    (tmp_path / "old").write_text("x")
    with pytest.raises(UsageError, match="not empty"):
        Journal(tmp_path, {})
    with pytest.raises(UsageError, match="is a file"):
        Journal(tmp_path / "old", {})
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_an_empty_folder_may_be_used(tmp_path):
    assert Journal(tmp_path, {}).close(complete=True).manifest()["complete"] is True


@pytest.mark.parametrize("manifest", [None, "{", "[]", '{"schema": "other/1"}'])
def test_what_is_no_run_folder_is_refused(tmp_path, manifest):
    if manifest is not None:
        (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(UsageError, match=r"manifest\.json|run folder"):
        RunFolder(tmp_path).manifest()


def test_facts_can_be_added_after_the_run(tmp_path):
    run = Journal(tmp_path / "run", {"label": "x"}).close(complete=True)
    run.note(client_limited=False)
    assert run.manifest()["client_limited"] is False
    assert run.manifest()["label"] == "x"


@contextmanager
def files_of_at_most(size):
    """Let the kernel refuse what goes beyond, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_takes_no_more_is_told_in_one_sentence_and_what_is_on_it_can_be_read(tmp_path):
    out = tmp_path / "run"
    journal = Journal(out, {"label": "x"})
    journal.add(result(0))
    journal.flush()
    for index in range(1, 100):
        journal.add(result(index))
    with files_of_at_most(2000), pytest.raises(StopError, match="cannot be written") as stopped:
        journal.flush()
    assert stopped.value.code == Exit.RUNTIME
    assert "\n" not in str(stopped.value)
    readable = list(RunFolder(out).results())
    assert readable == [result(index) for index in range(len(readable))]
    journal.add(result(100))
    with pytest.raises(StopError):
        journal.close(complete=True)
    assert list(RunFolder(out).results()) == readable
    assert RunFolder(out).manifest()["complete"] is False


def test_a_disk_that_takes_no_manifest_keeps_the_one_before(tmp_path):
    journal = Journal(tmp_path / "run", {"label": "x"})
    with files_of_at_most(2000), pytest.raises(StopError, match="cannot be written"):
        journal.note(long="y" * 3000)
    assert RunFolder(tmp_path / "run").manifest()["label"] == "x"
    assert not (tmp_path / "run/manifest.json.new").exists()
    journal.note(long=None)
    assert journal.close(complete=True).manifest()["complete"] is True
