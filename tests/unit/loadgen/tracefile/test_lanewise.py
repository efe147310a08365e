from dataclasses import replace

import pytest

from loadgen.tracefile.lanewise import Parser
from loadgen.tracefile.row import LineError
from proxy.wire.trace import Record, encode

RECORD = Record(
    arrived_s=1_700_000_000.25,
    request_id="r",
    endpoint="chat",
    model="m",
    lane="short",
    outcome="ok",
    prompt_tokens_estimated=90,
    prompt_tokens=100,
    output_tokens=20,
    block_tokens=64,
    hash_ids=("aa", "bb"),
)


def parse(record, assume=256):
    return Parser(assume).parse(encode(record).decode(), 5)


def test_what_the_engine_counted_is_asked_again():
    row = parse(RECORD)
    assert (row.t_ns, row.prompt_tokens, row.output_tokens, row.block_tokens) == (
        1_700_000_000_250_000_000,
        100,
        20,
        64,
    )
    assert len(set(row.blocks)) == 2


def test_equal_hashes_are_equal_blocks():
    other = parse(replace(RECORD, hash_ids=("aa", "cc")))
    mine = parse(RECORD)
    assert mine.blocks[0] == other.blocks[0]
    assert mine.blocks[1] != other.blocks[1]


def test_the_estimate_stands_in_where_the_engine_said_nothing():
    assert parse(replace(RECORD, prompt_tokens=None)).prompt_tokens == 90


@pytest.mark.parametrize(
    ("record", "output"),
    [
        (replace(RECORD, outcome="rejected", output_tokens=None, output_cap=300), 300),
        (replace(RECORD, outcome="expired", output_tokens=None, output_cap=300, output_cap_sent=200), 200),
        (replace(RECORD, outcome="client_gone", output_tokens=3), 256),
    ],
)
def test_a_request_that_did_not_finish_asks_for_its_cap(record, output):
    parser = Parser(256)
    assert parser.parse(encode(record).decode(), 5).output_tokens == output
    assert parser.assumed == 1


def test_requests_that_generate_nothing_are_no_rows():
    assert parse(replace(RECORD, endpoint="embeddings")) is None


@pytest.mark.parametrize(
    "line",
    ["{}", "nonsense", encode(replace(RECORD, prompt_tokens=None, prompt_tokens_estimated=None)).decode()],
)
def test_a_line_that_is_no_usable_record_is_refused(line):
    with pytest.raises(LineError):
        Parser(256).parse(line, 5)
