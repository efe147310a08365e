"""What an alert is made of, and how the cases that prove it are written down."""

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Said:
    """One text in both languages; Prometheus fills in `{{ $labels.… }}` and `{{ $value … }}`."""

    en: str
    zh: str


@dataclass(frozen=True, kw_only=True)
class Fired:
    """One alert that a case expects."""

    labels: dict[str, str]
    """Labels of the series; those of the rule are added."""
    value: str = ""
    """What the text says where it shows the value."""
    window: str | None = None
    """Which rule, where several have the name."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Series, in the notation of `promtool test rules`, and what fires at a moment."""

    name: str
    series: dict[str, str]
    at: str
    """When it is looked at, from the start of the series."""
    fired: tuple[Fired, ...] = ()
    """Nothing: the alert has to stay silent."""
    interval: str = "15s"


@dataclass(frozen=True, kw_only=True)
class Alert:
    """One alerting rule."""

    name: str
    expr: str
    severity: str
    """page: somebody has to look now; warning: today; ticket: this week."""
    summary: Said
    description: Said
    wait: str | None = None
    """How long it has to hold: Prometheus' `for`."""
    window: str | None = None
    """The long window of a budget burn."""
    cases: tuple[Case, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Recording:
    """One recording rule."""

    record: str
    expr: str


@dataclass(frozen=True)
class Objectives:
    """What is promised. Bounds of time to first token are bounds of the histogram, written as Prometheus does."""

    ttft_bounds: dict[str, str] = field(default_factory=lambda: {"short": "1.0", "long": "5.0"})
    """Seconds to the first token, by lane: the defaults of `lanes.*.ttft_slo`."""
    ttft: float = 0.95
    """Share of streamed answers whose first token comes in time."""
    availability: float = 0.99
    """Share of requests that no fault of ours or of a backend ends."""
