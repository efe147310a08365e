"""The file of one source: readable whatever moment the run was killed at."""

import orjson
import pytest

from loadgen.failure import UsageError
from loadgen.telemetry.samples import Sample, read_samples_file


def test_what_was_written_is_read(tmp_path):
    made = [
        Sample(-1.0, numbers={"running": 1.0}),
        Sample(0.5, cards={"0": {"power_w": 90.0}}),
        Sample(1.5, error="status 500"),
    ]
    file = tmp_path / "engine.jsonl"
    file.write_bytes(b"".join(orjson.dumps(one.line()) + b"\n" for one in made))
    assert list(read_samples_file(file)) == made


def test_a_cut_last_line_is_left_out(tmp_path):
    file = tmp_path / "engine.jsonl"
    file.write_bytes(b'{"t":1.0}\n{"t":2.0,"numb')
    assert [sample.t for sample in read_samples_file(file)] == [1.0]


def test_a_broken_line_is_named(tmp_path):
    file = tmp_path / "engine.jsonl"
    file.write_bytes(b'{"t":1.0}\nnonsense\n{"t":2.0}\n')
    with pytest.raises(UsageError, match=r"engine\.jsonl:2"):
        list(read_samples_file(file))


def test_a_missing_file_has_no_readings(tmp_path):
    assert list(read_samples_file(tmp_path / "cards.jsonl")) == []
