import json

import pytest

from loadgen.tracefile.mooncake import parse
from loadgen.tracefile.row import LineError

GOOD = {"timestamp": 3001, "input_length": 1025, "output_length": 7, "hash_ids": [0, 4, 9]}


def test_milliseconds_lengths_and_blocks_are_read():
    row = parse(json.dumps(GOOD), 3)
    assert (row.number, row.t_ns, row.prompt_tokens, row.output_tokens) == (3, 3_001_000_000, 1025, 7)
    assert (row.blocks, row.block_tokens) == ((0, 4, 9), 512)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hash_ids": [0, 4]}, "2 hash_ids, but input_length 1025 is 3 blocks"),
        ({"input_length": 1024}, "3 hash_ids, but input_length 1024 is 2 blocks"),
        ({"hash_ids": [0, 4, "9"]}, "hash_ids"),
        ({"hash_ids": [0, 4, -9]}, "hash_ids"),
        ({"hash_ids": None}, "hash_ids"),
        ({"timestamp": -1}, "timestamp"),
        ({"timestamp": "0"}, "timestamp"),
        ({"timestamp": True}, "timestamp"),
        ({"input_length": 10.5}, "input_length"),
        ({"output_length": None}, "output_length"),
    ],
)
def test_a_row_that_breaks_the_format_says_how(change, reason):
    with pytest.raises(LineError, match=reason):
        parse(json.dumps(GOOD | change), 3)


@pytest.mark.parametrize("key", ["timestamp", "input_length", "output_length", "hash_ids"])
def test_a_missing_key_is_named(key):
    with pytest.raises(LineError, match=key):
        parse(json.dumps({name: value for name, value in GOOD.items() if name != key}), 3)


@pytest.mark.parametrize("line", ["", "{", "[1]", "null"])
def test_what_is_no_object_is_refused(line):
    with pytest.raises(LineError):
        parse(line, 3)
