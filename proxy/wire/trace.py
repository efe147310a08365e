"""Trace record v1: one line of JSON per finished request. Lengths, times and salted hashes; no text."""

from dataclasses import dataclass

SCHEMA = "lanewise.trace/1"


@dataclass(frozen=True, slots=True)
class Record:
    """One request as the proxy saw it. Times are seconds; absent values are None and are left out of the line."""

    arrived_s: float
    """Arrival on the wall clock (Unix seconds): the only wall-clock value; all others are durations from it."""
    request_id: str
    endpoint: str
    model: str | None
    lane: str | None
    outcome: str
    reason: str | None = None
    phase: str | None = None
    status: int | None = None
    """HTTP status sent to the client; None when it left before one was sent."""
    stream: bool = False
    sequences: int = 1
    prompt_tokens_estimated: int | None = None
    prompt_tokens: int | None = None
    """From the engine's `usage`."""
    cached_tokens: int | None = None
    output_tokens: int | None = None
    """From the engine's `usage`; else the number of token events (then `output_source` is "events")."""
    output_source: str | None = None
    output_cap: int | None = None
    """What the client asked for."""
    output_cap_sent: int | None = None
    """What the engine was asked for, when a cap of ours changed it."""
    finish_reason: str | None = None
    backend: str | None = None
    attempts: int = 0
    queue_s: float | None = None
    """Arrival to dispatch."""
    first_token_s: float | None = None
    """Arrival to the first token event."""
    last_token_s: float | None = None
    end_s: float | None = None
    """Arrival to the last byte, or to whatever ended it."""
    request_bytes: int = 0
    response_bytes: int = 0
    block_tokens: int | None = None
    """Size of one hashed prefix block, in (estimated) tokens."""
    hash_ids: tuple[str, ...] = ()
    """Salted chain hashes of the prompt's prefix blocks: equal ids are equal prefixes."""
    config: str | None = None
    """Hash of the configuration in force."""
    text: str | None = None
    """The request body, only when the operator asked for it."""
