import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.tracefile import azure, bailian, lanewise, mooncake
from loadgen.tracefile.row import Row
from loadgen.tracefile.write import Losses, Writer, regrouped, retimed

US = 1000
WALL_NS = 1_790_000_000 * 10**9


def reader(name):
    if name == "lanewise":
        return lanewise.Parser(256).parse
    return {"azure": azure, "mooncake": mooncake, "bailian": bailian}[name].parse


@st.composite
def rows(draw, block_tokens, grain_ns):
    prompt = draw(st.integers(1, 3000))
    count = -(-prompt // block_tokens) if block_tokens else 0
    blocks = draw(st.lists(st.integers(0, 2**40), min_size=count, max_size=count))
    # From zero, and on a wall clock, where a double has no room for nanoseconds.
    t_ns = (draw(st.sampled_from([0, WALL_NS // grain_ns])) + draw(st.integers(0, 10**9))) * grain_ns
    return Row(2, t_ns, prompt, draw(st.integers(1, 999)), tuple(blocks), block_tokens)


@pytest.mark.parametrize(
    ("name", "block_tokens", "grain_ns"),
    [("azure", 0, 100), ("mooncake", 512, US), ("bailian", 16, US), ("lanewise", 64, US), ("lanewise", 0, US)],
)
@given(st.data())
def test_a_row_that_is_written_is_read_back(name, block_tokens, grain_ns, data):
    row = data.draw(rows(block_tokens, grain_ns))
    losses = Losses()
    zero_ns = WALL_NS if row.t_ns >= WALL_NS and name in {"mooncake", "bailian"} else 0
    back = reader(name)(Writer(zero_ns, losses).line(name, row), 2)
    assert (back.t_ns + zero_ns, back.prompt_tokens, back.output_tokens) == (
        row.t_ns,
        row.prompt_tokens,
        row.output_tokens,
    )
    assert (back.blocks, back.block_tokens) == (row.blocks, row.block_tokens)
    assert losses.sentences() == []


@pytest.mark.parametrize("name", ["mooncake", "bailian"])
def test_formats_that_count_from_their_start_do(name):
    row = Row(1, 5_000_000_000, 10, 1)
    line = json.loads(Writer(3_000_000_000, Losses()).line(name, row))
    assert line["timestamp"] == {"mooncake": 2000, "bailian": 2}[name]


def test_conversations_survive_in_bailian_and_are_told_as_lost_elsewhere():
    row = Row(1, 0, 10, 1, chat=7, parent=3, turn=2)
    losses = Losses()
    back = bailian.parse(Writer(0, losses).line("bailian", row), 1)
    assert (back.chat, back.parent, back.turn, losses.sentences()) == (7, 3, 2, [])
    Writer(0, losses).line("mooncake", row)
    assert losses.sentences() == ["which turn follows which: 1 requests"]


def test_what_azure_cannot_hold_is_told():
    losses = Losses()
    Writer(0, losses).line("azure", Row(1, 1, 600, 1, (1, 2), 512))
    assert losses.sentences() == ["shared prefixes (block ids): 1 requests", "times finer than 100 ns: 1 requests"]


@given(st.integers(0, 200), st.integers(0, 200), st.integers(0, 200), st.sampled_from([(16, 512), (512, 16), (48, 32)]))
def test_prompts_share_as_many_whole_blocks_of_the_new_size(shared, one, two, sizes):
    old, new = sizes
    alike, others = tuple(range(shared)), iter(range(10**6, 10**7))
    rows = [
        Row(number, 0, max(1, (shared + more) * old), 1, alike + tuple(next(others) for _ in range(more)), old)
        for number, more in enumerate((one, two))
    ]
    first, second = (regrouped(row, new) for row in rows)
    same = 0
    while same < min(len(first), len(second)) and first[same] == second[same]:
        same += 1
    whole = shared * old // new
    # Two prompts that end alike also share the last block, which is partial.
    assert same == whole or (same == whole + 1 and one == two == 0)
    assert len(set(first[same:]) & set(second[same:])) == 0


def test_blocks_that_were_not_recorded_are_filled_with_numbers_that_occur_nowhere_else():
    writer = Writer(0, Losses())
    lines = [json.loads(writer.line("mooncake", Row(number, 0, 2000, 1)))["hash_ids"] for number in range(50)]
    assert {len(ids) for ids in lines} == {4}
    assert len({block for ids in lines for block in ids}) == 200


@pytest.mark.parametrize(
    ("name", "line", "key"),
    [
        ("mooncake", '{"timestamp":5,"input_length":1,"output_length":1,"hash_ids":[1],"more":"x"}', "timestamp"),
        ("lanewise", '{"schema":"lanewise.trace/1","arrived_s":5,"text":"\\ud800","lane":"short"}', "arrived_s"),
    ],
)
def test_another_time_leaves_everything_else_as_it_was(name, line, key):
    new = json.loads(retimed(name, line, 9_000_000_000, 0))
    assert new.pop(key) == {"mooncake": 9000, "lanewise": 9.0}[name]
    old = json.loads(line)
    old.pop(key)
    assert new == old


def test_a_csv_line_keeps_its_fields():
    assert (
        retimed("azure", "2023-11-16 18:15:46.6805900,374,44", 1_500_000_000, 0) == "1970-01-01 00:00:01.5000000,374,44"
    )
    assert retimed("burstgpt", "5,a,1,2,3,x", 0, 0) is None
