"""One ticket inside the Dispatcher: where it stands and what it holds."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from proxy.policy.ticket import Ticket

if TYPE_CHECKING:
    from proxy.policy.backend import Backend
    from proxy.policy.installments import Feed
    from proxy.policy.lane import LaneQueue
    from proxy.policy.tenants import Account


class Stage(StrEnum):
    """Where a ticket stands. What it holds in each stage is in docs/algorithm.md."""

    WAITING = "waiting"
    """In its lane, on time or demoted; holds a place there and nothing else."""
    PART = "part"
    """A part of its prompt is with the engine; holds slots, prefill budget and KV."""
    PARKED = "parked"
    """Between two parts; holds only the right to be the one started long prompt of its backend."""
    PREFILL = "prefill"
    """Its own request is with the engine; no token yet. Holds slots, prefill budget and KV."""
    DECODE = "decode"
    """Its first token was seen (or its budget timer fired): the prefill budget is given back."""


NEVER = float("inf")


class Job:
    """Mutable bookkeeping of one live ticket; created by `offer`, forgotten by `leave` or by a refusal."""

    __slots__ = (
        "account",
        "ahead",
        "arrived",
        "avoid",
        "backend",
        "charged",
        "demoted",
        "drop_by",
        "due_by",
        "feed",
        "given_back",
        "granted_at",
        "held_kv",
        "held_output",
        "held_prefill",
        "held_slots",
        "key",
        "overdue_at",
        "place",
        "queue",
        "refund",
        "returned",
        "stage",
        "ticket",
    )

    def __init__(self, ticket: Ticket, queue: LaneQueue, now: float) -> None:
        self.ticket = ticket
        self.queue = queue
        self.arrived = now
        self.stage = Stage.WAITING
        self.place = 0
        """Ticket number of its entry in a heap; an entry with another number is stale. 0: in no heap."""
        self.key = 0.0
        self.demoted = False
        self.due_by = NEVER
        """Late when `due_by - prompt_tokens * c` has passed."""
        self.drop_by = NEVER
        self.overdue_at = NEVER
        """For tickets without a deadline: from then on they go before everything else."""
        self.backend: Backend | None = None
        self.granted_at = 0.0
        self.ahead = 0
        """Prefill tokens that were outstanding on the backend when this one was sent."""
        self.refund = 0
        """Number of the timer that gives its prefill budget back; one with another number is stale. 0: none."""
        self.held_prefill = 0
        self.held_kv = 0
        self.held_slots = 0
        self.held_output = 0
        self.feed: Feed | None = None
        self.given_back = False
        self.returned = False
        """Waits again after `give_back`: it has passed the lane's limits before and does not count against them."""
        self.avoid: Backend | None = None
        self.account: Account | None = None
        """Its tenant's; None while tenants do not matter."""
        self.charged = False
        """Whether the account pays for it: from its first grant on."""

    def __repr__(self) -> str:
        return f"<Job {self.ticket.id} {self.stage}{' demoted' if self.demoted else ''}>"
