"""What a check across sections says."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that does not fit together."""

    key: str
    """Path in dots."""
    text: str
    other: str = ""
    """The key on the other side, which may be the one that was written."""
