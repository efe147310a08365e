"""Families as the text that Prometheus reads, a slice at a time, so that a scrape never holds up the streams."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric

_END = b"# EOF\n"
_HEADINGS = (b"# HELP ", b"# TYPE ", b"# UNIT ")
SLICE = 32
"""Samples that are written in a row: a sample takes 10 to 20 microseconds, OpenMetrics the most."""
PAUSE_S = 0.002
"""Between two slices: longer than a slice, so that streams have most of the processor while a scrape goes on."""


@dataclass(frozen=True, slots=True)
class _Families:
    """What the library's encoders ask for families."""

    families: tuple[Metric, ...]

    def collect(self) -> Iterator[Metric]:
        yield from self.families


def content_type(accept: str) -> str:
    """Return the content type that fits an `Accept` header: OpenMetrics where asked for, else the text format."""
    return choose_encoder(accept)[1]


async def render(families: Iterable[Metric], accept: str, *, pause_s: float = PAUSE_S) -> AsyncIterator[bytes]:
    """Write families slice by slice, letting the event loop run in between.

    Args:
        families: what to write; made one at a time as the writing goes on.
        accept: the `Accept` header of the scrape.
        pause_s: for which the event loop is left alone between two slices; 0: for one turn.
    """
    encode, kind = choose_encoder(accept)
    for family in families:
        for part in slices(family):
            await asyncio.sleep(pause_s)
            text = encode(_Families((part,))).removesuffix(_END)
            yield text if part.samples[:1] == family.samples[:1] else _without_headings(text)
    if kind.startswith("application/openmetrics-text"):
        yield _END


def slices(family: Metric) -> Iterator[Metric]:
    """Cut a family into pieces of at most `SLICE` samples, in their order; one without samples stays as it is."""
    if len(family.samples) <= SLICE:
        yield family
        return
    for start in range(0, len(family.samples), SLICE):
        part = Metric(family.name, family.documentation, family.type, family.unit)
        part.samples = family.samples[start : start + SLICE]
        yield part


def _without_headings(text: bytes) -> bytes:
    while text.startswith(_HEADINGS):
        text = text.partition(b"\n")[2]
    return text


def render_at_once(families: Iterable[Metric], accept: str = "") -> bytes:
    """Write all families in one go: for tools and tests, where no stream waits."""
    return choose_encoder(accept)[0](_Families(tuple(families)))
