"""The dashboard `compare`: baseline beside candidate, by the target label `experiment`."""

from tools.grafana.nouns import (
    INSTANCE,
    JOB,
    LANE,
    RELOADS,
    REQUESTS,
    RUNS,
    TPOT,
    TTFT,
    Asked,
    Board,
    Panel,
    Query,
    Row,
    Words,
    quantile,
    rate,
    share,
)

LONG = "lanewise_request_duration_seconds"
BOTH = 'job=~"$job", lane=~"$lane", experiment=~"$baseline|$candidate"'
CANDIDATE = 'job=~"$job", lane=~"$lane", experiment="$candidate"'
BASELINE = 'job=~"$job", lane=~"$lane", experiment="$baseline"'
OWN = 'outcome!~"invalid|too_long|client_gone"'
BASELINE_ARM = Asked(
    name="baseline",
    title=Words(zh="基线", en="Baseline"),
    query="label_values(lanewise_build_info, experiment)",
    multi=False,
    first="baseline",
)
CANDIDATE_ARM = Asked(
    name="candidate",
    title=Words(zh="候选", en="Candidate"),
    query="label_values(lanewise_build_info, experiment)",
    multi=False,
    first="candidate",
)


def _change(share_of: float, metric: str) -> str:
    """Return by how much a quantile of the candidate differs, as a share of the baseline's."""
    new, old = (quantile(share_of, metric, "lane", selector) for selector in (CANDIDATE, BASELINE))
    return f"{new} / on (lane) {old} - 1"


def _refused(selector: str) -> str:
    return share(rate(REQUESTS, f'{selector}, outcome=~"rejected|expired"', "lane"), rate(REQUESTS, selector, "lane"))


def _good(selector: str) -> str:
    return share(rate("lanewise_slo_good_total", selector, "lane"), rate(REQUESTS, f"{selector}, {OWN}", "lane"))


def _headline(zh: str, en: str, about_zh: str, about_en: str, expr: str, *, rise_is_good: bool = False) -> Panel:
    steps = ((0.02, "yellow"), (0.1, "red"))
    return Panel(
        title=Words(zh=zh, en=en),
        about=Words(zh=about_zh, en=about_en),
        unit="percentunit",
        kind="stat",
        width=4,
        height=5,
        decimals=1,
        steps=() if rise_is_good else steps,
        queries=(Query(expr, "{{lane}}"),),
        nothing="无流量 / no traffic",
    )


_HEADLINES = Row(
    title=Words(zh="结论:候选相对基线的变化", en="The result: candidate against baseline"),
    panels=(
        _headline("TTFT p99 变化", "TTFT p99 change", "负值更好。", "Below 0 is better.", _change(0.99, TTFT)),
        _headline("TTFT p50 变化", "TTFT p50 change", "负值更好。", "Below 0 is better.", _change(0.5, TTFT)),
        _headline(
            "TPOT p95 变化",
            "TPOT p95 change",
            "代价之一:负值更好。",
            "Part of the price: below 0 is better.",
            _change(0.95, TPOT),
        ),
        _headline(
            "端到端 p95 变化",
            "End to end p95 change",
            "代价之一:负值更好。",
            "Part of the price: below 0 is better.",
            _change(0.95, LONG),
        ),
        _headline(
            "拒绝率之差",
            "Refused, difference",
            "代价:候选比基线多拒绝的百分点。",
            "The price: points that the candidate refuses more.",
            f"{_refused(CANDIDATE)} - on (lane) {_refused(BASELINE)}",
        ),
        _headline(
            "达标率之差",
            "In time, difference",
            "候选比基线多按时完成的百分点;正值更好。",
            "Points that the candidate answers in time more; above 0 is better.",
            f"{_good(CANDIDATE)} - on (lane) {_good(BASELINE)}",
            rise_is_good=True,
        ),
    ),
)


def _beside(zh: str, en: str, about_zh: str, about_en: str, unit: str, *queries: Query) -> Panel:
    return Panel(title=Words(zh=zh, en=en), about=Words(zh=about_zh, en=about_en), unit=unit, height=9, queries=queries)


def _quantiles(metric: str, *shares: float) -> tuple[Query, ...]:
    return tuple(
        Query(quantile(q, metric, "lane, experiment", BOTH), f"{{{{lane}}}} {{{{experiment}}}} p{100 * q:.0f}")
        for q in shares
    )


_BESIDE = Row(
    title=Words(zh="并列", en="Side by side"),
    panels=(
        _beside(
            "TTFT p99",
            "TTFT p99",
            "从到达到首 token,含排队。",
            "From arrival to the first token, queue included.",
            "s",
            *_quantiles(TTFT, 0.99),
        ),
        _beside(
            "TTFT p50 / p95",
            "TTFT p50, p95",
            "从到达到首 token,含排队。",
            "From arrival to the first token.",
            "s",
            *_quantiles(TTFT, 0.5, 0.95),
        ),
        _beside(
            "TPOT p95",
            "TPOT p95",
            "每个输出 token 的平均时间。",
            "Mean time per output token.",
            "s",
            *_quantiles(TPOT, 0.95),
        ),
        _beside(
            "端到端 p95", "End to end p95", "仅成功的请求。", "Requests that ended ok.", "s", *_quantiles(LONG, 0.95)
        ),
        _beside(
            "拒绝率",
            "Refused",
            "被拒绝或丢弃的比例。",
            "Share that was rejected or dropped.",
            "percentunit",
            Query(
                share(
                    rate(REQUESTS, f'{BOTH}, outcome=~"rejected|expired"', "lane, experiment"),
                    rate(REQUESTS, BOTH, "lane, experiment"),
                ),
                "{{lane}} {{experiment}}",
            ),
        ),
        _beside(
            "达标率",
            "Answered in time",
            "在通道的 TTFT 与 TPOT 目标内的比例。",
            "Share within the lane's deadlines.",
            "percentunit",
            Query(
                share(
                    rate("lanewise_slo_good_total", BOTH, "lane, experiment"),
                    rate(REQUESTS, f"{BOTH}, {OWN}", "lane, experiment"),
                ),
                "{{lane}} {{experiment}}",
            ),
        ),
        _beside(
            "输出 token/秒",
            "Output tokens/s",
            "吞吐:另一项代价。",
            "Throughput, the other price.",
            "short",
            Query(rate("lanewise_output_tokens_total", BOTH, "lane, experiment"), "{{lane}} {{experiment}}"),
        ),
        _beside(
            "到达的请求/秒",
            "Requests/s",
            "两侧相同才可比较。",
            "Only alike they can be compared.",
            "reqps",
            Query(rate(REQUESTS, BOTH, "lane, experiment"), "{{lane}} {{experiment}}"),
        ),
    ),
)


def _over_time(zh: str, en: str, metric: str) -> Panel:
    return Panel(
        title=Words(zh=zh, en=en),
        about=Words(
            zh="候选/基线,1 为相同,低于 1 更好。", en="Candidate over baseline: 1 is alike, below 1 is better."
        ),
        unit="none",
        lanes=True,
        queries=tuple(
            Query(f"{_change(q, metric)} + 1", f"{{{{lane}}}} p{100 * q:.0f}", dashed=q == 0.5) for q in (0.5, 0.99)
        ),
    )


_RATIOS = Row(
    title=Words(zh="比值随时间", en="Ratios over time"),
    panels=(_over_time("TTFT 比值", "TTFT ratio", TTFT), _over_time("TPOT 比值", "TPOT ratio", TPOT)),
)
_LABELS = Row(
    title=Words(zh="标签检查", en="Labels"),
    panels=(
        Panel(
            title=Words(zh="各实验的代理", en="Proxies by experiment"),
            about=Words(
                zh="exported_experiment 是代理配置中的名字;与抓取目标的标签不同,说明目标标错了。",
                en="exported_experiment is the name in the proxy's configuration; where it differs, the target is "
                "labelled "
                "wrongly.",
            ),
            unit="none",
            width=24,
            height=6,
            queries=(
                Query(
                    'count by (experiment, exported_experiment, sha) (lanewise_config_info{job=~"$job"})',
                    "{{experiment}} (config: {{exported_experiment}}) {{sha}}",
                ),
            ),
        ),
    ),
)

COMPARE = Board(
    name="compare",
    title=Words(zh="对比", en="Compare"),
    about=Words(
        zh="短请求的尾延迟降了多少,代价是什么。", en="How far the tail of short requests fell, and what it cost."
    ),
    variables=(JOB, INSTANCE, LANE, BASELINE_ARM, CANDIDATE_ARM),
    marks=(RELOADS, RUNS),
    rows=(_HEADLINES, _BESIDE, _RATIOS, _LABELS),
)
