"""What one replay is asked to do: frozen, complete, and copied into the manifest of the run.

The fields are the options of `lanewise-load replay`, and their descriptions its help.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from loadgen.flags import Switch, named, seconds
from loadgen.premises import NOTHING, PremisesOptions
from loadgen.shards.options import ALONE, ShardOptions


class Endpoint(StrEnum):
    """Which path of the engine is used, and with it how a prompt of a given length is made."""

    COMPLETIONS = "completions"
    """/v1/completions with token ids: the length is exact."""
    CHAT = "chat"
    """/v1/chat/completions with text: the length is approximate, and its error is reported."""


class BadLines(StrEnum):
    """What a trace line that cannot be read does."""

    REFUSE = "refuse"
    SKIP = "skip"


class Process(StrEnum):
    """How the gaps between requests are spread around their mean."""

    RECORDED = "recorded"
    """As in the trace."""
    CONSTANT = "constant"
    """All gaps alike."""
    POISSON = "poisson"
    """Independent arrivals: exponential gaps, CV 1."""
    GAMMA = "gamma"
    """Gamma gaps of a chosen CV: above 1 burstier than Poisson, below 1 more even."""


class Bodies(StrEnum):
    """What is sent."""

    MADE = "made"
    """Prompts of the recorded lengths, sharing prefixes as recorded, unlike those of any other pass."""
    RECORDED = "recorded"
    """Recorded bodies, byte for byte: a later pass may find them in the engine's prefix cache."""
    SALTED = "salted"
    """Recorded bodies with a `cache_salt` of this pass, so that it finds nothing of an earlier one."""


class Turns(StrEnum):
    """When the next turn of a conversation is sent."""

    AT_TIME = "at-time"
    """Open loop: at its own time, whether the turn before it was answered or not."""
    AFTER_ANSWER = "after-answer"
    """At its own time, and not before the turn before it has ended; it is due then."""


_REQUESTS = Group("Requests")
_TARGET = Group("Target")
_LIMITS = Group("Time limits")


@Parameter(name="*", group=_REQUESTS)
@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Where the requests come from: trace files or a shipped workload, and which part of them."""

    traces: Annotated[tuple[Path, ...], Parameter(parse=False)] = ()
    """Trace files; several are merged by their wall clocks, or each from its own start."""
    format: str | None = None
    """azure, mooncake, bailian, burstgpt, servegen, sharegpt, log or lanewise; None: told by the content."""
    workload: str | None = None
    """Name of a shipped profile (burst, chat, code, mixed) or path of a YAML file; instead of `traces`."""
    start_s: Annotated[float, seconds("start")] = 0.0
    """Window start, seconds of the recording after its first request."""
    duration_s: Annotated[float | None, seconds("duration")] = None
    """Window length, seconds of the recording. A workload needs this or `rows`."""
    rows: int | None = None
    """At most this many requests."""
    scale: float = 1.0
    """Rate factor: 2 sends twice as fast. Every time of the recording is divided by it."""
    rate: float | None = None
    """Mean requests/s to reach; sets the scale (not together with `scale`)."""
    arrivals: Process = Process.RECORDED
    """When requests come: as recorded, or drawn by `seed` with `rate` (or `rates`): constant, poisson, gamma."""
    cv: float = 1.0
    """Standard deviation of gamma gaps over their mean; above 1 comes in bursts."""
    rates: str | None = None
    """Rates that change: `60s@2,30s@2..10` is 60 s at 2 requests/s, then 30 s from 2 to 10. It ends the plan."""
    turns: Turns = Turns.AT_TIME
    """Conversations (Bailian, ShareGPT): send the next turn at its time, or not before the previous answer."""
    bodies: Bodies = Bodies.MADE
    """Made by length, or the recorded ones (recorder.text, ShareGPT), as they are or with a fresh cache salt."""
    dequantise: Switch = False
    """Spread the rows that share one tick of a coarse clock over that tick, by `seed`."""
    bad_lines: Annotated[BadLines, Parameter(name=("--bad-lines", "--on-bad-line"))] = BadLines.REFUSE
    """A line of a trace that cannot be read: refuse to start, or skip and count it."""
    max_prompt_tokens: Annotated[int | None, named("max-prompt")] = None
    """Longer prompts are cut to this."""
    max_output_tokens: Annotated[int | None, named("max-output")] = None
    """Longer outputs are cut to this."""
    assume_output_tokens: Annotated[int, named("assume-output")] = 256
    """Output length of a lanewise record that has neither an output nor a cap (it was rejected, say)."""
    seed: int = 1
    """Decides everything random in the plan: workload rows and de-quantising."""
    border: int = 2048
    """Longest prompt of the short class, in tokens."""


@Parameter(name="*", group=_TARGET)
@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """One replay: a source of requests, a target, a run folder. Times are seconds."""

    target: str
    """Base URL, `http://HOST:PORT`."""
    out: Path
    """Run folder; must not exist or be empty."""
    source: Annotated[SourceOptions, Parameter(parse=False)] = SourceOptions()
    """Which requests."""
    endpoint: Endpoint = Endpoint.COMPLETIONS
    """completions: token ids, exact lengths. chat: text, whose length error is reported."""
    model: str | None = None
    """Model name to ask for; None: the first one that the target's /v1/models lists."""
    closed_loop: int | None = None
    """Not at due times: keep this many requests in flight, each due when a place is free. Cannot show overload."""
    speed: float = 1.0
    """Compresses time, for a simulated engine at the same speed. Recorded times are multiplied back."""
    patience_short_s: Annotated[float | None, seconds("patience-short", group=_LIMITS)] = None
    """A client of a short request leaves when it has no first token after this, from the due time. None: never."""
    patience_long_s: Annotated[float | None, seconds("patience-long", group=_LIMITS)] = None
    """The same for a long request."""
    connect_timeout_s: Annotated[float, seconds("connect-timeout", group=_LIMITS)] = 10.0
    """Longest wait for a connection."""
    stall_timeout_s: Annotated[float, seconds("stall-timeout", group=_LIMITS)] = 120.0
    """Longest silence after the first token."""
    timeout_s: Annotated[float, seconds("timeout", group=_LIMITS)] = 1800.0
    """Longest whole request."""
    drain_s: Annotated[float, seconds("drain", group=_LIMITS)] = 30.0
    """After Ctrl-C: how long requests in flight may still take."""
    fresh_connections: Switch = False
    """One connection per request instead of a keep-alive pool (which has no limit)."""
    salt: str | None = None
    """Makes the prompts of this pass unlike those of any other; None: drawn anew, and recorded."""
    reject_statuses: Annotated[tuple[int, ...], named("reject-status", negative="")] = (429, 503)
    """Answers that count as `rejected`."""
    allow_targets: Annotated[tuple[str, ...], named("allow-target", negative="")] = ()
    """Hosts beside loopback that may be loaded."""
    yes_production: Switch = False
    """Load the target wherever it is."""
    insecure: Switch = False
    """Take whatever certificate an https target shows; recorded in the run."""
    metrics_url: Annotated[str | None, named("metrics")] = None
    """The engine's /metrics, for prefix-cache counts; None: `/metrics` of the target."""
    engine_metrics: Annotated[tuple[str, ...], named("engine-metrics", negative="")] = ()
    """The engine's /metrics, read each second; may be repeated, one per engine. `none`: none. Default: `--metrics`."""
    card_metrics: Annotated[tuple[str, ...], named("card-metrics", negative="")] = ()
    """The /metrics of an npu-exporter, read once a second into the run folder; may be repeated, one per machine."""
    prometheus: str | None = None
    """HOST:PORT to serve `lanewise_load_*` on while it runs, for the dashboard loadgen (docs/dashboards.md)."""
    check_answers: Switch = False
    """Look whether the text of an answer goes round in circles. Only that is kept; it costs the generator some time."""
    canaries: Path | None = None
    """YAML list of prompts with known answers, asked before and after the run; a wrong or changed one is a warning."""
    premises: Annotated[PremisesOptions, Parameter(parse=False)] = NOTHING
    """What the result depends on beside."""
    shards: Annotated[ShardOptions, Parameter(parse=False)] = ALONE
    """Which share of the plan this generator sends."""
    workers: int = 1
    """Processes that share the plan, where one core is not enough: one start, one journal, exact quantiles over all."""
    no_certify: Switch = False
    """Leave out the few seconds before the run in which the generator measures its own error at the planned load."""
    label: str | None = None
    """What people call this run in a table."""
    parameters: Annotated[tuple[tuple[str, str], ...], Parameter(parse=False)] = ()
    """Name and value of what was set on the system under test; `compare` shows which of them changed."""
    api_key_file: Path | None = None
    """File with the API key; else the environment variable LANEWISE_API_KEY. Never written anywhere."""


@dataclass(frozen=True, slots=True)
class LaneNow:
    """What a lane got in the last ten seconds; seconds of the plan, NaN: nothing."""

    lane: str
    answers: int
    ttft_p50_s: float
    ttft_p95_s: float
    tpot_p50_s: float
    tpot_p95_s: float


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a replay is; given to `on_progress` about five times a second, and once at the end."""

    elapsed_s: float
    """Seconds of the plan (wall clock times speed) since the first due time."""
    span_s: float | None
    """Due time of the last request, seconds of the plan; None in a closed loop, which has no due times."""
    planned: int
    sent: int
    in_flight: int
    ok: int
    rejected: int
    failed: int
    """error, timeout, truncated, stalled and cancelled together."""
    lag_p99_s: float
    """Lateness of recent sends, wall-clock seconds."""
    draining: bool
    due: int | None = None
    """How many the plan wants sent by now; None in a closed loop."""
    lanes: tuple[LaneNow, ...] = ()
