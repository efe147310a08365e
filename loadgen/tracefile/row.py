"""One recorded request, whatever file it came from."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """Lengths and arrival of one request."""

    number: int
    """Line of its file, counted from 1 (or number of the drawn row)."""
    t_ns: int
    """Arrival in nanoseconds on the clock of its file."""
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    """63-bit ids of the prompt's prefix blocks, in order: equal ids are equal prefixes. Empty: not recorded."""
    block_tokens: int = 0
    """Size of one block; the last may be partial."""
    source: int = 0
    """Position of its file among those read together."""
    chat: int = -1
    """What later turns of its conversation call it; -1: no conversation was recorded."""
    parent: int = -1
    """`chat` of the turn before it; -1: it is the first."""
    turn: int = 1
    """Which turn of its conversation it is, from 1."""
    assumed: bool = False
    """The output length was not recorded (the request failed, say), and stands for what it asked for."""
    body: bytes | None = None
    """The request body, where the file holds it and it was asked for; or `"messages":[…]`, the member of one."""


class LineError(ValueError):
    """One line of a trace cannot be read; the message says why, and whoever reads adds file and line."""


def checked(row: Row) -> Row:
    """Return the row when its lengths make sense.

    Raises:
        LineError: a length is below 1, or the blocks do not cover the prompt.
    """
    if row.prompt_tokens < 1:
        raise LineError(f"prompt length is {row.prompt_tokens}; it must be 1 or more")
    if row.output_tokens < 1:
        raise LineError(f"output length is {row.output_tokens}; it must be 1 or more")
    if row.prompt_tokens > MOST_TOKENS or row.output_tokens > MOST_TOKENS:
        raise LineError(f"a length of more than {MOST_TOKENS} tokens is not believable; is a unit wrong?")
    if not abs(row.t_ns) < LATEST_NS:
        raise LineError("the time is more than 200 years from 0; is a unit wrong?")
    return row


MOST_TOKENS = 100_000_000
LATEST_NS = 200 * 366 * 86_400 * 1_000_000_000
"""Times are kept in 64 bits."""
