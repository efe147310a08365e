"""The asyncio shell of the Shadow: one timer for the next thing that is due on paper."""

import asyncio
import time

from proxy.policy.outcome import Ending
from proxy.policy.shadow import Shadow, Would
from proxy.policy.ticket import Ticket

_SHORTEST_TIMER_S = 0.001
"""uvloop's timers count milliseconds."""


class Paper:
    """Shows a Shadow what really happens, and wakes it when something is due."""

    def __init__(self, shadow: Shadow) -> None:
        self.shadow = shadow
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._closed = False

    def __repr__(self) -> str:
        return f"<Paper {self.shadow!r}>"

    def offer(self, ticket: Ticket, would: Would) -> None:
        """Show a request that goes to an engine; `would` is filled when it is decided."""
        self.shadow.offer(time.monotonic(), ticket, would)
        self.arm()

    def first_token(self, ticket_id: int) -> None:
        """Show a first token."""
        self.shadow.first_token(time.monotonic(), ticket_id)
        self.arm()

    def leave(self, ticket_id: int, ending: Ending, output_tokens: int | None) -> None:
        """Show the end of a request."""
        self.shadow.leave(time.monotonic(), ticket_id, ending, output_tokens)
        self.arm()

    def arm(self) -> None:
        """Set the timer for what is due next."""
        at = self.shadow.next_wake()
        if self._closed or at is None or (self._timer is not None and self._timer_at <= at):
            return  # a timer that comes too early finds nothing due and sets the next
        if self._timer is not None:
            self._timer.cancel()
        delay = max(_SHORTEST_TIMER_S, at - time.monotonic())
        self._timer_at = at
        self._timer = asyncio.get_running_loop().call_later(delay, self._wake)

    def close(self) -> None:
        """Set no timer any more: nobody reads this paper, though requests that are on it still end."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self) -> None:
        self._timer = None
        self.shadow.wake(time.monotonic())
        self.arm()
