"""The shared limits as metrics; there are none of them where nothing is shared."""

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.metrics_core import Metric

from proxy.metrics.series import Histogram, counter, gauge, histogram
from proxy.policy.leases.hold import EVERYTHING, Terms
from proxy.policy.leases.member import Member, State

_RESOURCES = {"b": ("sequences", "prefill_tokens", "kv_tokens"), "t": ("sequences",)}
_KINDS = {"b": "backend", "t": "tenant"}


def lease_families(member: Member, latency: Histogram, terms: Mapping[str, Terms]) -> Iterator[Metric]:
    """Yield where this proxy stands in its group.

    Args:
        member: of the group.
        latency: of the store.
        terms: what may be used at each place now.
    """
    yield gauge("shared_state_up", "1 while the store of the shared limits answers.", (), (((), float(member.up)),))
    yield histogram(
        "shared_state_latency_seconds",
        "Time until the store answered, or was given up; no request waits for it.",
        (),
        (((), latency),),
    )
    yield counter(
        "shared_state_fallback",
        "How often the leases ran out because the store did not answer: the static share held from then on.",
        (),
        (((), float(member.fallbacks)),),
    )
    yield gauge(
        "shared_state",
        "1 for how this proxy stands to its group: joined; rejoining (the store is new or back, and everybody says "
        "what is in flight first); degraded (it keeps to its static share).",
        ("state",),
        (((state.value,), float(state is member.state)) for state in State),
    )
    yield gauge(
        "shared_state_proxies", "Proxies in the group, as the store said last.", (), (((), float(member.members)),)
    )
    yield gauge(
        "leased",
        "What this proxy may use of a limit that it shares, by backend or tenant; resource is sequences, "
        "prefill_tokens or kv_tokens.",
        ("kind", "name", "resource"),
        (
            ((_KINDS[place[0]], place[2:], resource), float(amount))
            for place, of in terms.items()
            for resource, amount in zip(_RESOURCES[place[0]], of.held, strict=True)
            if amount < EVERYTHING
        ),
    )


def worker_families(workers: Sequence[tuple[int, bool, int]]) -> Iterator[Metric]:
    """Yield what a supervisor says of its workers.

    Args:
        workers: number, whether the process runs, and how often it was started anew.
    """
    yield gauge(
        "worker_up",
        "1 while the process of a worker runs; on the admin port of the supervisor (`--workers`).",
        ("worker",),
        (((str(number),), float(up)) for number, up, _ in workers),
    )
    yield counter(
        "worker_restarts",
        "How often a worker died and was started anew; on the admin port of the supervisor.",
        ("worker",),
        (((str(number),), float(restarts)) for number, _, restarts in workers),
    )
