"""The command `lanewise-load study`: scheduling policies side by side, in virtual time, on public traces."""

import json as jsonlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from loadgen import tables, tables_print, tables_run
from loadgen.failure import Exit, UsageError
from loadgen.flags import Switch
from loadgen.sim.nouns import EngineProfile
from loadgen.sim.profile import load_profile
from loadgen.sim.trials import POLICIES, WINDOW_SEED, Figures, Study, Trial
from loadgen.sim.virtual import LaneOptions, Preset
from loadgen.sim.workloads import workload_names
from loadgen.tables import TABLES, TableName
from loadgen.tables_run import Span

app = App(name="study", help="Run the scheduling policies in virtual time and tabulate them.", help_format="plaintext")

OnOff = Literal["on", "off"]
_NARROWEST = 132
"""Columns that the table needs; a narrower terminal breaks the lines."""
_COLUMNS = (
    "workload",
    "load",
    "policy",
    "goodput",
    "short p50",
    "short p99",
    "long p99",
    "TPOT p99",
    "short lost",
    "long lost",
    "preempted",
    "completed/s",
)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFlags:
    """Flags of the simulated engine that differ from its profile."""

    long_prefill_threshold: int | None = None
    """Most tokens of one prompt in a step shared with others; lanewise then uses one prefill budget per lane."""
    max_num_batched_tokens: int | None = None
    """Token budget of one step."""
    prefix_caching: OnOff | None = None
    """Whether the engine finds prompts that it has computed before."""
    kv_blocks: int | None = None
    """Size of the KV cache, in blocks."""

    def apply(self, profile: EngineProfile) -> EngineProfile:
        """Return the profile with these flags.

        Raises:
            UsageError: a combination that no engine could run with.
        """
        changes: dict[str, Any] = {
            "long_prefill_token_threshold": self.long_prefill_threshold,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "prefix_caching": None if self.prefix_caching is None else self.prefix_caching == "on",
            "kv_blocks": self.kv_blocks,
        }
        try:
            return replace(profile, **{key: value for key, value in changes.items() if value is not None})
        except ValueError as error:
            raise UsageError(f"engine flags: {error}") from None


_NO_FLAGS = EngineFlags()


@app.default
def study(
    *,
    traces: Path,
    workload: Annotated[list[str] | None, Parameter(negative="", consume_multiple=True)] = None,
    load: Annotated[list[float] | None, Parameter(negative="", consume_multiple=True)] = None,
    policy: Annotated[list[str] | None, Parameter(negative="", consume_multiple=True)] = None,
    table: Annotated[list[TableName] | None, Parameter(negative="", consume_multiple=True)] = None,
    preset: Preset = Preset.STRICT,
    drop: float | None = None,
    installments: OnOff = "off",
    adaptive: OnOff = "on",
    cap: int | None = None,
    engine: str | None = None,
    flags: EngineFlags = _NO_FLAGS,
    backends: int = 1,
    windows: int = 3,
    rows: int = 4000,
    seed: int = WINDOW_SEED,
    processes: int = 1,
    json: Switch = False,
) -> int:
    """Drive policies and simulated engines through a recorded workload in virtual time, and tabulate what came out.

    Everything random is drawn by seed: the same command prints the same figures. Asked for workloads, loads and
    policies it prints a row for each; asked for tables it prints those, with rows of their own.

    Parameters
    ----------
    traces
        Folder with azure/AzureLLMInferenceTrace_conv.csv, azure/AzureLLMInferenceTrace_code.csv and
        mooncake/conversation_trace.jsonl in it.
    workload
        mixed, azure, burst or conv; may be repeated.
    load
        Multiple of the saturated throughput of all backends, which the study measures first; may be repeated.
    policy
        direct, bounded-queue, static-lanes, lanewise or reference; may be repeated.
    table
        main, ablation, robustness, four-backends, 14b or abusive-tenant; may be repeated. Beside it --workload and
        --load choose among its cases, or replace them; --engine replaces its engine; flags of the engine, --windows,
        --rows, --seed and --processes hold for all its rows.
    preset
        Of lanewise. strict: short lane first, dropped when late. gentle: deadline order, late ones step behind.
    drop
        Of lanewise: multiple of the deadline at which a request is dropped; else the preset's (1 or 5).
    installments
        Of lanewise: feed long prompts in parts.
    adaptive
        Of lanewise: let the concurrency cap follow TPOT, from 4 up to the engine's max_num_seqs.
    cap
        Of lanewise: sequences per backend, or where they start; else 32 when adaptive, the engine profile's when not.
    engine
        Profile of the simulated engine: 8b, 14b, 910b-like, tiny-cpu, or a file; 8b, or the table's, when not said.
    backends
        How many of them.
    windows
        Windows of the workload; figures are their mean.
    rows
        Requests of one window.
    seed
        Draws the windows.
    processes
        How many work at once on a table; its figures do not depend on it.
    json
        Print one JSON array: of rows, or of tables.
    """
    if table:
        wanted = _Wanted(tuple(dict.fromkeys(table)), workload or [], load or [], engine, flags)
        _check(wanted.workloads, wanted.loads, [], drop=drop, cap=cap, backends=backends)
        own = {"policy": policy, "preset": preset != Preset.STRICT, "installments": installments == "on", "cap": cap}
        _check_table({**own, "drop": drop, "adaptive": adaptive == "off", "backends": backends != 1}, processes)
        return _tables(traces, wanted, Span(windows, rows, seed), processes, json=json)
    if not workload or not load or not policy:
        raise UsageError("study needs --workload, --load and --policy, each at least once, or --table")
    _check(workload, load, policy, drop=drop, cap=cap, backends=backends)
    base = load_profile(engine or "8b")
    bench = Study(traces, base, flags.apply(base))
    lanes = LaneOptions(preset, drop, installments == "on", cap, adaptive == "on")
    trials = [
        Trial(name, at, by, lanes, backends, windows, rows, seed) for name in workload for at in load for by in policy
    ]
    done = list(_run(bench, trials))
    if json:
        sys.stdout.write(jsonlib.dumps([_document(bench, *row) for row in done], allow_nan=False) + "\n")
    else:
        _print(bench, done)
    return Exit.DONE


def _check(
    workloads: list[str],
    loads: list[float],
    policies: list[str],
    *,
    drop: float | None,
    cap: int | None,
    backends: int,
) -> None:
    for name in workloads:
        if name not in workload_names():
            raise UsageError(f"--workload {name}: not known; one of {', '.join(workload_names())}")
    for name in policies:
        if name not in POLICIES:
            raise UsageError(f"--policy {name}: not known; one of {', '.join(POLICIES)}")
    for load in loads:
        if not 0 < load <= 100:
            raise UsageError(f"--load {load:g}: must be above 0 and at most 100 (1 is what the engine can just do)")
    if drop is not None and not drop >= 1:
        raise UsageError(f"--drop {drop:g}: must be at least 1, the deadline itself")
    if cap is not None and cap < 1:
        raise UsageError(f"--cap {cap}: must be at least 1")
    if not 1 <= backends <= 1024:
        raise UsageError(f"--backends {backends}: must be from 1 to 1024")


def _check_table(own: Mapping[str, object], processes: int) -> None:
    """Refuse what each row of a table decides for itself."""
    for option, given in own.items():
        if given:
            raise UsageError(f"--{option}: a table has its own; leave it out, or leave out --table")
    if not 1 <= processes <= 1024:
        raise UsageError(f"--processes {processes}: must be from 1 to 1024")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Which tables, and what of them is not as they have it."""

    names: tuple[TableName, ...]
    workloads: list[str]
    loads: list[float]
    engine: str | None
    flags: EngineFlags

    def table(self, name: TableName) -> tables.Table:
        table = TABLES[name]
        if self.engine:
            table = replace(table, engine=self.engine)
        if not self.workloads and not self.loads:
            return table
        workloads = self.workloads or list(dict.fromkeys(workload for workload, _ in table.cases))
        loads = self.loads or list(dict.fromkeys(load for _, load in table.cases))
        cases = tuple((workload, load) for workload in workloads for load in loads)
        return replace(table, cases=cases, averaged=cases)


def _tables(traces: Path, wanted: _Wanted, span: Span, processes: int, *, json: bool) -> int:
    chosen = {name: wanted.table(name) for name in wanted.names}
    studies: dict[str, Study] = {}
    for table in chosen.values():
        base = load_profile(table.engine)
        studies.setdefault(table.engine, Study(traces, base, wanted.flags.apply(base)))
    cells = [cell for table in chosen.values() for cell in tables_run.cells_of(table)]
    with Progress(console=Console(stderr=True), transient=True) as progress:
        figures = progress.track(
            tables_run.run_cells(studies, cells, span, processes), total=len(cells), description="study"
        )
        measured = iter(figures)
        lines = {name: tables_run.lines_of(table, measured) for name, table in chosen.items()}
    shown = [(name, table, lines[name], studies[table.engine]) for name, table in chosen.items()]
    if json:
        documents = [tables_print.document(*one, span) for one in shown]
        sys.stdout.write(jsonlib.dumps(documents, allow_nan=False) + "\n")
        return Exit.DONE
    console = Console()
    console.width = max(console.width, _NARROWEST, *map(tables_print.columns, chosen.values()))
    for _, table, of_table, bench in shown:
        tables_print.show(console, table, of_table, bench, span)
    return Exit.DONE


def _run(bench: Study, trials: list[Trial]) -> Iterator[tuple[Trial, Figures]]:
    console = Console(stderr=True)
    for number, trial in enumerate(trials, 1):
        saturated = bench.saturated_per_s(trial.workload)
        if console.is_terminal:
            console.print(
                f"{number}/{len(trials)}  {trial.workload} {trial.load:g}x "
                f"({trial.load * saturated * trial.backends:.2f} requests/s)  {trial.policy}",
                highlight=False,
            )
        yield trial, bench.run(trial)


def _document(bench: Study, trial: Trial, figures: Figures) -> dict[str, Any]:
    ours, engine = trial.policy == "lanewise", bench.engine
    return {
        "workload": trial.workload,
        "load": trial.load,
        "policy": trial.policy,
        "preset": trial.lanes.preset.value if ours else None,
        "drop": trial.lanes.drop_factor if ours else None,
        "installments": "on" if ours and trial.lanes.installments else "off",
        "engine": engine.name,
        "backends": trial.backends,
        "windows": trial.windows,
        "rows": trial.rows,
        "seed": trial.seed,
        "long_prefill_threshold": engine.long_prefill_token_threshold,
        "max_num_batched_tokens": engine.max_num_batched_tokens,
        "prefix_caching": "on" if engine.prefix_caching else "off",
        "kv_blocks": engine.kv_blocks,
        "adaptive": ("on" if trial.lanes.adaptive else "off") if ours else None,
        "cap": trial.lanes.start(engine) if ours else None,
        "saturated_per_s": bench.saturated_per_s(trial.workload),
        **asdict(figures),
    }


def _print(bench: Study, rows: list[tuple[Trial, Figures]]) -> None:
    table = Table(
        title=f"engine {bench.engine.name}, backends: {rows[0][0].backends}", title_justify="left", box=SIMPLE
    )
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column in {"workload", "policy"} else "right")
    for trial, figures in rows:
        table.add_row(*_cells(trial, figures))
    console = Console()
    console.width = max(console.width, _NARROWEST)
    console.print(table)
    console.print(
        "TTFT percentiles are over completed requests, in seconds: read them beside the losses. "
        f"Engine constants: {bench.engine.source}.",
        highlight=False,
    )


def _cells(trial: Trial, figures: Figures) -> list[str]:
    return [
        trial.workload,
        f"{trial.load:g}",
        trial.policy + (f" {trial.lanes.preset}" if trial.policy == "lanewise" else ""),
        f"{figures.goodput:.3f}",
        *(
            "-" if value is None else f"{value:.2f}"
            for value in (figures.short_ttft_p50_s, figures.short_ttft_p99_s, figures.long_ttft_p99_s)
        ),
        "-" if figures.tpot_p99_s is None else f"{figures.tpot_p99_s:.3f}",
        *("-" if value is None else f"{100 * value:.1f} %" for value in (figures.short_lost, figures.long_lost)),
        f"{figures.preemptions:.0f}",
        f"{figures.completed_per_s:.2f}",
    ]
