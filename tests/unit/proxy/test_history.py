"""What is remembered of the configurations that were in force."""

import json
import os

import pytest

from proxy.history import BAD, KEEP, KEPT, LARGEST_FILE, Entry, History, HistoryFile, read_document, state_directory
from proxy.settings import Settings


def history(*shas):
    made = History()
    for number, sha in enumerate(shas):
        made.enter(sha, f"# {sha}\n", float(number))
    return made


def settings(**more):
    return Settings.model_validate({"backends": ["http://a:1"], **more})


def test_the_first_configuration_has_nothing_before_it():
    assert history("a").earlier_good() is None
    assert History().earlier_good() is None


def test_the_one_before_is_returned_to():
    assert history("a", "b", "c").earlier_good().sha == "b"


def test_those_that_were_judged_bad_are_passed_over():
    made = history("a", "b")
    made.judge(BAD, "slow")
    made.enter("c", "", 9.0)
    assert made.earlier_good().sha == "a"


def test_going_back_again_goes_further_back():
    made = history("a", "b", "c")
    for expected in ("b", "a"):
        entry = made.earlier_good()
        made.judge(BAD, "rolled back")
        made.return_to(entry.sha, 10.0)
        assert made.in_force.sha == expected
    assert made.earlier_good() is None


def test_what_comes_after_a_return_follows_all_that_was_tried():
    made = history("a", "b")
    made.judge(BAD, "")
    made.return_to("a", 5.0)
    made.enter("c", "", 6.0)
    assert [entry.sha for entry in made.entries] == ["a", "b", "c"]
    assert made.earlier_good().sha == "a"


def test_a_known_configuration_keeps_what_was_judged_of_it():
    made = history("a", "b")
    made.judge(KEEP, "p99 halved")
    made.enter("a", "# a\n", 7.0)
    made.enter("b", "# b again\n", 8.0)
    assert [entry.sha for entry in made.entries] == ["a", "b"]
    assert made.in_force == Entry("b", "# b again\n", 8.0, KEEP, "p99 halved")


def test_ten_are_kept():
    made = history(*map(str, range(25)))
    assert [entry.sha for entry in made.entries] == [str(number) for number in range(15, 25)]
    assert len(made.entries) == KEPT


def test_returning_to_an_unknown_one_is_an_error():
    with pytest.raises(KeyError):
        history("a").return_to("b", 0.0)


def test_a_history_survives_on_disk(tmp_path):
    file = HistoryFile(tmp_path / "state", 9100)
    made = history("a", "b")
    made.judge(BAD, "slow: 慢")
    file.write(made)
    assert file.read() == made
    assert file.in_force.read_text().endswith("# b\n")
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["history-9100.json", "in-force-9100.yaml"]
    assert file.path.stat().st_mode & 0o077 == 0


def test_no_file_is_an_empty_history(tmp_path):
    assert HistoryFile(tmp_path, 1).read() == History()


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"schema": "other/1"}',
        json.dumps({"schema": "lanewise.history/1", "current": None, "entries": [{"sha": "a"}]}),
        json.dumps(
            {"schema": "lanewise.history/1", "current": None, "entries": [{"sha": "a", "text": 1, "since": 0.0}]}
        ),
        json.dumps(
            {"schema": "lanewise.history/1", "current": None, "entries": [{"sha": "a", "text": "", "since": "0"}]}
        ),
        json.dumps(
            {
                "schema": "lanewise.history/1",
                "current": None,
                "entries": [{"sha": "a", "text": "", "since": 0, "verdict": "so-so"}],
            }
        ),
        "[" * 99_999,
    ],
)
def test_what_is_no_history_is_an_error_and_not_a_crash(tmp_path, text):
    file = HistoryFile(tmp_path, 1)
    file.path.write_text(text)
    with pytest.raises(ValueError):
        file.read()


def test_what_no_lanewise_wrote_is_not_read(tmp_path):
    pipe, folder, large, gone = (tmp_path / name for name in ("pipe", "folder", "large", "gone"))
    os.mkfifo(pipe)
    folder.mkdir()
    with large.open("wb") as file:
        file.truncate(LARGEST_FILE + 1)
    for path, why in ((pipe, "no regular file"), (folder, "no regular file"), (large, "larger than 4 MiB")):
        with pytest.raises(ValueError, match=why):
            read_document(path)
    assert read_document(gone) is None


def test_a_link_is_followed_for_reading_and_replaced_by_writing(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "state").mkdir()
    file = HistoryFile(tmp_path / "state", 1)
    file.write(history("a"))
    file.path.rename(elsewhere)
    file.path.symlink_to(elsewhere)
    assert file.read() == history("a")
    file.write(history("b"))
    assert (file.read(), file.path.is_symlink()) == (history("b"), False)
    assert '"a"' in elsewhere.read_text()


def test_a_reason_from_a_shell_whose_bytes_are_no_text_is_kept(tmp_path):
    file = HistoryFile(tmp_path, 1)
    made = history("a")
    made.judge(BAD, os.fsdecode(b"slow \xff"))
    file.write(made)
    assert file.read() == made


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    file = HistoryFile(tmp_path, 1)
    file.write(history("a"))

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("proxy.history.os.fsync", full)
    with pytest.raises(OSError):
        file.write(history("a", "b"))
    assert file.read() == history("a")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["history-1.json", "in-force-1.yaml"]


def test_the_named_directory_comes_first(tmp_path):
    named = settings(state_dir=str(tmp_path), admin="127.0.0.1:0")
    assert state_directory(named, {"XDG_STATE_HOME": "/x"}, tmp_path) == tmp_path


def test_without_a_name_it_is_that_of_the_session_or_of_the_system(tmp_path):
    assert str(state_directory(settings(), {"XDG_STATE_HOME": "/x"}, tmp_path)) == "/x/lanewise"
    assert state_directory(settings(), {}, tmp_path) == tmp_path
    assert state_directory(settings(), {}, tmp_path / "missing") is None


def test_a_proxy_on_a_port_of_chance_remembers_nothing(tmp_path):
    assert state_directory(settings(admin="127.0.0.1:0"), {"XDG_STATE_HOME": "/x"}, tmp_path) is None
