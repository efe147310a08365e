"""The dashboard `backends`: each engine, its limits, its cache, and the card below it."""

from tools.grafana.nouns import (
    BACKEND,
    ENGINE_JOB,
    INSTANCE,
    JOB,
    NPU_JOB,
    RELOADS,
    Board,
    E,
    J,
    N,
    Panel,
    Query,
    R,
    Row,
    Words,
    panel,
    quantile,
    rate,
)

B = f'{J}, backend=~"$backend"'
_CARD = "{{id}} {{model_name}} {{pod_name}} {{instance}}"
"""Older releases of npu-exporter label a card with `id` alone; the rest of the text is then empty."""


def _number(zh: str, en: str, about_zh: str, about_en: str, expr: str, *steps: tuple[float, str]) -> Panel:
    query = Query(expr, "{{backend}}")
    return panel(zh, en, about_zh, about_en, "none", query, kind="stat", width=6, height=4, steps=steps)


_HEALTH = Row(
    title=Words(zh="健康", en="Health"),
    panels=(
        _number(
            "响应探测",
            "Answers probes",
            "1 为响应。",
            "1: it answers.",
            f"min by (backend) (lanewise_backend_up{{{B}}})",
        ),
        _number(
            "已熔断",
            "Left alone",
            "1 为不再接收请求。",
            "1: it gets no requests.",
            f'max by (backend) (lanewise_backend_state{{{B}, state="open"}})',
            (1, "red"),
        ),
        _number(
            "引擎内等待",
            "Waiting in the engine",
            "lanewise 读到的值;应接近 0。",
            "As lanewise reads it; should be near 0.",
            f"max by (backend) (lanewise_backend_waiting_requests{{{B}}})",
            (1, "yellow"),
            (10, "red"),
        ),
        _number(
            "引擎指标年龄(秒)",
            "Age of engine metrics, s",
            "上次读取引擎 /metrics 以来的时间。",
            "Since the engine's /metrics was read.",
            f"max by (backend) (lanewise_backend_scrape_age_seconds{{{B}}})",
            (10, "yellow"),
            (30, "red"),
        ),
        panel(
            "状态变化",
            "State changes",
            "进入各状态的频率。",
            "How often a backend came into each state.",
            "ops",
            Query(rate("lanewise_backend_state_changes_total", B, "backend, state"), "{{backend}} {{state}}"),
        ),
        panel(
            "上游错误",
            "Upstream errors",
            "按类型。",
            "By kind.",
            "reqps",
            Query(rate("lanewise_upstream_errors_total", B, "backend, kind"), "{{backend}} {{kind}}"),
        ),
    ),
)
_LOAD = Row(
    title=Words(zh="负载与上限", en="Load and limits"),
    panels=(
        panel(
            "在途与上限",
            "In flight and limit",
            "序列数;虚线为当前上限。",
            "Sequences; dashed: the limit in force.",
            "short",
            Query(f"sum by (backend) (lanewise_inflight_requests{{{B}}})", "{{backend}}"),
            Query(f"sum by (backend) (lanewise_concurrency_limit{{{B}}})", "{{backend}} 上限 / limit", dashed=True),
        ),
        panel(
            "上限变动及原因",
            "Limit moves and their cause",
            "tpot_high:每 token 时间过高;room_used:已用满且达标;configured:配置。",
            "tpot_high: time per token too high; room_used: all used and in time; configured.",
            "ops",
            Query(
                rate("lanewise_concurrency_limit_changes_total", B, "backend, direction, cause"),
                "{{backend}} {{direction}} {{cause}}",
            ),
        ),
        panel(
            "预填充预算",
            "Prefill budget",
            "已发送、首 token 未到的提示 token;虚线为上限。",
            "Prompt tokens sent whose first token is still to come; dashed: how many may.",
            "short",
            Query(f"sum by (backend) (lanewise_prefill_budget_used_tokens{{{B}}})", "{{backend}}"),
            Query(
                f"sum by (backend) (lanewise_prefill_budget_limit_tokens{{{B}}})",
                "{{backend}} 上限 / limit",
                dashed=True,
            ),
        ),
        panel(
            "引擎 TTFT p95",
            "Engine TTFT p95",
            "从发送到首 token。",
            "From dispatch to the first token.",
            "s",
            Query(
                quantile(0.95, "lanewise_upstream_time_to_first_token_seconds", "lane, backend", B),
                "{{backend}} {{lane}}",
            ),
        ),
        panel(
            "分段预填充",
            "Installments",
            "长提示分段发送的结果:hit 表示前一段仍在引擎缓存中。",
            "Parts of long prompts: hit, the engine still had the part before.",
            "ops",
            Query(rate("lanewise_installments_total", B, "backend, outcome"), "{{backend}} {{outcome}}"),
        ),
        panel(
            "前缀亲和",
            "Prefix affinity",
            "hit:发往已算过该前缀的后端;spill:该后端已满或更忙;miss:没有后端算过。只有一个后端时为 0。",
            "hit: sent where its beginning was computed; spill: that backend was full or busier; miss: none had it. "
            "0 with one backend.",
            "ops",
            Query(rate("lanewise_prefix_affinity_total", J, "lane, result"), "{{lane}} {{result}}"),
        ),
    ),
)
_ENGINE = Row(
    title=Words(zh="引擎", en="Engines"),
    panels=(
        panel(
            "运行与等待",
            "Running and waiting",
            "引擎自身的计数。",
            "As the engine counts them.",
            "short",
            Query(f"vllm:num_requests_running{{{E}}}", "{{instance}} 运行 / running"),
            Query(f"vllm:num_requests_waiting{{{E}}}", "{{instance}} 等待 / waiting"),
        ),
        panel(
            "KV 缓存",
            "KV cache",
            "引擎所报,与 lanewise 读到的值。",
            "As the engine says, and as lanewise reads it.",
            "percentunit",
            Query(f"vllm:kv_cache_usage_perc{{{E}}}", "{{instance}}"),
            Query(f"lanewise_backend_kv_cache_usage_ratio{{{B}}}", "{{backend}} (lanewise)", dashed=True),
        ),
        panel(
            "抢占",
            "Preemptions",
            "应为 0:否则 KV 缓存不足。",
            "Should be 0: else the cache is too small for what runs.",
            "ops",
            Query(f"rate(vllm:num_preemptions_total{{{E}}}[{R}])", "{{instance}}"),
        ),
        panel(
            "引擎 token/秒",
            "Engine tokens/s",
            "提示与生成。",
            "Prompt and generation.",
            "short",
            Query(f"rate(vllm:prompt_tokens_total{{{E}}}[{R}])", "{{instance}} 提示 / prompt"),
            Query(f"rate(vllm:generation_tokens_total{{{E}}}[{R}])", "{{instance}} 生成 / generation"),
        ),
    ),
)
_CARDS = Row(
    title=Words(zh="昇腾 NPU", en="Ascend NPU"),
    panels=(
        panel(
            "HBM 用量",
            "HBM used",
            "vLLM 预先分配 HBM,负载下应平稳;虚线为总量。导出单位为 MB。",
            "vLLM takes HBM beforehand, so it is flat under load; dashed: all. Exported in MB.",
            "decmbytes",
            Query(f"npu_chip_info_hbm_used_memory{{{N}}}", _CARD),
            Query(f"npu_chip_info_hbm_total_memory{{{N}}}", f"{_CARD} 总量 / all", dashed=True),
        ),
        panel(
            "AI Core 利用率",
            "AI core utilisation",
            "百分比。",
            "Per cent.",
            "percent",
            Query(f"npu_chip_info_utilization{{{N}}}", _CARD),
        ),
        panel(
            "温度与功率",
            "Temperature and power",
            "摄氏度;功率在右轴。",
            "Degrees Celsius; power against the right axis.",
            "celsius",
            Query(f"npu_chip_info_temperature{{{N}}}", _CARD),
            Query(f"npu_chip_info_power{{{N}}}", f"{_CARD} 功率 / power", unit="watt"),
        ),
        panel(
            "芯片健康",
            "Chip health",
            "1 为健康。",
            "1: healthy.",
            "none",
            Query(f"npu_chip_info_health_status{{{N}}}", _CARD),
        ),
    ),
)

BACKENDS = Board(
    name="backends",
    title=Words(zh="后端", en="Backends"),
    about=Words(
        zh="每个引擎、它的上限与缓存,以及其下的卡。", en="Each engine, its limits and cache, and the card below it."
    ),
    variables=(JOB, INSTANCE, BACKEND, ENGINE_JOB, NPU_JOB),
    marks=(RELOADS,),
    rows=(_HEALTH, _LOAD, _ENGINE, _CARDS),
)
