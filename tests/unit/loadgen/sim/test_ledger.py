from zlib import crc32

import orjson
import pytest

from loadgen.failure import UsageError
from loadgen.sim.ledger import Ledger, Meter


def test_a_body_written_in_pieces_counts_as_the_whole():
    meter = Meter()
    for piece in (b"data: a\n\n", b"", b"data: b\n\n"):
        meter.add(piece)
    assert (meter.size, meter.crc32) == (18, crc32(b"data: a\n\ndata: b\n\n"))


def test_each_request_is_one_line_that_can_be_read_at_once(tmp_path):
    ledger, meter = Ledger(tmp_path / "ledger.jsonl"), Meter()
    ledger.write("run-1", 200, meter)
    meter.add(b"x")
    meter.whole = True
    ledger.write("run-2", 400, meter)
    one, two = map(orjson.loads, (tmp_path / "ledger.jsonl").read_bytes().splitlines())
    ledger.close()
    assert one == {"request_id": "run-1", "status": 200, "bytes": 0, "crc32": 0, "whole": False}
    assert two == {"request_id": "run-2", "status": 400, "bytes": 1, "crc32": crc32(b"x"), "whole": True}


def test_a_file_that_cannot_be_made_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match=r"--ledger .*: cannot be written: No such file"):
        Ledger(tmp_path / "missing" / "ledger.jsonl")
