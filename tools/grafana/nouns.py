"""What a dashboard is made of, in our words; `tools.grafana.build` puts it into Grafana's."""

import re
from dataclasses import dataclass, field
from typing import Any, Literal

J = 'job=~"$job", instance=~"$instance"'
"""Selects the proxies that are looked at."""
S = f'{J}, lane=~"$lane"'
R = "$__rate_interval"
E = 'job=~"$engine_job"'
"""Selects the engines: another scrape job."""
N = 'job=~"$npu_job"'
"""Selects the exporter of the cards."""
L = 'job=~"$load_job"'
"""Selects load generators."""
REQUESTS = "lanewise_requests_total"
TTFT = "lanewise_time_to_first_token_seconds"
TPOT = "lanewise_time_per_output_token_seconds"
_NAME = re.compile(r"\b((?:lanewise_|vllm:|npu_chip_info_|process_)\w+|up)\b(?=\{)")


@dataclass(frozen=True, kw_only=True)
class Words:
    """One text in both languages."""

    zh: str
    en: str

    def __str__(self) -> str:
        return self.zh if self.zh == self.en else f"{self.zh} / {self.en}"


@dataclass(frozen=True)
class Query:
    """One query of a panel."""

    expr: str
    legend: str = ""
    dashed: bool = False
    """A limit beside what it bounds."""
    unit: str | None = None
    """Where it differs from the panel's; it is then drawn against the right axis."""
    instant: bool = False


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel."""

    title: Words
    about: Words
    unit: str
    queries: tuple[Query, ...]
    kind: Literal["timeseries", "stat", "heatmap"] = "timeseries"
    width: int = 12
    height: int = 9
    steps: tuple[tuple[float, str], ...] = ()
    """Where a value gets another colour."""
    base: str = "green"
    """Colour below the first step."""
    lanes: bool = False
    """One series per lane: each keeps its colour from panel to panel."""
    arms: bool = False
    """The first query is the baseline's, the second the candidate's: each arm keeps its colour, lines of the lane long
    are dashed."""
    filled: bool = False
    """The whole panel takes the colour of its value, for the one figure that is read first."""
    decimals: int | None = None
    nothing: str = "—"
    """What is shown where there is no value."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that it reads."""
        return tuple(dict.fromkeys(name for query in self.queries for name in _NAME.findall(query.expr)))

    @property
    def description(self) -> str:
        """A Chinese line, an English one, and the metrics."""
        named = ", ".join(f"`{name}`" for name in self.metrics)
        return f"{self.about.zh}\n\n{self.about.en}\n\nMetric: {named}"


def panel(zh: str, en: str, about_zh: str, about_en: str, unit: str, *queries: Query, **more: Any) -> Panel:
    """Make a panel of its texts in both languages, its unit and its queries; `more` are further fields of it."""
    return Panel(title=Words(zh=zh, en=en), about=Words(zh=about_zh, en=about_en), unit=unit, queries=queries, **more)


@dataclass(frozen=True, kw_only=True)
class Row:
    """Panels under one heading."""

    title: Words
    panels: tuple[Panel, ...]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A variable whose values Prometheus knows."""

    name: str
    title: Words
    query: str
    multi: bool = True
    first: str | None = None
    """Value at the beginning; None: all."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A variable with values of our own: (shown, value)."""

    name: str
    title: Words
    values: tuple[tuple[str, str], ...]
    first: str


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A moment that is marked in all panels."""

    name: Words
    expr: str
    colour: str


@dataclass(frozen=True, kw_only=True)
class Board:
    """One dashboard."""

    name: str
    title: Words
    about: Words
    rows: tuple[Row, ...]
    variables: tuple[Asked | Choice, ...] = ()
    marks: tuple[Mark, ...] = field(default=())


JOB = Asked(name="job", title=Words(zh="任务", en="Job"), query="label_values(lanewise_build_info, job)")
INSTANCE = Asked(
    name="instance",
    title=Words(zh="实例", en="Instance"),
    query='label_values(lanewise_build_info{job=~"$job"}, instance)',
)
LANE = Asked(
    name="lane", title=Words(zh="通道", en="Lane"), query='label_values(lanewise_queue_limit{job=~"$job"}, lane)'
)
BACKEND = Asked(
    name="backend",
    title=Words(zh="后端", en="Backend"),
    query='label_values(lanewise_backend_up{job=~"$job"}, backend)',
)
ENGINE_JOB = Asked(
    name="engine_job", title=Words(zh="引擎任务", en="Engine job"), query="label_values(vllm:num_requests_running, job)"
)
NPU_JOB = Asked(
    name="npu_job", title=Words(zh="NPU 任务", en="NPU job"), query="label_values(npu_chip_info_hbm_used_memory, job)"
)
LOAD_JOB = Asked(
    name="load_job", title=Words(zh="压测任务", en="Load job"), query="label_values(lanewise_load_run_info, job)"
)
TTFT_SLO = Choice(
    name="ttft_slo",
    title=Words(zh="TTFT 目标", en="TTFT SLO"),
    values=tuple((f"{text} s", text) for text in ("0.25", "0.5", "1.0", "1.5", "2.0", "2.5", "5.0", "10.0")),
    first="1.0",
)
TPOT_SLO = Choice(
    name="tpot_slo",
    title=Words(zh="TPOT 目标", en="TPOT SLO"),
    values=tuple((f"{float(text) * 1000:.0f} ms", text) for text in ("0.025", "0.05", "0.075", "0.1", "0.15", "0.2")),
    first="0.1",
)
RELOADS = Mark(
    name=Words(zh="配置变更", en="Config change"),
    expr=f"changes(lanewise_config_generation{{{J}}}[1m]) > 0",
    colour="purple",
)
RUNS = Mark(
    name=Words(zh="压测开始", en="Load run"),
    expr="lanewise_load_run_info unless lanewise_load_run_info offset 1m",
    colour="blue",
)


def quantile(share: float, metric: str, by: str, selector: str, window: str = R) -> str:
    """Return the query for a quantile of a histogram."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) (rate({metric}_bucket{{{selector}}}[{window}])))"


def rate(metric: str, selector: str, by: str = "", window: str = R) -> str:
    """Return the query for a sum of rates."""
    return f"sum {f'by ({by}) ' if by else ''}(rate({metric}{{{selector}}}[{window}]))"


def share(part: str, whole: str) -> str:
    """Return a ratio that has no value where nothing happens."""
    return f"{part} / ({whole} > 0)"
