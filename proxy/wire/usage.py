"""Token counts as the engine reports them, in every dialect."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """The engine's own counts. None: not reported."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    """Prompt tokens that came from the prefix cache; needs `--enable-prompt-tokens-details` on vLLM."""


def read_usage(document: object) -> Usage | None:
    """Read a `usage` object.

    Args:
        document: the value of a `usage` key: `prompt_tokens` / `completion_tokens` (chat, completions, pooling) or
            `input_tokens` / `output_tokens` (responses, messages).

    Returns:
        The counts, or None when it is no object or holds none of them.
    """
    if not isinstance(document, Mapping):
        return None
    usage = Usage(
        prompt_tokens=_prompt(document),
        completion_tokens=_first(document, "completion_tokens", "output_tokens"),
        cached_tokens=_cached(document),
    )
    return usage if usage != Usage() else None


def merge_usage(old: Usage | None, new: Usage | None) -> Usage | None:
    """Lay a later report over an earlier one; a count that the later one leaves out stays."""
    if old is None or new is None:
        return new or old
    return Usage(
        prompt_tokens=old.prompt_tokens if new.prompt_tokens is None else new.prompt_tokens,
        completion_tokens=old.completion_tokens if new.completion_tokens is None else new.completion_tokens,
        cached_tokens=old.cached_tokens if new.cached_tokens is None else new.cached_tokens,
    )


def _prompt(document: Mapping[str, object]) -> int | None:
    tokens = _first(document, "prompt_tokens", "input_tokens")
    if tokens is None:
        return None
    # Anthropic's `input_tokens` leaves out what these two count.
    return tokens + sum(
        _first(document, key) or 0 for key in ("cache_read_input_tokens", "cache_creation_input_tokens")
    )


def _cached(document: Mapping[str, object]) -> int | None:
    for key in ("prompt_tokens_details", "input_tokens_details"):
        details = document.get(key)
        if isinstance(details, Mapping) and (cached := _first(details, "cached_tokens")) is not None:
            return cached
    return _first(document, "cache_read_input_tokens")


def _first(document: Mapping[str, object], *keys: str) -> int | None:
    for key in keys:
        value = document.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None
