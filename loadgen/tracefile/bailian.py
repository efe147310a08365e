"""Bailian's JSONL (Qwen usage traces): conversations, times in seconds, ids of 16-token blocks.

Keys: chat_id, parent_chat_id (-1: the first turn), timestamp (seconds from 0), input_length, output_length, type, turn,
hash_ids.
"""

from loadgen.tracefile import keys
from loadgen.tracefile.row import LineError, Row

BLOCK_TOKENS = 16
TIME_UNIT = "seconds from the start"
KEYS = frozenset({"chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "hash_ids"})


def parse(line: str, number: int) -> Row:
    """Read one line.

    Raises:
        LineError: a key is missing or of the wrong type, or the block ids do not cover the prompt exactly.
    """
    document = keys.document_of(line)
    prompt, output = keys.count(document, "input_length"), keys.count(document, "output_length")
    chat, parent = keys.count(document, "chat_id"), keys.count(document, "parent_chat_id")
    if not 0 <= chat < keys.MOST_ID or not -1 <= parent < keys.MOST_ID:
        raise LineError("chat_id counts from 0, and parent_chat_id from -1, which is none")
    t_ns = keys.time_ns(document, 1_000_000_000, "seconds from 0")
    blocks = keys.block_ids(document, prompt, BLOCK_TOKENS)
    turn = keys.count(document, "turn") if "turn" in document else 1
    return Row(number, t_ns, prompt, output, blocks, BLOCK_TOKENS, chat=chat, parent=parent, turn=turn)
