"""Mooncake's JSONL: timestamp (milliseconds from 0), input_length, output_length, hash_ids of 512-token blocks."""

from loadgen.tracefile import keys
from loadgen.tracefile.row import Row

BLOCK_TOKENS = 512
TIME_UNIT = "milliseconds from the start"
KEYS = frozenset({"timestamp", "input_length", "output_length", "hash_ids"})


def parse(line: str, number: int) -> Row:
    """Read one line.

    Raises:
        LineError: a key is missing or of the wrong type, or the block ids do not cover the prompt exactly.
    """
    document = keys.document_of(line)
    prompt, output = keys.count(document, "input_length"), keys.count(document, "output_length")
    t_ns = keys.time_ns(document, 1_000_000, "milliseconds from 0")
    return Row(number, t_ns, prompt, output, keys.block_ids(document, prompt, BLOCK_TOKENS), BLOCK_TOKENS)
