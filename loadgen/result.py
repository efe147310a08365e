"""What became of one shot: its outcome and its stamps, and its line in `shots.jsonl`."""

from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from typing import Any


class LoadOutcome(StrEnum):
    """How a request ended as the load generator saw it; every planned shot has exactly one."""

    OK = "ok"
    """A complete stream."""
    REJECTED = "rejected"
    """429, 503 and what is configured."""
    ERROR = "error"
    """Any other HTTP answer, a connection that failed, an error inside the stream."""
    TIMEOUT = "timeout"
    """A time limit of ours: connecting, or the whole request."""
    TRUNCATED = "truncated"
    """The stream ended without a finish reason."""
    STALLED = "stalled"
    """Silence after the first token for longer than the limit."""
    CANCELLED = "cancelled"
    """We gave up: patience ran out, or the run was stopped (before or after the send)."""


@dataclass(frozen=True, slots=True)
class Result:
    """One planned shot after the run. All times are seconds of the plan after its start; None: did not happen."""

    index: int
    """Position in the plan; what pairs two runs."""
    row: int
    """Line of the trace file, or number of the drawn row."""
    lane: str
    prompt_tokens: int
    output_tokens: int
    due: float
    outcome: str
    source: int = 0
    """Position of the trace file among those replayed together."""
    started: float | None = None
    """The generator took the shot up. Late means that the generator was late."""
    sent: float | None = None
    """Just before the request was written."""
    connected: float | None = None
    """Connection ready; equal to `sent` on a kept-alive one."""
    head: float | None = None
    """Response head complete."""
    first: float | None = None
    """First token chunk of any channel."""
    first_content: float | None = None
    """First token chunk that is not reasoning."""
    last: float | None = None
    """Last token chunk."""
    end: float | None = None
    """End of the body, or whatever ended it."""
    tokens: int | None = None
    tokens_from: str | None = None
    """`usage`, or `chunks` when the engine sent no usage."""
    chunks: int = 0
    """Token chunks."""
    status: int | None = None
    finish: str | None = None
    usage_prompt: int | None = None
    cached_tokens: int | None = None
    retry_after: float | None = None
    """Seconds that a rejection asked to wait (wall clock, as sent)."""
    reason: str | None = None
    """Code of the error body, or our own word: patience, stopped, unsent, connect, ..."""
    detail: str | None = None
    """Message of the error."""
    repeats: bool | None = None
    """Whether its text goes round in circles; None: nobody looked."""
    reconnects: int = 0
    """A kept-alive connection turned out closed; sent again on a new one before any byte came back."""
    body_bytes: int = 0
    """Body bytes that arrived, framing removed."""
    body_crc32: int | None = None
    """CRC-32 of them: tells whether a relay changed one."""
    events: tuple[int, ...] = ()
    """Microseconds of the plan: the first event after `sent`, each later one after the one before it. Every data
    event that has a choice, token chunk or not; usage and [DONE] are not in it."""
    kinds: str | None = None
    """One letter per event (see `loadgen.events.Kind`); None: every event is a content token chunk."""
    counts: tuple[int, ...] | None = None
    """Completion tokens so far at each event, when every event carried usage."""

    def line(self) -> dict[str, Any]:
        """Return the journal line: what has its default is left out."""
        return {name: value for name, default in _DEFAULTS if (value := getattr(self, name)) != default}

    @classmethod
    def from_line(cls, line: dict[str, Any]) -> "Result":
        """Read a journal line; unknown keys are ignored, so that newer journals stay readable.

        Raises:
            TypeError: a key that every line has is missing.
        """
        known = {name: value for name, value in line.items() if name in _KNOWN}
        known["events"] = tuple(known.get("events", ()))
        if known.get("counts") is not None:
            known["counts"] = tuple(known["counts"])
        return cls(**known)


_ALWAYS = frozenset({"sent"})
_DEFAULTS = tuple((field.name, MISSING if field.name in _ALWAYS else field.default) for field in fields(Result))
_KNOWN = frozenset(field.name for field in fields(Result))
