"""Nouns between the Dispatcher and whoever drives it: tickets go in, effects come out.

Named tuples, because some are made for every request: a frozen dataclass costs four times as much.
"""

from typing import NamedTuple

from proxy.policy.outcome import Outcome, Reason
from proxy.policy.prefixes import Prefix


class Ticket(NamedTuple):
    """A request that asks to run. What the Dispatcher learns about it on the way stays in the Dispatcher."""

    id: int
    """Unique among live tickets."""
    lane: int
    """Index into `Scheduling.lanes`."""
    prompt_tokens: int
    """Estimated (or exact) prompt length of all its prompts together."""
    output_tokens: int
    """Expected output length of all its sequences together, for the KV guard and the work estimate."""
    sequences: int = 1
    """Slots it takes: prompts times `n`."""
    body_bytes: int = 0
    model: str | None = None
    streams: bool = True
    """Whether the first token can be seen. If not, its prefill budget comes back by a timer."""
    splittable: bool = False
    """Whether it may be fed in installments."""
    at_once: bool = False
    """It goes whatever runs or waits, and counts as running: limits, budgets and deadlines do not hold it."""
    prefix: Prefix | None = None
    """How its prompt begins, for choosing among backends; None: nobody asked."""
    tenant: str | None = None
    """Who sends it: a label out of a bounded set. Without a name: one tenant like any other."""
    priority: int = 0
    """Priority class inside its lane; lower goes sooner, as in vLLM."""

    def whole(self) -> "Ticket":
        """Return it as one that is not to be fed in installments."""
        return Ticket._make((*self[:_SPLITTABLE], False, *self[_SPLITTABLE + 1 :]))  # `_replace` costs twice as much


_SPLITTABLE = Ticket._fields.index("splittable")


class Grant(NamedTuple):
    """Permission to run on one backend. A ticket that is fed in installments gets several: parts, then the final."""

    ticket: Ticket
    backend: str
    upto_tokens: int
    """The request to send covers this many prompt tokens from the start; the whole prompt when `final`."""
    part: int
    """0 for the first grant of the ticket, counting up."""
    final: bool
    """True: send the client's own request. False: a part, whose one output token is thrown away."""


class Refuse(NamedTuple):
    """The ticket is out of the Dispatcher: it was never queued (rejected), or its deadline took it (expired)."""

    ticket: Ticket
    outcome: Outcome
    reason: Reason
    retry_after_s: float
    """When capacity is expected, from the measured drain rate; not yet jittered or clamped."""
    detail: str
    """One sentence for people, with the numbers."""


Effect = Grant | Refuse
