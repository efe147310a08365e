"""What a demo says: its conditions, the configuration that the proxy gets, the result as table, document and page."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
import yaml
from rich.console import Console
from rich.table import Table

from loadgen.columns import columns_of
from loadgen.compare import Comparison, compare
from loadgen.failure import Exit
from loadgen.headline import Check, Row, gate, rows
from loadgen.journal import RunFolder
from loadgen.page import Page, Side, render
from loadgen.report import print_summary, seconds
from loadgen.sim.nouns import EngineProfile
from loadgen.summarise import DEFAULT_SLO, summarise_columns
from loadgen.summary import plain

SCHEMA = "lanewise.demo/1"
LATE_S = 0.01
"""Lateness of the simulated engine that is worth a word: a tenth of a quick TTFT at the speeds used here."""
_NAMES = (("direct", "直连"), ("lanewise", "经 lanewise"), ("+ installments", "加分段预填"))
TITLE = "lanewise demo: the same traffic, directly and through lanewise"
SATURATED = 2.64
"""Requests/s that profile 8b completes on workload mixed when 3,000 requests are present at once, in the simulator."""
_SPEED_MEANS = (
    "engine steps, arrivals, patience and lanewise's deadlines and timers are divided by it, measured times are "
    "multiplied back"
)
_SIMULATED = "The engine is simulated: its constants are computed, not measured. Processes and sockets are real."
_BUSY = "The machine was too busy: failed checks do not count. Run it when nothing else runs, or slower (--speed)."
_PRESETS = {
    "strict": "Preset strict: a request that cannot meet its TTFT deadline is refused at once (429, Retry-After).",
    "gentle": "Preset gentle: a late request steps back, and is refused at five times its TTFT deadline.",
}


@dataclass(frozen=True, slots=True)
class Conditions:
    """What is the same in all passes."""

    profile: EngineProfile
    preset: str
    rows: int
    rate: float
    """Requests/s of the plan."""
    speed: float
    seed: int

    @property
    def sentence(self) -> str:
        """Say what is about to happen."""
        span = self.rows / self.rate
        return (
            f"{self.rows} requests of workload mixed at {self.rate:g}/s ({span:.0f} s of traffic, {self.speed:g} times "
            f"as fast), three times. Simulated engine {self.profile.name}: computed constants, not measured."
        )

    @property
    def _engine_limits(self) -> str:
        profile = self.profile
        return (
            f"max_num_batched_tokens {profile.max_num_batched_tokens}, max_num_seqs {profile.max_num_seqs}, "
            f"long_prefill_token_threshold {profile.long_prefill_token_threshold}, "
            f"{profile.kv_blocks} KV blocks of {profile.block_size} tokens, "
            f"prefix caching {'on' if profile.prefix_caching else 'off'}"
        )

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Return the conditions as name and value."""
        profile, slo = self.profile, DEFAULT_SLO
        return [
            ("Engine", f"simulated, profile {profile.name}: {profile.source}"),
            ("Engine limits", self._engine_limits),
            (
                "Workload",
                f"mixed: short conversations, one long document in ten; {self.rows} requests, seed {self.seed}",
            ),
            ("Load", f"{self.rate:g} requests/s, open loop; the engine's saturated throughput here is {SATURATED:g}"),
            ("Clients", "leave without a first token after 30 s (prompts up to 2048 tokens) or 60 s (longer)"),
            ("SLO", f"TTFT {slo.ttft_short_s:g} s short, {slo.ttft_long_s:g} s long; TPOT {slo.tpot_s * 1000:g} ms"),
            ("lanewise", f"{_PRESETS.get(self.preset, self.preset)} Concurrency cap {profile.concurrency_cap}."),
            ("Installments", "long prompts in parts of 1024 tokens through the engine's prefix cache; third pass only"),
            ("Speed", f"{self.speed:g}: {_SPEED_MEANS}"),
            ("Prompts", "token ids of exact length, a new salt in each pass, a newly started engine in each pass"),
        ]


def proxy_config(
    conditions: Conditions, engine_url: str, listen: str, admin: str, trace: Path, *, installments: bool = False
) -> str:
    """Return the YAML that the proxy is started with: the defaults, with every time divided by the speed.

    The proxy lives in wall-clock time. An engine that runs X times as fast needs deadlines and timers X times shorter.

    Args:
        conditions: of the demo.
        engine_url: the engine.
        listen: where the proxy listens.
        admin: where its metrics are.
        trace: where its trace goes.
        installments: feed long prompts in parts.
    """
    profile = conditions.profile

    def wall(seconds: float) -> str:
        return f"{seconds / conditions.speed * 1e6:.0f}us"

    def lane(ttft_s: float, first_byte_s: float) -> dict[str, str]:
        return {
            "ttft_slo": wall(ttft_s),
            "tpot_slo": wall(DEFAULT_SLO.tpot_s),
            "first_byte_timeout": wall(first_byte_s),
        }

    document = {
        "listen": listen,
        "admin": admin,
        "backends": [{"url": engine_url, "concurrency": profile.concurrency_cap, "kv_tokens": profile.kv_tokens}],
        "lanes": {"short": lane(DEFAULT_SLO.ttft_short_s, 60), "long": lane(DEFAULT_SLO.ttft_long_s, 300)},
        "scheduling": {
            "preset": conditions.preset,
            "deadline_margin": wall(0.05),
            "prefill_budget_tokens": profile.max_num_batched_tokens,
            "prefill_time_per_token": wall(profile.c),
            "step_time": wall(profile.a),
        },
        "installments": {"mode": "auto" if installments else "off"},
        "timeouts": {"answer": wall(900), "idle_stream": wall(60)},
        "recorder": {"enabled": True, "directory": str(trace.absolute())},
    }
    heading = f"# Written by lanewise-load demo. Every time is divided by the demo's speed, {conditions.speed:g}.\n"
    return heading + yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


@dataclass(frozen=True, slots=True)
class Told:
    """The result of a demo, whole or interrupted."""

    conditions: Conditions
    folder: Path
    sides: tuple[Side, ...]
    """One for each pass that has a run folder."""
    rows: Sequence[Row]
    checks: Sequence[Check]
    comparison: Comparison | None
    interrupted: bool
    lateness: dict[str, float]
    """Pass → p99 of the simulated engine's own lateness, wall-clock seconds."""

    @property
    def code(self) -> Exit:
        """Return the exit code: on a machine that was too busy a failed check is an invalid measurement, no verdict."""
        if self.interrupted:
            return Exit.INTERRUPTED
        if all(check.passed for check in self.checks):
            return Exit.DONE
        return Exit.INVALID if self.busy else Exit.GATE

    @property
    def page(self) -> Path:
        """Return where the page is."""
        return self.folder / "index.html"

    @property
    def notices(self) -> list[str]:
        """Return what a reader has to know before the numbers."""
        found = [_SIMULATED]
        if self.interrupted:
            found.append("Interrupted: only a part of the requests was sent, the numbers cannot be compared.")
        if self.comparison is not None:
            reasons = (_named(reason) for reason in self.comparison.conditions_differ)
            found += [f"Read the numbers as rough: {reason}." for reason in reasons]
        found += [
            f"The simulated engine itself was late in pass {name}: p99 {seconds(late)} of wall-clock time. "
            "A machine with more free cores gives truer numbers."
            for name, late in self.lateness.items()
            if late > LATE_S
        ]
        return found

    @property
    def busy(self) -> bool:
        """Return whether the machine was too busy to judge by: the generator or the simulated engine was late."""
        late_engine = any(late > LATE_S for late in self.lateness.values())
        return late_engine or any(side.summary.client_limited for side in self.sides)

    @property
    def remarks(self) -> list[str]:
        """Return what else the summaries warn of."""
        told_already = {"speed", "incomplete", "client_limited"}
        return [
            f"{side.name}: {caution.message}"
            for side in self.sides
            for caution in side.summary.warnings
            if caution.code not in told_already
            and not (caution.code == "warm_cache" and side.name == _NAMES[2][0])  # its hits are what it is about
        ]

    def document(self) -> dict[str, Any]:
        """Return everything as plain values."""
        document = {
            "schema": SCHEMA,
            "passed": bool(self.checks) and all(check.passed for check in self.checks),
            "interrupted": self.interrupted,
            "folder": str(self.folder),
            "page": str(self.page) if len(self.sides) >= 2 else None,
            "checks": [asdict(check) for check in self.checks],
            "rows": [asdict(row) | {"change": row.change, "effect": row.effect} for row in self.rows],
            "conditions": dict(self.conditions.facts),
            "summaries": {side.name: side.summary.to_json() for side in self.sides},
            "comparison": self.comparison.to_json() if self.comparison is not None else None,
        }
        return {key: plain(value) for key, value in document.items()}

    def print(self, out: Console) -> None:
        """Print the table, the gate, and where everything is."""
        out.print(self.conditions.sentence, markup=False)
        if self.rows:
            out.print(self._table())
            remarks = self.remarks
        else:
            remarks = []  # the summary prints them
            for side in self.sides:
                print_summary(side.summary, out)
        for notice in self.notices:
            out.print(f"! {notice}", style="yellow", markup=False)
        for remark in remarks:
            out.print(f"  {remark}", style="dim", markup=False)
        out.print(_PRESETS.get(self.conditions.preset, ""), markup=False)
        for check in self.checks:
            out.print(f"{'ok' if check.passed else 'FAILED'}: {check.sentence}.", style="bold", markup=False)
        if self.busy and not all(check.passed for check in self.checks):
            out.print(_BUSY, style="yellow", markup=False)
        out.print(f"Run folders, logs, comparison: {self.folder}", markup=False, soft_wrap=True)
        if len(self.sides) >= 2:
            out.print(f"Page: {self.page}", markup=False, soft_wrap=True)

    def _table(self) -> Table:
        before, *others = self.sides
        table = Table()
        table.add_column("")
        table.add_column(f"{before.name} {before.chinese}", justify="right")
        for side in others:
            table.add_column(f"{side.name} {side.chinese}", justify="right")
            table.add_column("change 变化", justify="right")
        for row in self.rows:
            cells = [cell for value in (row.after, *row.more) for cell in (row.shown(value), _coloured(row, value))]
            table.add_row(row.name, row.shown(row.before), *cells)
        return table


def result(
    conditions: Conditions, folder: Path, runs: Sequence[RunFolder], lateness: dict[str, float], *, stopped: bool
) -> Told:
    """Tell what the passes show. Client lag refuses nothing here, it is told: the effect is in seconds.

    Args:
        conditions: of both passes.
        folder: the demo's.
        runs: directly, through lanewise, and with installments, as far as it came to that.
        lateness: see `Told`.
        stopped: the demo was interrupted.
    """
    sides = tuple(_side(run, *names) for run, names in zip(runs, _NAMES, strict=False))
    if len(sides) < 2:
        return Told(conditions, folder, sides, (), (), None, stopped, lateness)
    before, after, *more = (side.summary for side in sides)
    table = rows(before, after, *more)
    if stopped:
        return Told(conditions, folder, sides, table, (), None, stopped, lateness)
    checks = gate(before, after, *more)
    return Told(conditions, folder, sides, table, checks, compare(runs[0], runs[1], force=True), stopped, lateness)


def _coloured(row: Row, value: float) -> str:
    style = {"better": "green", "worse": "red"}.get(row.effect_of(value), "")
    change = row.change_to(value)
    return f"[{style}]{change}[/]" if style else change


def _named(reason: str) -> str:
    """Call runs A and B of a comparison by their names."""
    for letter, (name, _) in zip("AB", _NAMES[:2], strict=True):
        reason = reason.replace(f"run {letter}:", f"pass {name}:")
    return reason


def write(told: Told) -> None:
    """Write `demo.json`, `comparison.json` and the page into the demo's folder."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    document = told.document()
    (told.folder / "demo.json").write_bytes(orjson.dumps(document, option=options))
    if told.comparison is not None:
        (told.folder / "comparison.json").write_bytes(orjson.dumps(document["comparison"], option=options))
    if len(told.sides) >= 2:
        told.page.write_text(_page(told), encoding="utf-8")


def _page(told: Told) -> str:
    before, after, *more = told.sides
    return render(
        Page(
            title=TITLE,
            lead=told.conditions.sentence,
            before=before,
            after=after,
            rows=told.rows,
            checks=told.checks,
            facts=told.conditions.facts,
            notices=told.notices,
            remarks=told.remarks,
            more=more,
        )
    )


def _side(folder: RunFolder, name: str, chinese: str) -> Side:
    columns = columns_of(folder.results())
    return Side(name, chinese, summarise_columns(columns, folder.manifest(), DEFAULT_SLO), columns)


def lateness_p99(metrics: str) -> float:
    """Return the p99 of the simulated engine's lateness in its /metrics text: the bound of the bucket that holds it."""
    buckets = [
        (float(found["bound"]), float(found["count"]))
        for found in re.finditer(
            r'lanewise_sim_lateness_seconds_bucket\{le="(?P<bound>[^"]+)"\} (?P<count>\S+)', metrics
        )
    ]
    total = buckets[-1][1] if buckets else 0.0
    return next((bound for bound, count in buckets if total and count >= 0.99 * total), 0.0)
