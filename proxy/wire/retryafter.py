"""How long an engine asks to be left alone: `Retry-After` and `retry-after-ms`."""

from typing import Final

_MOST_S: Final = 86_400.0


def retry_after_s(retry_after: bytes, retry_after_ms: bytes = b"") -> float | None:
    """Read the two fields of an answer.

    Args:
        retry_after: value of `Retry-After`, b"" when there is none. A date is not read: it would need a clock that
            agrees with the engine's.
        retry_after_ms: value of `retry-after-ms`, which is more precise and goes first.

    Returns:
        Seconds, from 0 to a day (what is more than a day is a day); None when neither says.
    """
    for value, scale in ((retry_after_ms, 0.001), (retry_after, 1.0)):
        try:
            seconds = float(value) * scale
        except ValueError:
            continue
        if seconds >= 0:
            return min(seconds, _MOST_S)
    return None
