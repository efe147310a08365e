"""Which prompt prefixes a backend has computed lately, as far as we sent them there: a bounded memory of marks.

An engine finds the beginning of a prompt in its prefix cache when it has computed the same beginning not long ago. We
do not see its cache; we see what we sent. So this is a guess, and it only ever weighs in the choice among backends,
next to the work that waits there: no prompt is bound to a backend by it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MARKS_WITHOUT_SIZE: Final = 4096
"""Marks kept for a backend whose cache size is unknown: about a million tokens."""
TOKENS_PER_MARK: Final = 256
"""About what one mark stands for; only sizes the memory."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """The beginning of a prompt."""

    marks: tuple[int, ...]
    """One number per piece of the text, each standing for everything up to the end of its piece."""
    tokens_per_mark: float
    """Prompt tokens that one piece holds, estimated."""


class PrefixMemory:
    """Marks of what was sent to one backend; the least recently sent are forgotten first.

    Args:
        kv_tokens: size of its KV cache, tokens; None: unknown.
    """

    def __init__(self, kv_tokens: int | None = None) -> None:
        self._marks: dict[int, None] = {}
        """Least recently sent first."""
        self._room = _room(kv_tokens)

    def __repr__(self) -> str:
        return f"<PrefixMemory {len(self._marks)} of {self._room} marks>"

    def __len__(self) -> int:
        return len(self._marks)

    def resize(self, kv_tokens: int | None) -> None:
        """Take another size of the cache."""
        self._room = _room(kv_tokens)
        self._shrink()

    def note(self, prefix: Prefix) -> None:
        """Remember that a prompt with this beginning was sent."""
        marks = self._marks
        # The end first: when room is needed, the long tail goes before the beginning that many prompts share.
        for mark in reversed(prefix.marks):
            marks.pop(mark, None)
            marks[mark] = None
        self._shrink()

    def cached_tokens(self, prefix: Prefix) -> float:
        """Return how many tokens of a prompt the backend is likely to find in its cache."""
        return self._leading(prefix.marks) * prefix.tokens_per_mark

    def clear(self) -> None:
        """Forget everything: the engine's cache is empty."""
        self._marks.clear()

    def _leading(self, marks: Sequence[int]) -> int:
        for count, mark in enumerate(marks):
            if mark not in self._marks:
                return count
        return len(marks)

    def _shrink(self) -> None:
        while len(self._marks) > self._room:
            del self._marks[next(iter(self._marks))]


def _room(kv_tokens: int | None) -> int:
    return MARKS_WITHOUT_SIZE if kv_tokens is None else max(1, kv_tokens // TOKENS_PER_MARK)
