"""What stands in front of the engines in a study, as the virtual-time driver sees it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Send:
    """Send request `index` to an engine."""

    index: int
    backend: int
    upto_tokens: int
    """Prompt tokens from the start that this request covers; the whole prompt when `final`."""
    final: bool
    """False: one part of a prompt fed in installments, with one output token that is thrown away."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Request `index` was refused or given up; nothing of it runs."""

    index: int
    outcome: str
    reason: str


Order = Send | Lost


class Front(Protocol):
    """A policy. Every method takes virtual `now` in seconds and returns what to do."""

    def arrive(self, now: float, index: int, prompt_tokens: int, output_tokens: int) -> Sequence[Order]:
        """Take a new request; `output_tokens` is for perfect-knowledge policies only."""

    def first_token(self, now: float, index: int) -> Sequence[Order]:
        """Note that the first token of a final was seen."""

    def part_ended(self, now: float, index: int, cached_tokens: int) -> Sequence[Order]:
        """Note that a part ended, and how much of it the engine found in its prefix cache."""

    def finished(self, now: float, index: int, output_tokens: int, cached_tokens: int) -> Sequence[Order]:
        """Note that a request ended well."""

    def gone(self, now: float, index: int) -> Sequence[Order]:
        """Note that the client left; whatever runs of it is aborted."""

    def stepped(self, backend: int, seconds: float, tokens: int) -> None:
        """Note that `tokens` tokens after a first one took `seconds` of inter-token time together, in one step."""

    def wake(self, now: float) -> Sequence[Order]:
        """Do what is due."""

    def next_wake(self) -> float | None:
        """Return when `wake` has something to do."""
