"""The dashboard `loadgen`: what the load generator sends, whether on time, and what its clients see."""

from tools.grafana.nouns import LOAD_JOB, RUNS, Board, L, Panel, Query, Row, Words, panel, quantile, rate, share

_SENDING = Row(
    title=Words(zh="发送", en="Sending"),
    panels=(
        panel(
            "计划与已发送",
            "Planned and sent",
            "每秒请求数;两条线应重合。",
            "Requests/s; the two should lie on each other.",
            "reqps",
            Query(rate("lanewise_load_scheduled_total", L), "计划 / planned"),
            Query(rate("lanewise_load_sent_total", L), "已发送 / sent"),
            Query(f"sum(lanewise_load_target_rate{{{L}}})", "计划 10 秒 / planned, 10 s", dashed=True),
        ),
        panel(
            "发送延迟 p99",
            "Schedule lag p99",
            "开环是否诚实:实际发送减计划时间。超过几毫秒说明压测机不够快。",
            "Honesty of the open loop: sent minus planned. Over some milliseconds the load generator is too slow.",
            "s",
            Query(quantile(0.99, "lanewise_load_schedule_lag_seconds", "instance", L), "{{instance}} p99"),
            Query(quantile(0.5, "lanewise_load_schedule_lag_seconds", "instance", L), "{{instance}} p50", dashed=True),
        ),
        panel(
            "在途请求",
            "In flight",
            "已发送、未结束。",
            "Sent and not ended.",
            "short",
            Query(f"sum by (instance) (lanewise_load_inflight_requests{{{L}}})", "{{instance}}"),
        ),
        panel(
            "结果",
            "Outcomes",
            "按通道与结果。",
            "By lane and outcome.",
            "reqps",
            Query(rate("lanewise_load_completed_total", L, "lane, outcome"), "{{lane}} {{outcome}}"),
        ),
    ),
)


def _seen(zh: str, en: str, metric: str) -> Panel:
    return panel(
        zh,
        en,
        "客户端所见,从计划时间起。",
        "As the client sees it, from the due time.",
        "s",
        *(Query(quantile(q, metric, "lane", L), f"{{{{lane}}}} p{100 * q:.0f}", dashed=q == 0.5) for q in (0.5, 0.99)),
        lanes=True,
    )


_SEEN = Row(
    title=Words(zh="客户端所见", en="What clients see"),
    panels=(
        _seen("TTFT p50 / p99", "TTFT p50, p99", "lanewise_load_time_to_first_token_seconds"),
        _seen("TPOT p50 / p99", "TPOT p50, p99", "lanewise_load_time_per_output_token_seconds"),
        _seen("端到端 p50 / p99", "End to end p50, p99", "lanewise_load_request_duration_seconds"),
        panel(
            "成功率",
            "Answered",
            "按通道:完整回答的比例。",
            "By lane: share that was answered in full.",
            "percentunit",
            Query(
                share(
                    rate("lanewise_load_completed_total", f'{L}, outcome="ok"', "lane"),
                    rate("lanewise_load_completed_total", L, "lane"),
                ),
                "{{lane}}",
            ),
            lanes=True,
        ),
        Panel(
            title=Words(zh="运行", en="Runs"),
            about=Words(
                zh="每次压测一条序列:编号、标签、计划哈希、种子。",
                en="One series per run: id, label, hash of the plan, seed.",
            ),
            unit="none",
            width=24,
            height=5,
            queries=(Query(f"lanewise_load_run_info{{{L}}}", "{{run_id}} {{arm}} {{trace_sha}} seed {{seed}}"),),
        ),
    ),
)

LOADGEN = Board(
    name="loadgen",
    title=Words(zh="压测", en="Load generator"),
    about=Words(zh="发送是否按时,客户端看到什么。", en="Is it sent on time, and what do clients see?"),
    variables=(LOAD_JOB,),
    marks=(RUNS,),
    rows=(_SENDING, _SEEN),
)
