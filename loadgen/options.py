"""What one replay is asked to do: frozen, complete, and copied into the manifest of the run."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Where the requests come from: trace files or a shipped workload, and which part of them."""

    traces: tuple[Path, ...] = ()
    format: str | None = None
    """azure, mooncake or lanewise; None: decided by the first line of each file."""
    workload: str | None = None
    """Name of a shipped profile (chat, code, mixed) or path of a YAML file; instead of `traces`."""
    start_s: float = 0.0
    """Window start, seconds of the recording after its first request."""
    duration_s: float | None = None
    """Window length, seconds of the recording. A workload needs this or `rows`."""
    rows: int | None = None
    """At most this many requests."""
    scale: float = 1.0
    """Rate factor: 2 sends twice as fast. Every time of the recording is divided by it."""
    rate: float | None = None
    """Mean requests/s to reach; sets the scale (not together with `scale`)."""
    dequantise: bool = False
    """Spread the rows that share one tick of a coarse clock over that tick, by `seed`."""
    bad_lines: BadLines = BadLines.REFUSE
    max_prompt_tokens: int | None = None
    """Longer prompts are cut to this."""
    max_output_tokens: int | None = None
    assume_output_tokens: int = 256
    """Output length of a lanewise record that has neither an output nor a cap (it was rejected, say)."""
    seed: int = 1
    """Decides everything random in the plan: workload rows and de-quantising."""
    border: int = 2048
    """Longest prompt of the short class, in tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """One replay: a source of requests, a target, a run folder. Times are seconds."""

    target: str
    """Base URL, `http://HOST:PORT`."""
    out: Path
    """Run folder; must not exist or be empty."""
    source: SourceOptions
    endpoint: Endpoint = Endpoint.COMPLETIONS
    model: str | None = None
    """Model name to ask for; None: the first one that the target's /v1/models lists."""
    speed: float = 1.0
    """Compresses time for a simulated engine that runs at the same speed: due times and time limits are divided by
    it, and every recorded time is multiplied back."""
    patience_short_s: float | None = None
    """A client of a short request leaves when it has no first token after this, from the due time. None: never."""
    patience_long_s: float | None = None
    connect_timeout_s: float = 10.0
    stall_timeout_s: float = 120.0
    """Longest silence after the first token."""
    timeout_s: float = 1800.0
    """Longest whole request."""
    drain_s: float = 30.0
    """After Ctrl-C: how long requests in flight may still take."""
    fresh_connections: bool = False
    """One connection per request instead of a keep-alive pool (which has no limit)."""
    salt: str | None = None
    """Makes the prompts of this pass unlike those of any other; None: drawn anew, and recorded."""
    reject_statuses: tuple[int, ...] = (429, 503)
    """Answers that count as `rejected`."""
    allow_targets: tuple[str, ...] = ()
    """Hosts beside loopback that may be loaded."""
    yes_production: bool = False
    """Load the target wherever it is."""
    metrics_url: str | None = None
    """The engine's /metrics, for prefix-cache counts; None: `/metrics` of the target."""
    label: str | None = None
    """What people call this run in a table."""
    parameters: tuple[tuple[str, str], ...] = ()
    """Name and value of what was set on the system under test; `compare` shows which of them changed."""
    api_key_file: Path | None = None
    """File with the API key; else the environment variable LANEWISE_API_KEY. Never written anywhere."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a replay is; given to `on_progress` about five times a second, and once at the end."""

    elapsed_s: float
    """Seconds of the plan (wall clock times speed) since the first due time."""
    span_s: float
    """Due time of the last request, seconds of the plan."""
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
