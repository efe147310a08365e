"""Families as the text that Prometheus reads, one family at a time, so that a scrape never holds up the streams."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric

_END = b"# EOF\n"


@dataclass(frozen=True, slots=True)
class _Families:
    """What the library's encoders ask for families."""

    families: tuple[Metric, ...]

    def collect(self) -> Iterator[Metric]:
        yield from self.families


def content_type(accept: str) -> str:
    """Return the content type that fits an `Accept` header: OpenMetrics where asked for, else the text format."""
    return choose_encoder(accept)[1]


async def render(families: Iterable[Metric], accept: str) -> AsyncIterator[bytes]:
    """Write families one by one, letting the event loop run in between.

    Args:
        families: what to write; made one at a time as the writing goes on.
        accept: the `Accept` header of the scrape.
    """
    encode, kind = choose_encoder(accept)
    for family in families:
        yield encode(_Families((family,))).removesuffix(_END)
        await asyncio.sleep(0)
    if kind.startswith("application/openmetrics-text"):
        yield _END


def render_at_once(families: Iterable[Metric], accept: str = "") -> bytes:
    """Write all families in one go: for tools and tests, where no stream waits."""
    return choose_encoder(accept)[0](_Families(tuple(families)))
