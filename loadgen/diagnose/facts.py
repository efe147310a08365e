"""The measured facts that a diagnosis rests on, from a run folder. Times are seconds of the plan; None: not known."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadgen.answers import Answers, answers_of
from loadgen.canary import complaints
from loadgen.columns import Columns, Floats, columns_of
from loadgen.journal import RunFolder
from loadgen.result import LoadOutcome, Result
from loadgen.summarise import summarise_columns
from loadgen.summary import Slo, Summary
from loadgen.telemetry.digest import Telemetry, telemetry_of

FLOOR_QUANTILE = 0.1
"""Of the times to the answer's head: vLLM sends it before it queues a request (2 to 9 ms), so the low ones are the
link, whatever waits behind them."""
HEADS = 10
"""Fewer heads tell nothing of the link."""
TOGETHER_S = 0.001
"""A head that comes this close before the first token was held back with it, and tells nothing of the link either."""
_PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


@dataclass(frozen=True, slots=True)
class Group:
    """Requests that have something in common, and how many of them failed at the engine."""

    name: str
    sent: int
    failed: int
    """Errors and cut streams; rejections, time limits and patience are no failures of the engine's."""
    reason: str
    """The most common code of the failed ones."""
    detail: str
    """The most common message."""
    unreachable: bool
    """The most common failure is that no connection came about."""


@dataclass(frozen=True, slots=True)
class Facts:
    """One run in the numbers that rules look at."""

    label: str
    summary: Summary
    telemetry: Telemetry | None
    groups: tuple[Group, ...]
    """All requests first, then by lane."""
    connect_s: float | None
    """Median of TCP handshakes."""
    head_s: float | None
    """Low quantile of the times from the send to the answer's head; None where the head waits for something else: for
    the first token, or in lanewise's queue."""
    floor_s: float | None
    """Median TCP handshake that `lanewise-load floor` found before the run."""
    ttft_send_s: float | None
    """Median over ok, and the mean, as the engine's own figure is one."""
    ttft_send_mean_s: float | None
    gap_p50_s: float | None
    gap_p99_s: float | None
    tokens_per_s: float | None
    """Output tokens of ok requests over the whole run, drain included."""
    rejected_share: float
    answers: Answers
    canaries: tuple[str, ...]
    """What the canaries say, one sentence each."""
    through_proxy: bool
    """Whether lanewise is known to stand in between."""
    speed: float
    manifest: Mapping[str, Any]

    def setting(self, name: str) -> str | None:
        """Return an engine flag or parameter by vLLM's name, as told or found; None: not known."""
        engine = self.manifest.get("engine")
        found = engine.get("flags") if isinstance(engine, Mapping) else None
        for place in (self.manifest.get("parameters"), self.manifest.get("flags"), found):
            if isinstance(place, Mapping):
                for key in (name, name.replace("_", "-"), f"engine.{name}"):
                    if key in place:
                        return str(place[key])
        return None

    def premise(self, name: str) -> Any:
        """Return a premise of the run (card, cards, model, size, quantisation); None: not known."""
        premises = self.manifest.get("premises")
        held = premises.get(name) if isinstance(premises, Mapping) else None
        return held.get("value") if isinstance(held, Mapping) else held

    @property
    def quantisation(self) -> str | None:
        """How the weights are quantised, as told or found; None: not known."""
        found = self.premise("quantisation") or self.setting("quantization") or self.setting("quantisation")
        return None if found is None else str(found)

    @property
    def parallel(self) -> int | None:
        """Cards that the engine was told to spread over: the product of its parallel sizes; None: not told."""
        sizes = [whole(self.setting(name)) for name in _PARALLEL]
        known = [size for size in sizes if size is not None]
        return int(np.prod(known)) if known else None

    @property
    def cards(self) -> int | None:
        """Cards that it has: as told, else as told to spread over."""
        told = whole(self.premise("cards") or self.setting("cards"))
        return told if told is not None else self.parallel


def whole(value: Any) -> int | None:
    """Return a setting as a whole number; None: it is none."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def facts_of(run: RunFolder, slo: Slo) -> Facts:
    """Gather the facts of a run.

    Raises:
        UsageError: the folder is no run folder, or one of its files cannot be read.
    """
    manifest = run.manifest()
    results = list(run.results())
    sung = manifest.get("canaries")
    columns = columns_of(results)
    summary = summarise_columns(columns, manifest, slo)
    everything = summary.lanes["all"]
    heads = _known(np.array([_span(one.sent, one.head) for one in results], dtype=np.float64))
    connects = _known(np.array([_connect(one) for one in results], dtype=np.float64))
    sends = _known((columns.first - columns.sent)[columns.ok])
    return Facts(
        label=summary.label,
        summary=summary,
        telemetry=telemetry_of(run),
        groups=_groups(results),
        connect_s=_quantile(connects, 0.5),
        head_s=_head(heads, results, through_proxy=bool(manifest.get("proxy"))),
        floor_s=_floor(manifest),
        ttft_send_s=_quantile(sends, 0.5),
        ttft_send_mean_s=float(sends.mean()) if len(sends) else None,
        gap_p50_s=everything.icl.p50 if everything.icl.known else None,
        gap_p99_s=everything.icl.p99 if everything.icl.known else None,
        tokens_per_s=_rate(columns, everything.output_tokens),
        rejected_share=everything.outcomes["rejected"] / everything.sent if everything.sent else 0.0,
        answers=answers_of(results),
        canaries=tuple(complaints(sung["before"], sung["after"])) if isinstance(sung, Mapping) else (),
        through_proxy=bool(manifest.get("proxy")),
        speed=float(manifest.get("speed", 1.0)),
        manifest=manifest,
    )


def _floor(manifest: Mapping[str, Any]) -> float | None:
    """Return the floor of the path that the run went, in seconds of the plan; None: not measured."""
    floor = manifest.get("floor")
    paths = floor.get("paths") if isinstance(floor, Mapping) else None
    found = list(paths.values()) if isinstance(paths, Mapping) else []
    mine = next((one for one in found if one.get("url") == manifest.get("target")), None)
    value = mine.get("tcp", {}).get("p50_s") if mine is not None else None
    return None if value is None else float(value) * float(manifest.get("speed", 1.0))


def _head(heads: Floats, results: Sequence[Result], *, through_proxy: bool) -> float | None:
    before = _known(np.array([_span(one.head, one.first) for one in results], dtype=np.float64))
    if len(heads) < HEADS or through_proxy or (len(before) and float(np.median(before)) < TOGETHER_S):
        return None
    return _quantile(heads, FLOOR_QUANTILE)


def _span(begin: float | None, end: float | None) -> float:
    return float("nan") if begin is None or end is None else end - begin


def _connect(one: Result) -> float:
    """Return how long a new connection took; a kept-alive one has no handshake."""
    taken = _span(one.started, one.connected)
    return taken if taken > 0 and one.connected != one.sent and one.outcome == LoadOutcome.OK else float("nan")


def _known(values: Floats) -> Floats:
    return np.asarray(values[~np.isnan(values)])


def _quantile(values: Floats, share: float) -> float | None:
    return float(np.quantile(values, share)) if len(values) else None


def _rate(columns: Columns, tokens: int) -> float | None:
    ends = columns.end[columns.ok]
    if not len(ends):
        return None
    span = float(ends.max() - columns.due.min())
    return tokens / span if span > 0 else None


_FAILED = frozenset({LoadOutcome.ERROR.value, LoadOutcome.TRUNCATED.value})


def _groups(results: Sequence[Result]) -> tuple[Group, ...]:
    lanes = dict.fromkeys(one.lane for one in results)
    parts = [("all requests", results)]
    parts += [(f"{lane} requests", [one for one in results if one.lane == lane]) for lane in lanes]
    return tuple(_group(name, part) for name, part in parts if part)


def _group(name: str, results: Sequence[Result]) -> Group:
    failed = [one for one in results if one.outcome in _FAILED]
    return Group(
        name=name,
        sent=sum(one.sent is not None for one in results),
        failed=len(failed),
        reason=_commonest(one.reason for one in failed),
        detail=_commonest(one.detail for one in failed),
        unreachable=bool(failed) and sum(one.head is None for one in failed) > len(failed) / 2,
    )


def _commonest(values: Any) -> str:
    found = [str(value) for value in values if value]
    return max(dict.fromkeys(found), key=found.count, default="")
