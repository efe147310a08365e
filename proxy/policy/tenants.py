"""Who has had how much: an account per tenant, with a virtual token counter and what it holds.

The counter rises by p + 2 * o tokens over the weight at the first grant of a ticket, and by what the answer was longer
or shorter at its end. A tenant that had nothing waiting starts at the smallest counter of those that have (where nobody
has: at the counter of whoever was served last), so that nobody saves up credit by being away, and nobody who used an
idle engine pays for it later. Source: VTC (Sheng et al., arXiv 2401.00588).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from proxy.policy.job import NEVER, Job, Stage
from proxy.policy.leases.hold import Hold, Terms
from proxy.policy.limits import Fairness, TenantLimits

NOTHING_YET = Terms((0,), (0,), NEVER, (0,))
"""A tenant whose lease has not come yet."""
UNNAMED = ""
"""Account of tickets that name no tenant."""
_MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class TenantSnapshot:
    """One tenant at one moment. Counters count since the Dispatcher first saw it."""

    name: str
    """Its label; "" for tickets that name none."""
    counter: float
    """Virtual token counter: whose is smallest goes first."""
    waiting_requests: int
    waiting_tokens: int
    running: int
    """Sequences."""
    granted: int
    granted_tokens: int
    """Prompt tokens."""
    rejected: int
    """Refused at once."""
    dropped: int
    """Refused at their deadline."""


class Account:
    """One tenant."""

    __slots__ = (
        "_tokens",
        "_tokens_at",
        "backlog",
        "counter",
        "dropped",
        "granted",
        "granted_tokens",
        "hold",
        "limits",
        "name",
        "rejected",
        "running",
        "waiting_requests",
        "waiting_tokens",
    )

    def __init__(self, name: str, limits: TenantLimits, counter: float) -> None:
        self.name = name
        self.limits = limits
        self.counter = counter
        """Tokens it was given, over its weight."""
        self.backlog = 0
        """Tickets that wait and are not started."""
        self.waiting_requests = 0
        """Those of them that never had a grant; the limits are about these."""
        self.waiting_tokens = 0
        self.running = 0
        """Sequences that run, those of a prompt between two parts among them."""
        self.granted = 0
        self.granted_tokens = 0
        """Prompt tokens granted, in all."""
        self.rejected = 0
        self.dropped = 0
        self.hold: Hold | None = None
        """What other proxies leave to it here; None: nobody else serves it, or its sequences have no limit."""
        self._tokens = NEVER
        self._tokens_at = 0.0

    def full(self, job: Job) -> str | None:
        """Return what stands against one more waiting ticket, in words with the numbers, or None."""
        limits, tokens = self.limits, job.ticket.prompt_tokens
        if limits.waiting_requests is not None and self.waiting_requests + 1 > limits.waiting_requests:
            return f"{self.waiting_requests} of its requests wait and at most {limits.waiting_requests} may"
        if limits.waiting_tokens is not None and self.waiting_tokens + tokens > limits.waiting_tokens:
            return (
                f"{self.waiting_tokens} of its prompt tokens wait, this request brings {tokens} and at most "
                f"{limits.waiting_tokens} may wait"
            )
        return None

    def overdrawn(self, job: Job, now: float) -> tuple[str, float] | None:
        """Return what the tokens per minute say against a ticket, and in how many seconds they do not; or None.

        A prompt longer than a minute's worth takes the whole minute.
        """
        rate = self.limits.tokens_per_minute
        if rate is None:
            return None
        missing = min(job.ticket.prompt_tokens, rate) - (self._credit(now, rate) - self.waiting_tokens)
        if missing <= 0:
            return None
        return f"it may send {rate} prompt tokens per minute and has sent them", missing * _MINUTE_S / rate

    def holds_back(self, job: Job, now: float) -> bool:
        """Return whether so much of it runs that `job` has to wait; one request always may run."""
        most = self.limits.sequences
        if most is None:
            return False
        if self.running > 0 and self.running + job.ticket.sequences > most:
            return True
        hold = self.hold
        if hold is None:
            return False
        return hold.lacks(now, (self.running,), (job.ticket.sequences,), job.ticket.lane) is not None

    def stop(self, sequences: int) -> None:
        """Take that so many of its sequences have ended."""
        self.running -= sequences
        if self.hold is not None:
            self.hold.release((sequences,))

    def spend(self, now: float, tokens: int) -> None:
        """Take prompt tokens from its minute; a negative number gives them back."""
        rate = self.limits.tokens_per_minute
        if rate is not None:
            self._tokens = min(float(rate), self._credit(now, rate) - tokens)
            self._tokens_at = now

    def show(self) -> TenantSnapshot:
        """Return it as it is."""
        return TenantSnapshot(
            name=self.name,
            counter=self.counter,
            waiting_requests=self.waiting_requests,
            waiting_tokens=self.waiting_tokens,
            running=self.running,
            granted=self.granted,
            granted_tokens=self.granted_tokens,
            rejected=self.rejected,
            dropped=self.dropped,
        )

    def _credit(self, now: float, rate: int) -> float:
        return min(float(rate), self._tokens + (now - self._tokens_at) * rate / _MINUTE_S)

    def __repr__(self) -> str:
        return f"<Account {self.name!r} {self.counter:.0f}, {self.backlog} waiting, {self.running} running>"


class Ledger:
    """The accounts of all tenants that were ever seen; their number is bounded by whoever names them."""

    def __init__(self, fairness: Fairness) -> None:
        self.fairness = fairness
        self.accounts: dict[str, Account] = {}
        self._level = 0.0
        """Counter of whoever was served last, before it paid."""

    def configure(self, fairness: Fairness) -> None:
        """Take new weights and limits; counters stay, unless they stop to count."""
        if fairness.by_tokens is not self.fairness.by_tokens:
            self._level = 0.0
            for account in self.accounts.values():
                account.counter = 0.0
        self.fairness = fairness
        for account in self.accounts.values():
            account.limits = fairness.limits_of(account.name)
            self._lease(account)

    def account(self, tenant: str | None) -> Account:
        """Return the account of a tenant, opened where there was none."""
        name = UNNAMED if tenant is None else tenant
        account = self.accounts.get(name)
        if account is None:
            account = self.accounts[name] = Account(name, self.fairness.limits_of(tenant), self._level)
            self._lease(account)
        return account

    def show(self) -> tuple[TenantSnapshot, ...]:
        """Return all accounts as they are, by name."""
        return tuple(self.accounts[name].show() for name in sorted(self.accounts))

    def lift(self, account: Account) -> None:
        """Let a tenant that has nothing waiting start where those are that have."""
        counters = [other.counter for other in self.accounts.values() if other.backlog]
        account.counter = max(account.counter, min(counters, default=self._level))

    def charge(self, job: Job, now: float) -> None:
        """Let the tenant of a ticket pay for its first grant."""
        account, ticket = job.account, job.ticket
        assert account is not None
        job.charged = True
        account.running += ticket.sequences
        if account.hold is not None:
            account.hold.note((account.running,))
        account.granted += 1
        account.granted_tokens += ticket.prompt_tokens
        account.spend(now, ticket.prompt_tokens)
        if self.fairness.by_tokens:
            if not account.backlog:
                self.lift(account)
            self._level = max(self._level, account.counter)
            account.counter += self._price(account, ticket.prompt_tokens, ticket.output_tokens)

    def take_back(self, job: Job, now: float) -> None:
        """Take back what was charged for a ticket whose grant came to nothing; again is harmless."""
        account, ticket = job.account, job.ticket
        if account is None or not job.charged:
            return
        job.charged = False
        account.stop(ticket.sequences)
        account.granted -= 1
        account.granted_tokens -= ticket.prompt_tokens
        account.spend(now, -ticket.prompt_tokens)
        if self.fairness.by_tokens:
            account.counter -= self._price(account, ticket.prompt_tokens, ticket.output_tokens)

    def settle(self, job: Job, output_tokens: int | None) -> None:
        """Close the bill of a ticket that leaves: what its answer was longer or shorter than expected."""
        account = job.account
        if account is None or not job.charged:
            return
        job.charged = False
        account.stop(job.ticket.sequences)
        if output_tokens is not None and self.fairness.by_tokens:
            account.counter += self._price(account, 0, output_tokens - job.ticket.output_tokens)

    @property
    def leased(self) -> bool:
        """Whether other proxies serve these tenants too."""
        return self.fairness.leased

    def _lease(self, account: Account) -> None:
        """Let what runs of a tenant follow a lease, where its limit is shared."""
        if not self.fairness.leased or account.limits.sequences is None:
            account.hold = None
        elif account.hold is None:
            account.hold = Hold(NOTHING_YET)

    def _price(self, account: Account, prompt_tokens: int, output_tokens: int) -> float:
        return (prompt_tokens + self.fairness.output_weight * output_tokens) / account.limits.weight


def held_back(job: Job, now: float) -> bool:
    """Return whether `job` waits because as much of its tenant runs as may; one that is started never does."""
    return job.account is not None and job.stage is not Stage.PARKED and job.account.holds_back(job, now)


def reopened(ledger: Ledger | None, fairness: Fairness | None, jobs: Iterable[Job]) -> Ledger | None:
    """Return the ledger for new settings: the same one where tenants mattered before and still do.

    Args:
        ledger: that of the settings before.
        fairness: the new settings.
        jobs: all live tickets, none of them in a queue.
    """
    if fairness is None:
        for job in jobs:
            job.account, job.charged = None, False
        return None
    if ledger is not None:
        ledger.configure(fairness)
        return ledger
    ledger = Ledger(fairness)
    for job in jobs:
        job.account = ledger.account(job.ticket.tenant)
        if job.backend is not None or (job.feed is not None and job.feed.home is not None):
            job.charged = True
            job.account.running += job.ticket.sequences
            job.account.granted += 1
            job.account.granted_tokens += job.ticket.prompt_tokens
    return ledger
