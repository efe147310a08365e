"""The dashboard `compare`: baseline beside candidate, by the target label `experiment`.

The figures on top are over the whole range that the screen shows, so that a tail of few requests is not noise; the
lines below are over the usual window.
"""

from collections.abc import Callable
from typing import Any

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
    R,
    Row,
    Words,
    panel,
    quantile,
    rate,
    share,
)

LONG = "lanewise_request_duration_seconds"
TOKENS = "lanewise_output_tokens_total"
GOOD = "lanewise_slo_good_total"
CANDIDATE = 'job=~"$job", experiment="$candidate"'
BASELINE = 'job=~"$job", experiment="$baseline"'
LANES = 'lane=~"$lane", lane!="none"'
SENT = 'outcome!~"invalid|too_long"'
"""All that a client sent and that could be answered: who gave up waiting is among them."""
SHORT_LANE, LONG_LANE = 'lane="short"', 'lane="long"'
WHOLE = "$__range"
SECONDS = "suffix: s"
"""Both arms in seconds, where `s` would show one of them in milliseconds."""
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
Asking = Callable[[str], str]
"""Makes a query from the selector of an arm."""


def _arms(asking: Asking, *, by_lane: bool = True, instant: bool = False) -> tuple[Query, Query]:
    """Return the same query for both arms."""
    word = "{{lane}} " if by_lane else ""
    return (
        Query(asking(BASELINE), f"{word}$baseline", instant=instant),
        Query(asking(CANDIDATE), f"{word}$candidate", instant=instant),
    )


def _whole(share_of: float, metric: str, lane: str = LANES) -> Asking:
    return lambda arm: quantile(share_of, metric, "", f"{arm}, {lane}", WHOLE)


def _refused(by: str = "", window: str = R, lanes: str = LANES) -> Asking:
    return lambda arm: share(
        rate(REQUESTS, f'{arm}, {lanes}, outcome=~"rejected|expired"', by, window),
        rate(REQUESTS, f"{arm}, {lanes}, {SENT}", by, window),
    )


def _in_time(by: str = "", window: str = R) -> Asking:
    def asking(arm: str) -> str:
        whole = rate(REQUESTS, f"{arm}, {LANES}, {SENT}", by, window)
        # Each series is extrapolated to the ends of the window by itself, so their quotient may pass 1 by a little.
        return f"clamp_max({share(rate(GOOD, f'{arm}, {LANES}', by, window), whole)}, 1)"

    return asking


def _change(share_of: float, metric: str) -> str:
    """Return a quantile of the candidate over the baseline's, per lane."""
    new, old = (quantile(share_of, metric, "lane", f"{arm}, {LANES}") for arm in (CANDIDATE, BASELINE))
    return f"{new} / on (lane) {old}"


def _both(zh: str, en: str, about_zh: str, about_en: str, unit: str, *, asking: Asking, **more: Any) -> Panel:
    """Return one figure of both arms over the whole range."""
    queries = _arms(asking, by_lane=False, instant=True)
    return panel(zh, en, about_zh, about_en, unit, *queries, kind="stat", arms=True, nothing="无数据 / no data", **more)


_GAIN = Row(
    title=Words(
        zh="① 得到什么:短请求的首 token",
        en="What is gained: first tokens of short requests (grey: baseline, blue: candidate; whole range)",
    ),
    panels=(
        _both(
            "短请求 TTFT p99",
            "Short requests, TTFT p99",
            "从到达到首 token,含排队;仅已得到首 token 的请求。",
            "From arrival to the first token, queue included, of requests that got one.",
            SECONDS,
            asking=_whole(0.99, TTFT, SHORT_LANE),
            width=8,
            height=6,
            decimals=2,
        ),
        panel(
            "缩短倍数",
            "Shorter by",
            "基线的 p99 除以候选的 p99;大于 1 更好。",
            "p99 of the baseline over p99 of the candidate; above 1 is better.",
            "suffix:x",
            Query(
                f"{_whole(0.99, TTFT, SHORT_LANE)(BASELINE)} / {_whole(0.99, TTFT, SHORT_LANE)(CANDIDATE)}",
                "p99",
                instant=True,
            ),
            kind="stat",
            filled=True,
            base="red",
            steps=((0.95, "yellow"), (1.1, "green")),
            width=4,
            height=6,
            decimals=1,
            nothing="无数据 / no data",
        ),
        _both(
            "短请求 TTFT p50",
            "Short, p50",
            "一半的短请求在此之内得到首 token。",
            "Half of the short requests have their first token within this.",
            SECONDS,
            asking=_whole(0.5, TTFT, SHORT_LANE),
            width=6,
            height=6,
            decimals=2,
        ),
        _both(
            "按时完成",
            "In time, of all sent",
            "TTFT 与每 token 时间均在通道目标内的比例;被拒绝、失败和放弃等待的都算未按时。",
            "Share within the deadlines of its lane; what was refused, failed or given up counts as not in time.",
            "percentunit",
            asking=_in_time(window=WHOLE),
            width=6,
            height=6,
            decimals=0,
        ),
    ),
)
_PRICE = Row(
    title=Words(zh="② 代价是什么", en="What it costs"),
    panels=(
        _both(
            "拒绝率",
            "Refused",
            "立即拒绝或因截止时间丢弃的比例。",
            "Share that was rejected at once or dropped because of its deadline.",
            "percentunit",
            asking=_refused(window=WHOLE),
            width=4,
            height=6,
            decimals=1,
        ),
        _both(
            "长请求拒绝率",
            "Long",
            "长通道中立即拒绝或因截止时间丢弃的比例。",
            "Of the requests in the long lane.",
            "percentunit",
            asking=_refused(window=WHOLE, lanes=LONG_LANE),
            width=4,
            height=6,
            decimals=1,
        ),
        _both(
            "长请求 TTFT p99",
            "Long",
            "从到达到首 token,含排队。",
            "From arrival to the first token, queue included.",
            SECONDS,
            asking=_whole(0.99, TTFT, LONG_LANE),
            width=4,
            height=6,
            decimals=1,
        ),
        _both(
            "TPOT p95",
            "TPOT p95",
            "首 token 之后每个输出 token 的平均时间。",
            "Mean time per output token after the first.",
            "s",
            asking=_whole(0.95, TPOT),
            width=4,
            height=6,
        ),
        _both(
            "端到端 p95",
            "Whole",
            "从到达到最后一个字节,仅成功的请求。",
            "From arrival to the last byte, of requests that ended ok.",
            "s",
            asking=_whole(0.95, LONG),
            width=4,
            height=6,
            decimals=1,
        ),
        _both(
            "token/秒",
            "Tokens/s",
            "吞吐:输出 token。",
            "Throughput: output tokens.",
            "short",
            asking=lambda arm: rate(TOKENS, f"{arm}, {LANES}", "", WHOLE),
            width=4,
            height=6,
            decimals=0,
        ),
    ),
)


def _beside(zh: str, en: str, about_zh: str, about_en: str, unit: str, *, asking: Asking, **more: Any) -> Panel:
    return panel(zh, en, about_zh, about_en, unit, *_arms(asking), height=10, arms=True, **more)


def _over_time_of(share_of: float, metric: str, lane: str = LANES) -> Asking:
    return lambda arm: quantile(share_of, metric, "lane", f"{arm}, {lane}")


_BESIDE = Row(
    title=Words(
        zh="③ 随时间(灰:基线,蓝:候选;虚线:长请求)", en="Over time (grey: baseline, blue: candidate; dashed: long)"
    ),
    panels=(
        _beside(
            "短请求 TTFT p99",
            "Short requests, TTFT p99",
            "从到达到首 token,含排队。",
            "From arrival to the first token, queue included.",
            "s",
            asking=_over_time_of(0.99, TTFT, SHORT_LANE),
        ),
        _beside(
            "长请求 TTFT p99",
            "Long requests, TTFT p99",
            "从到达到首 token,含排队。",
            "From arrival to the first token, queue included.",
            "s",
            asking=_over_time_of(0.99, TTFT, LONG_LANE),
        ),
        _beside(
            "拒绝率",
            "Refused",
            "被拒绝或丢弃的比例。",
            "Share that was rejected or dropped.",
            "percentunit",
            asking=_refused("lane"),
        ),
        _beside(
            "按时完成",
            "In time, of all sent",
            "在通道的 TTFT 与 TPOT 目标内的比例。",
            "Share within the lane's deadlines.",
            "percentunit",
            asking=_in_time("lane"),
        ),
        _beside(
            "TPOT p95",
            "TPOT p95",
            "每个输出 token 的平均时间。",
            "Mean time per output token.",
            "s",
            asking=_over_time_of(0.95, TPOT),
        ),
        _beside(
            "端到端 p95",
            "End to end p95",
            "仅成功的请求。",
            "Requests that ended ok.",
            "s",
            asking=_over_time_of(0.95, LONG),
        ),
        _beside(
            "输出 token/秒",
            "Output tokens/s",
            "吞吐:另一项代价。",
            "Throughput, the other price.",
            "short",
            asking=lambda arm: rate(TOKENS, f"{arm}, {LANES}", "lane"),
        ),
        _beside(
            "完成的请求/秒",
            "Requests/s",
            "两侧相同才可比较。",
            "Only alike they can be compared.",
            "reqps",
            asking=lambda arm: rate(REQUESTS, f"{arm}, {LANES}", "lane"),
        ),
    ),
)


def _over_time(zh: str, en: str, metric: str) -> Panel:
    return panel(
        zh,
        en,
        "候选/基线,1 为相同,低于 1 更好。",
        "Candidate over baseline: 1 is alike, below 1 is better.",
        "none",
        *(Query(_change(q, metric), f"{{{{lane}}}} p{100 * q:.0f}", dashed=q == 0.5) for q in (0.5, 0.99)),
        lanes=True,
    )


_RATIOS = Row(
    title=Words(zh="④ 比值随时间", en="Ratios over time"),
    panels=(
        _over_time("TTFT 候选/基线", "TTFT, candidate over baseline", TTFT),
        _over_time("TPOT 候选/基线", "TPOT, candidate over baseline", TPOT),
    ),
)
_LABELS = Row(
    title=Words(zh="标签检查", en="Labels"),
    panels=(
        panel(
            "各实验的代理",
            "Proxies by experiment",
            "exported_experiment 是代理配置中的名字;与抓取目标的标签不同,说明目标标错了。",
            "exported_experiment is the name in the proxy's configuration; where it differs, the target is labelled "
            "wrongly.",
            "none",
            Query(
                'count by (experiment, exported_experiment, sha) (lanewise_config_info{job=~"$job"})',
                "{{experiment}} (config: {{exported_experiment}}) {{sha}}",
            ),
            width=24,
            height=6,
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
    rows=(_GAIN, _PRICE, _BESIDE, _RATIOS, _LABELS),
)
