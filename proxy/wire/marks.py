"""Cheap marks of how a prompt begins, for choosing among backends; nothing of it leaves the process.

Unlike the hash chains of the trace (`prefix_chain`) they are Python's own hashes: keyed anew in every process, not for
keeping, and about ten microseconds for the 16 KiB that are looked at.
"""

from collections.abc import Sequence
from typing import Final

MARK_CHARS: Final = 1024
"""Characters of one piece: about one to three KV blocks of English, more of Chinese."""
MARKS_AT_MOST: Final = 16
"""What prompts share is at their beginning, and hashing all of a long one would cost more than it tells."""


def prefix_marks(blocks: Sequence[str], scope: Sequence[str]) -> tuple[int, ...]:
    """Mark the beginning of a prompt, piece by piece.

    Two prompts of one scope share their first k marks when they share their first k pieces.

    Args:
        blocks: prompt text in order (`Facts.blocks`).
        scope: what keeps engine caches apart: model and `cache_salt`.

    Returns:
        One number per whole piece of `MARK_CHARS` characters, each standing for everything up to the end of its piece;
        at most `MARKS_AT_MOST`, none for a shorter prompt.
    """
    wanted = MARK_CHARS * MARKS_AT_MOST
    taken: list[str] = []
    size = 0
    for block in blocks:
        piece = block if len(block) < wanted else block[:wanted]
        taken.append(piece)
        size += len(piece) + 1
        if size > wanted:
            break
    text = "\x1e".join(taken)
    mark = hash(tuple(scope))
    marks: list[int] = []
    for start in range(0, min(len(text), wanted) - MARK_CHARS + 1, MARK_CHARS):
        mark = hash((mark, text[start : start + MARK_CHARS]))
        marks.append(mark)
    return tuple(marks)
