"""How fast the streams of one backend go: measured by its relays, taken by admission for the Dispatcher.

An event of a stream may hold several tokens (speculative decoding, merged events), which nobody can count as they pass.
How many on average is learned from streams that have ended: what `usage` said, over the events that were seen.
"""

from collections.abc import Mapping

from proxy.policy.dispatch import Dispatcher

_MOST_PER_EVENT = 16.0
"""More would not be merging: tokens that were made and never shown."""
_REMEMBERED_EVENTS = 10_000
"""Once this many events have ended, what was seen before counts half."""


class Pace:
    """Sum and number of the gaps between events that carry tokens, since they were taken last.

    A relay adds to both attributes at every read with `events` such events in it: the time since the read before, and
    their number. The first read of an answer ends no gap. Only streams of a single sequence are measured.

    Attributes:
        seconds: sum of the gaps.
        events: how many.
    """

    __slots__ = ("_ended_events", "_ended_tokens", "events", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.events = 0
        self._ended_events = 0.0
        self._ended_tokens = 0.0

    def __repr__(self) -> str:
        return f"<Pace {self.seconds:.3f} s in {self.events} events of {self.tokens_per_event:.2f} tokens>"

    @property
    def tokens_per_event(self) -> float:
        """Tokens of an average event, at least 1."""
        if not self._ended_events:
            return 1.0
        return min(max(1.0, self._ended_tokens / self._ended_events), _MOST_PER_EVENT)

    def ended(self, events: int, tokens: int | None) -> None:
        """Learn from a stream that ended well.

        Args:
            events: events with tokens that it had.
            tokens: output tokens by its `usage`; None when it did not say.
        """
        if tokens is None or not events:
            return
        self._ended_events += events
        self._ended_tokens += tokens
        if self._ended_events > _REMEMBERED_EVENTS:
            self._ended_events /= 2
            self._ended_tokens /= 2

    def take(self) -> tuple[float, int]:
        """Return the seconds, and the tokens that they were for; begin anew."""
        seconds, tokens = self.seconds, round(self.events * self.tokens_per_event)
        self.seconds, self.events = 0.0, 0
        return seconds, tokens


def hand_over(paces: Mapping[str, Pace], dispatcher: Dispatcher) -> None:
    """Give what was measured since the last time to the Dispatcher.

    Args:
        paces: by backend.
        dispatcher: told of those that saw anything.
    """
    for name, pace in paces.items():
        if pace.events:
            dispatcher.pace(name, *pace.take())
