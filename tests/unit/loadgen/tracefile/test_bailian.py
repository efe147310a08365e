import json

import pytest

from loadgen.tracefile.bailian import parse
from loadgen.tracefile.row import LineError

LINE = {
    "chat_id": 159,
    "parent_chat_id": 55,
    "timestamp": 61.114,
    "input_length": 40,
    "output_length": 7,
    "type": "text",
    "turn": 2,
    "hash_ids": [3, 4, 5],
}


def test_a_line_is_a_turn_with_its_blocks():
    row = parse(json.dumps(LINE), 4)
    assert (row.number, row.t_ns, row.prompt_tokens, row.output_tokens) == (4, 61_114_000_000, 40, 7)
    assert (row.blocks, row.block_tokens) == ((3, 4, 5), 16)
    assert (row.chat, row.parent, row.turn) == (159, 55, 2)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"hash_ids": [3]}, "input_length 40 is 3 blocks of 16"),
        ({"timestamp": -1}, "seconds from 0"),
        ({"chat_id": "a"}, "chat_id is 'a'"),
        ({"chat_id": -1}, "chat_id counts from 0"),
        ({"parent_chat_id": None}, "parent_chat_id is None"),
        ({"input_length": 4.5}, "input_length is 4.5"),
    ],
)
def test_a_broken_line_says_which_key(changed, said):
    with pytest.raises(LineError, match=said):
        parse(json.dumps(LINE | changed), 1)
