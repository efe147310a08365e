"""The tables of `lanewise-load study --table`: which rows, on which workloads and loads.

They are those of the scheduling study behind docs/algorithm.md, with the product's own Dispatcher in every row that
names strict or gentle. A row is a trial without its workload and load, and the flags of the engines that it changes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from loadgen.sim import changes
from loadgen.sim.changes import UNCHANGED, Change
from loadgen.sim.clients import Clients
from loadgen.sim.policies import Balance
from loadgen.sim.trials import Trial
from loadgen.sim.virtual import LaneOptions, Preset

Case = tuple[str, float]
"""A workload and a load."""
TableName = Literal["main", "ablation", "robustness", "four-backends", "14b", "abusive-tenant"]

KNEE = 48
"""Concurrency at the knee of the 8B engine: what a fixed cap is set to by who has measured it."""
_STRICT = LaneOptions()
_PARTS = LaneOptions(installments=True)
_GENTLE = LaneOptions(Preset.GENTLE)
_GENTLE_PARTS = LaneOptions(Preset.GENTLE, installments=True)
_THRESHOLD: Mapping[str, Any] = {"long_prefill_token_threshold": 256}
"""An eighth of a chunk, as docs/algorithm.md recommends."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table."""

    name: str
    trial: Trial
    """Its workload, load, windows and seed are set when it runs."""
    flags: Mapping[str, Any] = field(default_factory=dict)
    """Of the engines."""
    load_factor: float = 1.0
    """On the table's loads."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows by cases."""

    title: str
    rows: tuple[Row, ...]
    cases: tuple[Case, ...]
    averaged: tuple[Case, ...]
    """Cases that the mean is over."""
    engine: str = "8b"
    backends: int = 1
    layout: Literal["cases", "means", "tenants"] = "cases"
    """cases: goodput and losses case by case. means: one line of figures per row. tenants: who got what."""


def _row(name: str, policy: str, **of_trial: Any) -> Row:
    return Row(name, Trial("", 0.0, policy, **of_trial))


def _ours(name: str, lanes: LaneOptions = _STRICT, change: Change = UNCHANGED, **of_row: Any) -> Row:
    return Row(name, Trial("", 0.0, "lanewise", lanes, change=change), **of_row)


def _with_clients(row: Row, clients: Clients) -> Row:
    return replace(row, trial=replace(row.trial, clients=clients))


_NINE = tuple((name, load) for name in ("mixed", "azure", "burst") for load in (0.8, 1.0, 1.3))
_SIX = tuple((name, load) for name in ("mixed", "azure") for load in (0.6, 1.0, 1.3))
_LOW = tuple((name, 0.6) for name in ("mixed", "azure", "burst", "conv"))
_FOUR = (("mixed", 1.0), ("mixed", 1.3), ("azure", 1.0), ("burst", 1.0))

_DIRECT = _row("direct", "direct")
_REFERENCE = _row("reference (perfect knowledge)", "reference")

_MAIN = (
    _DIRECT,
    _row("one bounded queue, cap 32", "bounded-queue", queue_cap=32),
    _row("one bounded queue, cap 64", "bounded-queue"),
    _row("static lanes 48+16", "static-lanes", slots=(48, 16)),
    _row("static lanes 40+4", "static-lanes"),
    _ours("strict"),
    _ours("strict, engine threshold 256", flags=_THRESHOLD),
    _ours("strict, installments", _PARTS),
    _ours("gentle (drop 5)", _GENTLE),
    _ours("gentle, drop 10", replace(_GENTLE, drop=10.0)),
    _ours("gentle, installments", _GENTLE_PARTS),
    _REFERENCE,
)

_FIXED_KNEE = LaneOptions(cap=KNEE, adaptive=False)
_BUILD_UP = (
    _DIRECT,
    _ours("cap 48, one queue in order of arrival", _FIXED_KNEE, changes.ONE_QUEUE),
    _ours(".. + two lanes, short first", _FIXED_KNEE, changes.TWO_LANES),
    _ours(".. + deadline", _FIXED_KNEE, changes.WITH_DEADLINE),
    _ours(".. + prefill budget", _FIXED_KNEE, changes.WITH_BUDGET),
    _ours(".. + KV guard", _FIXED_KNEE, changes.FIFO),
    _ours(".. + shortest first in the lane = strict: fixed cap 48", _FIXED_KNEE),
    _ours(".. + adaptive concurrency = strict"),
)


def _one_change(form: str, lanes: LaneOptions, **of_row: Any) -> tuple[Row, ...]:
    """Return the changes that every form of lanewise can have."""
    return (
        _ours(form, lanes, **of_row),
        _ours(f"{form}: no deadline, 48+16 may wait", lanes, changes.NO_DEADLINE, **of_row),
        _ours(f"{form}: no prefill budget", lanes, changes.NO_BUDGET, **of_row),
        _ours(f"{form}: fixed cap 256", replace(lanes, cap=256, adaptive=False), **of_row),
        _ours(f"{form}: fixed cap 48", replace(lanes, cap=KNEE, adaptive=False), **of_row),
        _ours(f"{form}: first come first served in a lane", lanes, changes.FIFO, **of_row),
        _ours(f"{form}: lane order by deadline", lanes, changes.BY_DEADLINE, **of_row),
        _ours(f"{form}: prefill speed not learned", lanes, changes.NO_LEARNING, **of_row),
        _ours(f"{form}: no KV guard", lanes, changes.NO_KV_GUARD, **of_row),
    )


_ABLATION = (
    *_BUILD_UP,
    *(row for row in _one_change("strict", _STRICT) if row.name not in {"strict", "strict: fixed cap 48"}),
    _ours("strict: no lanes, one line in order of arrival", change=changes.ONE_FIFO),
    _ours("strict: no lanes, one line shortest first", change=changes.ONE_SHORTEST_FIRST),
    _ours("strict: separate budgets, engine without threshold", change=changes.SEPARATE_BUDGETS),
    *_one_change("threshold 256", _STRICT, flags=_THRESHOLD),
    *_one_change("installments", _PARTS),
    _ours("installments: no pause", _PARTS, changes.parts(pause=0.0)),
    _ours("installments: parts of 512", _PARTS, changes.parts(512)),
    _ours("installments: parts of 2048", _PARTS, changes.parts(2048)),
    _ours("installments: parts of 4096", _PARTS, changes.parts(4096)),
)

_ASKING_AGAIN = Clients(retries=3)


def _told_wrong(form: str, lanes: LaneOptions) -> tuple[Row, ...]:
    """Return what may be wrong about any form of lanewise."""
    estimates = [
        _ours(f"{form}: prompt estimate x{factor:g}", lanes, Change(estimate=factor)) for factor in (0.5, 0.67, 1.5, 2)
    ]
    noises = [
        _ours(f"{form}: prompt estimate, random, sigma {sigma:g}", lanes, Change(estimate_sigma=sigma))
        for sigma in (0.15, 0.3, 0.6)
    ]
    speeds = [
        _ours(
            f"{form}: prefill speed x{factor:g}{'' if learns else ', not learned'}",
            lanes,
            changes.prefill_speed(factor, learns=learns),
        )
        for learns in (True, False)
        for factor in (0.5, 2)
    ]
    caps = [
        _ours(f"{form}: cap {cap}, {'adaptive' if adaptive else 'fixed'}", replace(lanes, cap=cap, adaptive=adaptive))
        for adaptive in (True, False)
        for cap in (KNEE // 2, KNEE, KNEE * 2)
    ]
    return (
        _ours(form, lanes),
        *estimates,
        *noises,
        *speeds,
        *caps,
        _ours(f"{form}: no answer streams", lanes, changes.NO_STREAMS),
        _with_clients(_ours(f"{form}: clients ask again, three times", lanes), _ASKING_AGAIN),
    )


_ROBUSTNESS = (
    *_told_wrong("strict", _STRICT),
    *(
        _ours(f"strict: TPOT target {target:g} of the SLO", change=Change(tpot_target=target))
        for target in (0.5, 0.7, 0.85, 1.1, 1.4, 1.9)
    ),
    *_told_wrong("installments", _PARTS),
    _with_clients(replace(_DIRECT, name="direct: clients ask again, three times"), _ASKING_AGAIN),
)

_FOUR_BACKENDS = (
    *(_row(f"direct, {balance}", "direct", balance=balance) for balance in Balance),
    _row("one bounded queue, cap 48 each", "bounded-queue", queue_cap=KNEE),
    _ours("strict"),
    _ours("strict, engine threshold 256", flags=_THRESHOLD),
    _ours("strict, installments", _PARTS),
    _ours("gentle, installments", _GENTLE_PARTS),
    _REFERENCE,
)

_KV_TIGHT = (
    _DIRECT,
    _row("one bounded queue, cap 32", "bounded-queue", queue_cap=32),
    _row("static lanes 28+8", "static-lanes", slots=(28, 8)),
    _ours("strict"),
    _ours("strict: no KV guard", change=changes.NO_KV_GUARD),
    _ours("strict, engine threshold 256", flags=_THRESHOLD),
    _ours("strict, installments", _PARTS),
    _ours("gentle, installments", _GENTLE_PARTS),
    _REFERENCE,
)

ABUSER_SHARE = 0.6


def _abused(row: Row) -> Row:
    return _with_clients(row, Clients(abuser=ABUSER_SHARE))


_ABUSIVE_TENANT = (
    Row("the others alone, strict", Trial("", 0.0, "lanewise", _STRICT), load_factor=1 - ABUSER_SHARE),
    *map(
        _abused,
        (
            _DIRECT,
            _row("one bounded queue, cap 64", "bounded-queue"),
            _ours("strict"),
            _ours("strict, fair", replace(_STRICT, fair=True)),
            _ours("strict, installments", _PARTS),
            _ours("strict, installments, fair", replace(_PARTS, fair=True)),
            _ours("gentle", _GENTLE),
            _ours("gentle, fair", replace(_GENTLE, fair=True)),
        ),
    ),
)

TABLES: Mapping[TableName, Table] = {
    "main": Table("Main: one backend", _MAIN, (*_LOW, *_NINE), _NINE),
    "ablation": Table("Ablation: what each part is worth", _ABLATION, _NINE, _NINE, layout="means"),
    "robustness": Table("Robustness: what is wrong, and what it costs", _ROBUSTNESS, _NINE, _NINE, layout="means"),
    "four-backends": Table("Four backends", _FOUR_BACKENDS, _FOUR, _FOUR, backends=4),
    "14b": Table("14B, short of KV, at the SLO of 8B", _KV_TIGHT, _SIX, _SIX, engine="14b"),
    "abusive-tenant": Table(
        f"One tenant sends {ABUSER_SHARE:.0%}", _ABUSIVE_TENANT, (("azure", 1.5),), (("azure", 1.5),), layout="tenants"
    ),
}
