"""The dashboard `overview`: is it working, and where is the time spent?"""

from typing import Any

from tools.grafana.nouns import (
    ENGINE_JOB,
    INSTANCE,
    JOB,
    LANE,
    RELOADS,
    REQUESTS,
    TPOT,
    TPOT_SLO,
    TTFT,
    TTFT_SLO,
    Board,
    E,
    J,
    Panel,
    Query,
    R,
    Row,
    S,
    Words,
    panel,
    quantile,
    rate,
    share,
)

FAULTS = 'outcome=~"backend_error|backend_timeout|truncated"'
REFUSED = 'outcome=~"rejected|expired"'
SEEN = 'last_over_time(lanewise_build_info{job=~"$job"}[$__range])'
"""Targets that are, or within the screen were, lanewise: with all jobs chosen, others are not."""
OURS = f"and on (job, instance) lanewise_build_info{{{J}}}"


def _stat(zh: str, en: str, about_zh: str, about_en: str, unit: str, *queries: Query, **more: Any) -> Panel:
    return panel(zh, en, about_zh, about_en, unit, *queries, kind="stat", width=6, height=4, **more)


_NOW = Row(
    title=Words(zh="现在好不好", en="Right now"),
    panels=(
        _stat(
            "请求/秒",
            "Requests/s",
            "完成的请求,含所有结果。",
            "Finished requests, every outcome.",
            "reqps",
            Query(rate(REQUESTS, S)),
        ),
        _stat(
            "拒绝率",
            "Refused",
            "被立即拒绝或因超过截止时间而丢弃的比例。",
            "Share that was rejected at once or dropped because of its deadline.",
            "percentunit",
            Query(share(rate(REQUESTS, f"{S}, {REFUSED}"), rate(REQUESTS, S))),
            steps=((0.01, "yellow"), (0.05, "red")),
            nothing="无流量 / no traffic",
        ),
        _stat(
            "TTFT 达标率",
            "TTFT in time",
            "按通道:首 token 在所选目标内的比例。",
            "By lane: share of first tokens within the chosen SLO.",
            "percentunit",
            Query(
                share(rate(f"{TTFT}_bucket", f'{S}, le="$ttft_slo"', "lane"), rate(f"{TTFT}_count", S, "lane")),
                "{{lane}}",
            ),
            nothing="无流量 / no traffic",
        ),
        _stat(
            "TPOT 达标率",
            "TPOT in time",
            "按通道:每 token 时间在所选目标内的比例。",
            "By lane: share of answers whose time per output token is within the chosen SLO.",
            "percentunit",
            Query(
                share(rate(f"{TPOT}_bucket", f'{S}, le="$tpot_slo"', "lane"), rate(f"{TPOT}_count", S, "lane")),
                "{{lane}}",
            ),
            nothing="无流量 / no traffic",
        ),
        _stat(
            "错误率",
            "Errors",
            "后端错误、超时或中途断开的比例;不含拒绝。",
            "Share that a backend failed, let time out or cut; rejections are not among them.",
            "percentunit",
            Query(share(rate(REQUESTS, f"{S}, {FAULTS}"), rate(REQUESTS, S))),
            steps=((0.001, "yellow"), (0.01, "red")),
            nothing="无流量 / no traffic",
        ),
        _stat(
            "可用后端/总数",
            "Backends up, all",
            "每个后端只计一次,无论有几个代理。",
            "Each backend counts once, however many proxies there are.",
            "none",
            Query(f"sum(max by (backend) (lanewise_backend_up{{{J}}}))", "up"),
            Query(f"count(count by (backend) (lanewise_backend_up{{{J}}}))", "all"),
        ),
        _stat(
            "不可达代理",
            "Unreachable proxies",
            "Prometheus 抓取失败的 lanewise 进程数。",
            "lanewise processes that Prometheus cannot scrape.",
            "none",
            Query(f'count(up{{job=~"$job"}} == 0 and on (job, instance) {SEEN}) or vector(0)'),
            steps=((1, "red"),),
        ),
        _stat(
            "配置代次",
            "Config generation",
            "每次生效的配置加一;名字为实验名与配置哈希。",
            "Rises with each configuration that is applied; named by experiment and hash of the configuration.",
            "none",
            Query(
                f"max by (experiment, sha) (lanewise_config_info{{{J}}} * on (job, instance) group_left () "
                f"lanewise_config_generation{{{J}}})",
                "{{experiment}} {{sha}}",
            ),
        ),
    ),
)
_LATENCY = Row(
    title=Words(zh="延迟", en="Latency by lane"),
    panels=(
        Panel(
            title=Words(zh="TTFT p50 / p95 / p99", en="TTFT p50, p95, p99"),
            about=Words(
                zh="从到达 lanewise 到首 token,含排队;仅流式。",
                en="From arrival to the first token, queue included; streams only.",
            ),
            unit="s",
            height=10,
            queries=tuple(
                Query(quantile(q, TTFT, "lane", S), f"{{{{lane}}}} {word}", dashed=q == 0.5)
                for q, word in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
            ),
        ),
        Panel(
            title=Words(zh="TTFT 花在哪里:排队还是引擎", en="Where TTFT is spent: queue or engine"),
            about=Words(
                zh="p95。排队高:容量不足或上限过低;引擎高:预填充拥挤或上限过高。",
                en="p95. Queue high: too little capacity, or limits too low. Engine high: crowded prefill, or limits "
                "too high.",
            ),
            unit="s",
            height=10,
            queries=(
                Query(quantile(0.95, "lanewise_queue_wait_seconds", "lane", S), "{{lane}} 排队 / queue"),
                Query(
                    quantile(0.95, "lanewise_upstream_time_to_first_token_seconds", "lane", S), "{{lane}} 引擎 / engine"
                ),
            ),
        ),
        Panel(
            title=Words(zh="TPOT p50 / p95", en="TPOT p50, p95"),
            about=Words(
                zh="每个输出 token 的平均时间;每请求一次。", en="Mean time per output token, once per request."
            ),
            unit="s",
            queries=tuple(
                Query(quantile(q, TPOT, "lane", S), f"{{{{lane}}}} {word}", dashed=q == 0.5)
                for q, word in ((0.5, "p50"), (0.95, "p95"))
            ),
        ),
        Panel(
            title=Words(zh="端到端 p95", en="End to end p95"),
            about=Words(
                zh="从到达到最后一个字节,仅成功的请求。", en="From arrival to the last byte, of requests that ended ok."
            ),
            unit="s",
            lanes=True,
            queries=(Query(quantile(0.95, "lanewise_request_duration_seconds", "lane", S), "{{lane}}"),),
        ),
    ),
)
_QUEUES = Row(
    title=Words(zh="排队与限额", en="Queues and limits"),
    panels=(
        Panel(
            title=Words(zh="队列深度与上限", en="Queue depth and limit"),
            about=Words(zh="等待的请求;虚线为上限。", en="Requests that wait; dashed: how many may."),
            unit="short",
            queries=(
                Query(f"sum by (lane) (lanewise_queue_depth{{{S}}})", "{{lane}}"),
                Query(f"sum by (lane) (lanewise_queue_limit{{{S}}})", "{{lane}} 上限 / limit", dashed=True),
            ),
        ),
        Panel(
            title=Words(zh="按原因的拒绝", en="Rejections by reason"),
            about=Words(zh="单个请求的原因见 lanewise explain。", en="`lanewise explain` tells of a single one."),
            unit="reqps",
            queries=(Query(rate("lanewise_rejections_total", J, "lane, reason"), "{{lane}} {{reason}}"),),
        ),
        Panel(
            title=Words(zh="在途与并发上限", en="In flight and concurrency limit"),
            about=Words(zh="按后端的序列数;虚线为当前上限。", en="Sequences per backend; dashed: the limit in force."),
            unit="short",
            queries=(
                Query(f"sum by (backend) (lanewise_inflight_requests{{{J}}})", "{{backend}}"),
                Query(f"sum by (backend) (lanewise_concurrency_limit{{{J}}})", "{{backend}} 上限 / limit", dashed=True),
            ),
        ),
        Panel(
            title=Words(zh="并发上限为何变动", en="Why the limit moved"),
            about=Words(
                zh="按方向与原因:tpot_high 表示每 token 时间过高,room_used 表示已用满且仍达标。",
                en="By direction and cause: tpot_high, time per token too high; room_used, all was used and still in "
                "time.",
            ),
            unit="ops",
            queries=(
                Query(
                    rate("lanewise_concurrency_limit_changes_total", J, "backend, direction, cause"),
                    "{{backend}} {{direction}} {{cause}}",
                ),
            ),
        ),
        Panel(
            title=Words(zh="代理在途、引擎运行与等待", en="Proxy in flight, engine running and waiting"),
            about=Words(
                zh="引擎等待应接近 0:排队应发生在 lanewise 中。",
                en="Engine waiting should stay near 0: the queue is ours.",
            ),
            unit="short",
            queries=(
                Query(f"sum(lanewise_inflight_requests{{{J}}})", "代理在途 / in flight"),
                Query(f"sum(vllm:num_requests_running{{{E}}})", "引擎运行 / running"),
                Query(f"sum(vllm:num_requests_waiting{{{E}}})", "引擎等待 / waiting"),
            ),
        ),
        Panel(
            title=Words(zh="KV 缓存与抢占", en="KV cache and preemptions"),
            about=Words(
                zh="抢占表示 KV 缓存不足:降低并发或 kv_fraction。",
                en="Preemptions: the cache is too small for what runs.",
            ),
            unit="percentunit",
            queries=(
                Query(f"vllm:kv_cache_usage_perc{{{E}}}", "{{instance}} KV"),
                Query(f"rate(vllm:num_preemptions_total{{{E}}}[{R}])", "{{instance}} 抢占 / preemptions", unit="ops"),
            ),
        ),
    ),
)
_LENGTHS = Row(
    title=Words(zh="长度与缓存", en="Lengths and caches"),
    panels=(
        Panel(
            title=Words(zh="输入与输出 token/秒", en="Tokens/s in and out"),
            about=Words(zh="按通道,来自引擎的 usage。", en="By lane, from the engine's usage."),
            unit="short",
            queries=(
                Query(rate("lanewise_prompt_tokens_total", S, "lane"), "{{lane}} 输入 / in"),
                Query(rate("lanewise_output_tokens_total", S, "lane"), "{{lane}} 输出 / out"),
            ),
        ),
        Panel(
            title=Words(zh="提示长度分布", en="Prompt lengths"),
            about=Words(zh="热力图,token 数。", en="Heat map, in tokens."),
            unit="short",
            kind="heatmap",
            queries=(Query(rate("lanewise_request_prompt_tokens_bucket", S, "le"), "{{le}}"),),
        ),
        Panel(
            title=Words(zh="长度估计/实际 p50、p95", en="Estimated over real length p50, p95"),
            about=Words(
                zh="1 为准确;偏离会使请求进入错误通道。", en="1 is exact; what is off lands in the wrong lane."
            ),
            unit="none",
            queries=tuple(
                Query(quantile(q, "lanewise_prompt_tokens_estimate_ratio", "model", J), f"{{{{model}}}} {word}")
                for q, word in ((0.5, "p50"), (0.95, "p95"))
            ),
        ),
        Panel(
            title=Words(zh="输出上限与被截断的回答", en="Output caps, answers cut"),
            about=Words(
                zh="由 lanewise 设置的上限,以及因此截断的回答。",
                en="Caps that lanewise set, and answers that ended there.",
            ),
            unit="reqps",
            queries=(
                Query(rate("lanewise_output_caps_applied_total", S, "lane, rule"), "{{lane}} {{rule}}"),
                Query(rate("lanewise_output_truncated_total", S, "lane"), "{{lane}} 截断 / cut"),
            ),
        ),
        Panel(
            title=Words(zh="前缀命中率", en="Prefix cache hits"),
            about=Words(
                zh="token 比例:引擎 usage 所报,与引擎自身计数。",
                en="Share of tokens: as usage says, and as the engine counts.",
            ),
            unit="percentunit",
            queries=(
                Query(
                    share(rate("lanewise_cached_prompt_tokens_total", S), rate("lanewise_prompt_tokens_total", S)),
                    "usage",
                ),
                Query(
                    share(rate("vllm:prefix_cache_hits_total", E), rate("vllm:prefix_cache_queries_total", E)),
                    "引擎 / engine",
                ),
            ),
        ),
    ),
)
_FAULTS = Row(
    title=Words(zh="故障与自身", en="Faults and the proxy itself"),
    panels=(
        Panel(
            title=Words(zh="上游错误、重试、客户端断开", en="Upstream errors, retries, disconnects"),
            about=Words(
                zh="断开按阶段:排队、预填充、解码。",
                en="Disconnects by where the request was: queued, prefill, decode.",
            ),
            unit="reqps",
            queries=(
                Query(rate("lanewise_upstream_errors_total", J, "backend, kind"), "{{backend}} {{kind}}"),
                Query(rate("lanewise_retries_total", S, "lane, result"), "重试 / retry {{lane}} {{result}}"),
                Query(rate("lanewise_client_disconnects_total", S, "lane, phase"), "断开 / left {{lane}} {{phase}}"),
            ),
        ),
        Panel(
            title=Words(zh="自身开销与事件循环延迟 p99", en="Own time and loop lag p99"),
            about=Words(
                zh="开销:既不在排队也不在等引擎的时间。", en="Own time: neither queued nor waiting for an engine."
            ),
            unit="s",
            queries=(
                Query(quantile(0.99, "lanewise_overhead_seconds", "instance", J), "{{instance}} 开销 / own"),
                Query(quantile(0.99, "lanewise_event_loop_lag_seconds", "instance", J), "{{instance}} 循环 / loop"),
            ),
        ),
        Panel(
            title=Words(zh="CPU、内存、文件描述符", en="CPU, memory, file descriptors"),
            about=Words(zh="lanewise 进程自身。", en="Of the process itself."),
            unit="percentunit",
            queries=(
                Query(f"rate(process_cpu_seconds_total{{{J}}}[{R}]) {OURS}", "{{instance}} CPU"),
                Query(f"process_resident_memory_bytes{{{J}}} {OURS}", "{{instance}} RSS", unit="bytes"),
                Query(f"process_open_fds{{{J}}} {OURS}", "{{instance}} fds", unit="short"),
            ),
        ),
        Panel(
            title=Words(zh="追踪记录", en="Trace records"),
            about=Words(
                zh="写入与丢失;未启用记录时无数据。", en="Written and lost; no data where nothing is recorded."
            ),
            unit="cps",
            queries=(
                Query(rate("lanewise_recorder_records_total", J, "instance"), "{{instance}} 写入 / written"),
                Query(rate("lanewise_recorder_dropped_total", J, "instance, reason"), "{{instance}} {{reason}}"),
            ),
        ),
    ),
)

OVERVIEW = Board(
    name="overview",
    title=Words(zh="总览", en="Overview"),
    about=Words(zh="是否正常工作,时间花在哪里。", en="Is it working, and where is the time spent?"),
    variables=(JOB, INSTANCE, LANE, ENGINE_JOB, TTFT_SLO, TPOT_SLO),
    marks=(RELOADS,),
    rows=(_NOW, _LATENCY, _QUEUES, _LENGTHS, _FAULTS),
)
