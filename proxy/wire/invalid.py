"""Values that every engine refuses: told at once, so that a request without hope takes no turn and no slot."""

from collections.abc import Mapping
from typing import Final

from proxy.wire.caps import CAP_KEYS
from proxy.wire.facts import Endpoint
from proxy.wire.values import as_int

MODEL_CHARS: Final = 1024
"""Longest model name. Names and paths of models are far shorter; an engine would repeat a longer one in its answer."""


def certain_refusal(endpoint: Endpoint, document: Mapping[str, object]) -> str | None:
    """Return in one sentence why no engine takes this body; None when one may.

    Only what all versions of vLLM refuse counts: an output cap with a fraction (its schema), or a negative one where
    that cap is the one in effect (its sampling parameters). What some of them coerce or lower stays theirs to answer:
    `true` (1), "12", 0 (no cap in some), integers beyond every context.

    Args:
        endpoint: whose dialect.
        document: the decoded body, with any JSON values whatever.
    """
    model = document.get("model")
    if isinstance(model, str) and len(model) > MODEL_CHARS:
        return f"model is a name of {len(model)} characters; at most {MODEL_CHARS} are allowed"
    first: str | None = None
    for key in CAP_KEYS.get(endpoint, ()):
        value = document.get(key)
        if value is None:
            continue
        if isinstance(value, float) and not value.is_integer():
            return f"{key} is {value:g}; it must be a whole number of tokens"
        if first is None:
            first = key
    if first is not None and (cap := as_int(document[first])) is not None and cap < 0:
        return f"{first} is {document[first]}; it must be at least 1"
    return None
