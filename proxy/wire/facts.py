"""What a request says about itself: the nouns that classify and the recorder read.

Named tuples, because some are made for every request: a frozen dataclass costs four times as much.
"""

from enum import StrEnum
from typing import NamedTuple


class Dialect(StrEnum):
    """Whose error bodies and stream events a path speaks."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


class Endpoint(StrEnum):
    """A serving endpoint by what its body means; the metric and trace label."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    EMBEDDINGS = "embeddings"
    POOLING = "pooling"
    """/pooling, /classify, /score, /rerank and their versioned twins."""
    UTILITY = "utility"
    """No generation and no prefill to speak of: models, tokenize, health. Never queued."""

    @property
    def dialect(self) -> Dialect:
        """Return the dialect of its error bodies."""
        return Dialect.ANTHROPIC if self is Endpoint.MESSAGES else Dialect.OPENAI


class TextCensus(NamedTuple):
    """How much text of each script class a prompt holds, in characters; the input of the length estimate."""

    latin: int = 0
    """ASCII letters, spaces and everything not named below."""
    digits: int = 0
    symbols: int = 0
    """ASCII punctuation: dense in code and JSON."""
    cjk: int = 0
    """Chinese, Japanese, Korean."""
    other: int = 0
    """Other scripts and emoji."""
    base64: int = 0
    """Characters inside long unbroken base64-like runs."""
    media_parts: int = 0
    """Images, audio, video: parts whose bytes are not tokens."""
    messages: int = 0
    """Turns; each costs a few template tokens."""


class OutputFields(NamedTuple):
    """Output length as the body asks for it, whatever the dialect calls it."""

    cap: int | None = None
    """Tokens asked for at most, per sequence. None: absent or null. Completions without the key: 16, as engines take
    it."""
    cap_fields: tuple[str, ...] = ()
    """Keys of the body that carry a usable cap or null, the winning one first; empty when the body names none."""
    min_tokens: int | None = None
    thinking_budget: int | None = None


class Facts(NamedTuple):
    """What the body says. Wrong types are not corrected here: the engine answers them; facts take what is usable."""

    endpoint: Endpoint
    model: str | None = None
    stream: bool = False
    asks_usage: bool = False
    """The client asked for the usage event of its stream itself."""
    may_ask_usage: bool = False
    """The proxy may set `stream_options.include_usage` and take the event out again: a stream of chat or completions
    that does not ask itself, and where asking changes nothing but that one event."""
    prompts: int = 1
    n: int = 1
    """Sequences per prompt (`n`; `use_beam_search` counts its `n`)."""
    prompt_tokens: int | None = None
    """Exact, when the prompt came as token ids."""
    census: TextCensus = TextCensus()
    partial_census: bool = False
    """Part of the prompt is not text in this body (media, embeddings, an earlier response): teach no estimate by it."""
    body_bytes: int = 0
    output: OutputFields = OutputFields()
    truncate_prompt_tokens: int | None = None
    """The engine keeps at most this many prompt tokens; -1: as many as fit."""
    priority: int | None = None
    cache_salt: str | None = None
    kv_transfer: bool = False
    """Carries `kv_transfer_params`: never touch anything in it."""
    splittable: bool = False
    """Text only, one prompt, nothing that stops the engine from reading its prefix cache."""
    blocks: tuple[str, ...] = ()
    """Prompt text in order (or comma-joined token ids), only filled when asked for: input of the prefix hashes."""

    @property
    def sequences(self) -> int:
        """Slots: every prompt times `n`, at least 1."""
        return max(1, self.prompts) * max(1, self.n)

    def without_text(self) -> "Facts":
        """Return them without what the client wrote: the text of the prompt, and the salt of its cache."""
        return Facts._make((*self[:_SALT], None, *self[_SALT + 1 : _BLOCKS], ()))  # `_replace` costs twice as much


_SALT = Facts._fields.index("cache_salt")
_BLOCKS = Facts._fields.index("blocks")
"""The last field."""
