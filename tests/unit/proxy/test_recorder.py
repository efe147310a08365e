"""Trace files: whole lines, rotation, retention, disks that fill up and empty again."""

import errno
import os
import stat

import pytest

from proxy import recorder
from proxy.recorder import FileLimits, RecorderError, TraceFiles
from proxy.settings import Settings

WALL = 1_790_000_000.0
LINE = b'{"n":1}\n'


def files_in(directory):
    return sorted(path.name for path in directory.glob("trace-*"))


def limits(**more):
    return FileLimits(**{"rotate_bytes": 1000, "rotate_s": 60.0, "keep_files": 10, "keep_bytes": 10**6, **more})


def test_a_file_is_named_by_its_first_moment_in_utc(tmp_path):
    files = TraceFiles(tmp_path, limits())
    files.append(LINE, now=5.0, wall=WALL)
    files.close()
    assert files_in(tmp_path) == ["trace-20260921T141320Z-000001.jsonl"]
    assert (tmp_path / files_in(tmp_path)[0]).read_bytes() == LINE


def test_a_full_file_is_followed_by_a_new_one(tmp_path):
    files = TraceFiles(tmp_path, limits(rotate_bytes=3 * len(LINE)))
    for _ in range(7):
        files.append(LINE, now=5.0, wall=WALL)
    files.close()
    assert [len((tmp_path / name).read_bytes()) // len(LINE) for name in files_in(tmp_path)] == [3, 3, 1]


def test_an_old_file_is_followed_by_a_new_one(tmp_path):
    files = TraceFiles(tmp_path, limits())
    files.append(LINE, now=5.0, wall=WALL)
    files.append(LINE, now=64.9, wall=WALL + 59.9)
    files.append(LINE, now=65.0, wall=WALL + 60)
    files.close()
    assert [len((tmp_path / name).read_bytes()) // len(LINE) for name in files_in(tmp_path)] == [2, 1]


def test_a_quiet_proxy_hands_its_file_over_too(tmp_path):
    files = TraceFiles(tmp_path, limits())
    files.append(LINE, now=0.0, wall=WALL)
    files.rotate_if_old(now=60.0)
    files.append(LINE, now=61.0, wall=WALL + 61)
    files.close()
    assert len(files_in(tmp_path)) == 2


def test_a_name_that_is_taken_is_never_written_over(tmp_path):
    for _ in range(2):
        files = TraceFiles(tmp_path, limits())
        files.append(LINE, now=0.0, wall=WALL)
        files.close()
    assert [path.read_bytes() for path in sorted(tmp_path.iterdir())] == [LINE, LINE]


@pytest.mark.parametrize("bound", [{"keep_files": 2}, {"keep_bytes": 2 * len(LINE)}])
def test_the_oldest_files_are_removed_and_nothing_else(tmp_path, bound):
    (tmp_path / "salt").write_text("grain")
    (tmp_path / "trace-notes.jsonl").write_text("mine")
    files = TraceFiles(tmp_path, limits(rotate_bytes=1, **bound))
    for number in range(5):
        files.append(LINE, now=0.0, wall=WALL + number)
    files.close()
    left = files_in(tmp_path)
    assert "trace-notes.jsonl" in left
    assert [name[-12:] for name in left if name != "trace-notes.jsonl"][-1] == "000005.jsonl"
    assert len(left) <= 4
    assert (tmp_path / "salt").exists()


class Disk:
    """A disk that takes `room` more bytes."""

    def __init__(self, room):
        self.room = room

    def write(self, file, data):
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = os.write(file, data[: self.room])
        self.room -= taken
        return taken


def test_a_full_disk_leaves_only_whole_lines_and_writing_goes_on_when_there_is_room(tmp_path):
    disk = Disk(room=len(LINE) + 3)
    files = TraceFiles(tmp_path, limits(), disk.write)
    files.append(LINE, now=0.0, wall=WALL)
    with pytest.raises(OSError, match="No space left"):
        files.append(LINE * 2, now=1.0, wall=WALL)
    disk.room = 10**6
    files.append(LINE, now=2.0, wall=WALL)
    files.close()
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [LINE * 2]


def test_short_writes_are_continued(tmp_path):
    files = TraceFiles(tmp_path, limits(), lambda file, data: os.write(file, data[:2]))
    files.append(LINE, now=0.0, wall=WALL)
    files.close()
    assert next(tmp_path.iterdir()).read_bytes() == LINE


def settings(directory, **more):
    return Settings.model_validate(
        {"backends": ["http://a:1"], "recorder": {"enabled": True, "directory": str(directory), **more}}
    )


def test_a_recorder_that_is_switched_off_is_none():
    assert recorder.start(Settings.model_validate({"backends": ["http://a:1"]})) is None


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecorderError, match=r"recorder\.directory .*file/deeper: Not a directory"):
        recorder.start(settings(tmp_path / "file" / "deeper"))


def test_an_empty_salt_file_is_refused(tmp_path):
    (tmp_path / "salt").write_text("\n")
    with pytest.raises(RecorderError, match=r"salt is empty; remove it and a new one is made"):
        recorder.start(settings(tmp_path))


def test_the_salt_is_made_once_and_only_its_owner_may_read_it(tmp_path):
    path = tmp_path / "salt"
    first, second = recorder.read_or_make_salt(path), recorder.read_or_make_salt(path)
    assert first == second
    assert len(first) == 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
