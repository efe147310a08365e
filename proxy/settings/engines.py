"""How lanewise treats its engines: when one is trusted, when a request is sent again, where a name leads."""

from pydantic import Field

from proxy.settings.sections import Section
from proxy.settings.units import Count, Duration, OptionalCount


class Health(Section):
    """When a backend is left alone because requests fail there, and how it comes back.

    docs/backends.md has the states. What probes say is under `probes`. Only `mode: enforce` leaves a backend alone for
    its requests.
    """

    trip_after: OptionalCount = Field(
        default=5,
        description="Requests that fail in a row (5xx but 503, cut or broken answers, no answer in time) until a "
        "backend is left alone for a while. `unlimited`: however many.",
    )
    trip_share: float = Field(
        default=0.6,
        gt=0,
        le=1,
        description="Share of the requests of the last 10 s, of at least 20, that must fail for the same. 1: no share "
        "is too large.",
    )
    trip_time: Duration = Field(
        default=2.0,
        gt=0,
        description="How long it is left alone. Then one request at a time shows whether it works again; after each "
        "that fails, twice as long.",
    )
    trip_time_at_most: Duration = Field(default=30.0, gt=0, description="Longest time that this grows to.")
    slow_start: Duration = Field(
        default=5.0,
        ge=0,
        description="How long a backend that comes back takes to get its full concurrency, from a tenth of it: its "
        "prefix cache is empty, and everybody waits for it. `0s`: at once.",
    )
    busy_at_most: Duration = Field(
        default=5.0,
        gt=0,
        description="Longest time that a backend is left alone because it answered 429 or 503: as long as its "
        "`Retry-After` says (1 s when it says nothing), and not longer than this.",
    )


class Retries(Section):
    """When a request is given to a second connection: once, when the first took not one byte of it.

    More never happens: an engine that has seen a request may have begun it.
    """

    ratio: float = Field(
        default=0.2,
        ge=0,
        le=1,
        description="Retries for each request of the last 10 s, for the whole proxy. Bounds the load that a dying "
        "engine throws on the others.",
    )
    floor: Count = Field(
        default=10, ge=0, description="Retries within 10 s that are allowed beside those, however quiet it is."
    )
    stale_connections: bool = Field(
        default=True,
        description="Also when a warm connection died without one byte of an answer: the engine had closed it while it "
        "was idle. `false`: only when no connection could be made.",
    )


class Names(Section):
    """Backends that are configured by a host name."""

    refresh: Duration = Field(
        default=10.0,
        ge=0.05,
        description="How often each name is looked up again; besides, whenever no connection can be made. New "
        "connections go where it leads then, those that run are finished where they are. While it cannot be resolved "
        "the last addresses stay.",
    )


class Prefixes(Section):
    """Choosing among the backends of a model by what they have computed before."""

    enabled: bool = Field(
        default=True,
        description="Count the beginning of a prompt as computed where the same beginning was sent lately, when a "
        "backend is chosen. Waiting work still weighs as much, so nothing piles up on one backend. Costs nothing where "
        "a model has one backend.",
    )
