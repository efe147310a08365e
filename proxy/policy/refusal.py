"""How a ticket is refused: the counters move, and people get a sentence with the numbers."""

from proxy.policy.job import Job
from proxy.policy.outcome import Outcome, Reason
from proxy.policy.ticket import Refuse, Ticket


def reject(job: Job, now: float, reason: Reason, detail: str) -> Refuse:
    """Refuse a ticket that does not get a place."""
    lane = job.queue.lane
    lane.rejected += 1
    if job.account is not None:
        job.account.rejected += 1
    outcome = Outcome.DRAINING if reason is Reason.DRAINING else Outcome.REJECTED
    return Refuse(job.ticket, outcome, reason, lane.retry_after(now), detail)


def full(job: Job) -> tuple[Reason, str] | None:
    """Return the limit that stands against one more waiting ticket: of its lane, or of its tenant."""
    detail = job.queue.lane.full(job)
    if detail is not None:
        return Reason.QUEUE_FULL, detail
    detail = None if job.account is None else job.account.full(job)
    return None if detail is None else (Reason.TENANT_LIMIT, _of_tenant(job, detail))


def over_tenant_limit(job: Job, now: float, detail: str, retry_after_s: float) -> Refuse:
    """Refuse a ticket of a tenant that has had its share of this minute."""
    refuse = reject(job, now, Reason.TENANT_LIMIT, _of_tenant(job, detail))
    return refuse._replace(retry_after_s=max(1.0, retry_after_s))


def expire(job: Job, now: float) -> Refuse:
    """Refuse a ticket that its deadline took out of the queue."""
    lane, tokens = job.queue.lane, job.ticket.prompt_tokens
    detail = (
        f"lane {lane.limits.name}: waited {now - job.arrived:.2f} s; the {tokens} prompt tokens take about "
        f"{tokens * lane.c:.2f} s, and the first token is due {lane.limits.ttft_slo_s:g} s after arrival"
    )
    return Refuse(job.ticket, Outcome.EXPIRED, Reason.QUEUE_TIMEOUT, lane.retry_after(now), detail)


def nobody_serves(ticket: Ticket) -> str:
    """Return the sentence for a ticket that no live backend can take."""
    return "no backend is up" if ticket.model is None else f"no backend that serves {ticket.model!r} is up"


def _of_tenant(job: Job, detail: str) -> str:
    return f"tenant {job.ticket.tenant}: {detail}" if job.ticket.tenant else f"requests without a tenant: {detail}"
