"""Token counts as the engine reports them, in every dialect."""

from typing import Final, NamedTuple

_BESIDE: Final = ("cache_read_input_tokens", "cache_creation_input_tokens")
"""What Anthropic's `input_tokens` leaves out."""


class Usage(NamedTuple):
    """The engine's own counts. None: not reported. A named tuple: one is made for every request."""

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
    if not isinstance(document, dict):
        return None
    prompt = _first(document, "prompt_tokens", "input_tokens")
    output = _first(document, "completion_tokens", "output_tokens")
    cached = _cached(document)
    if prompt is None and output is None and cached is None:
        return None
    if prompt is not None and not document.keys().isdisjoint(_BESIDE):
        prompt += sum(_count(document.get(key)) or 0 for key in _BESIDE)
    return Usage(prompt, output, cached)


def merge_usage(old: Usage | None, new: Usage | None) -> Usage | None:
    """Lay a later report over an earlier one; a count that the later one leaves out stays."""
    if old is None or new is None:
        return new or old
    return Usage(
        prompt_tokens=old.prompt_tokens if new.prompt_tokens is None else new.prompt_tokens,
        completion_tokens=old.completion_tokens if new.completion_tokens is None else new.completion_tokens,
        cached_tokens=old.cached_tokens if new.cached_tokens is None else new.cached_tokens,
    )


def _cached(document: dict[str, object]) -> int | None:
    for key in ("prompt_tokens_details", "input_tokens_details"):
        details = document.get(key)
        if isinstance(details, dict) and (cached := _count(details.get("cached_tokens"))) is not None:
            return cached
    return _count(document.get("cache_read_input_tokens"))


def _first(document: dict[str, object], one: str, other: str) -> int | None:
    count = _count(document.get(one))
    return _count(document.get(other)) if count is None else count


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None  # `true` is no count
