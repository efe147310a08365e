"""The alerts: what each looks at, what it says in both languages, and the cases that prove it."""

from collections.abc import Iterator

from tools.prometheus.budget import budget_alerts
from tools.prometheus.nouns import Alert, Case, Fired, Objectives, Said

JOB = "lanewise"
_AT = 'job="lanewise", instance="proxy:9100"'
_HERE = {"job": "lanewise", "instance": "proxy:9100"}


def alerts(objectives: Objectives) -> Iterator[Alert]:
    """Yield every alerting rule, the most urgent first."""
    yield _proxy_down()
    yield _no_backend()
    yield from budget_alerts(objectives)
    yield _queue_full()
    yield _rejections_high()
    yield _breaker_open()
    yield _queue_bypassed()
    yield _limit_flapping()
    yield _estimate_drift()
    yield _cap_truncation_high()
    yield _config_reload_failed()
    yield _recorder_dropping()
    yield _metrics_stale()


def _proxy_down() -> Alert:
    return Alert(
        name="LanewiseProxyDown",
        expr=f'up{{job="{JOB}"}} == 0',
        wait="2m",
        severity="page",
        summary=Said(
            en="lanewise at {{ $labels.instance }} does not answer Prometheus",
            zh="{{ $labels.instance }} 上的 lanewise 不响应 Prometheus",
        ),
        description=Said(
            en="The process is gone, its admin listener is not reachable, or the machine is. Requests may fail.",
            zh="进程已退出、管理端口不可达,或整台机器不可达。请求可能正在失败。",
        ),
        cases=(
            Case(
                name="the target is gone for two minutes",
                series={f"up{{{_AT}}}": "1x8 0x40"},
                at="6m",
                fired=(Fired(labels=_HERE),),
            ),
            Case(
                name="one scrape is missed, and another job is down",
                series={f"up{{{_AT}}}": "1x8 0 1x40", 'up{job="node", instance="a"}': "0x60"},
                at="6m",
            ),
        ),
    )


def _no_backend() -> Alert:
    up = "lanewise_backend_up"
    return Alert(
        name="LanewiseNoBackend",
        expr=f"sum by (job, instance) ({up}) == 0",
        wait="1m",
        severity="page",
        summary=Said(
            en="No backend of lanewise at {{ $labels.instance }} answers",
            zh="{{ $labels.instance }} 上 lanewise 的后端全部无响应",
        ),
        description=Said(
            en="Every request is refused with 503 no_backend until one engine answers its probes again.",
            zh="在任一引擎恢复探测响应之前,所有请求都会以 503 no_backend 拒绝。",
        ),
        cases=(
            Case(
                name="both backends stop answering",
                series={f'{up}{{{_AT}, backend="a"}}': "1x4 0x40", f'{up}{{{_AT}, backend="b"}}': "1x8 0x40"},
                at="5m",
                fired=(Fired(labels=_HERE),),
            ),
            Case(
                name="one of two answers",
                series={f'{up}{{{_AT}, backend="a"}}': "0x60", f'{up}{{{_AT}, backend="b"}}': "1x60"},
                at="10m",
            ),
        ),
    )


def _queue_full() -> Alert:
    bounds = {"requests": ("depth", "limit"), "tokens": ("tokens", "tokens_limit"), "bytes": ("bytes", "bytes_limit")}
    parts = [
        f'label_replace(lanewise_queue_{used} / (lanewise_queue_{limit} > 0), "bound", "{word}", "", "")'
        for word, (used, limit) in bounds.items()
    ]
    lane = f'{_AT}, lane="short"'
    return Alert(
        name="LanewiseQueueFull",
        expr="(\n  " + "\n  or ".join(parts) + "\n) > 0.9",
        wait="5m",
        severity="warning",
        summary=Said(
            en="The queue of lane {{ $labels.lane }} is {{ $value | humanizePercentage }} full ({{ $labels.bound }})",
            zh="{{ $labels.lane }} 通道的队列已用 {{ $value | humanizePercentage }}({{ $labels.bound }})",
        ),
        description=Said(
            en="More comes than the backends can take; what comes over the bound is refused with 429 queue_full.",
            zh="到达的请求超过后端处理能力;超出队列上限的请求会以 429 queue_full 拒绝。",
        ),
        cases=(
            Case(
                name="95 of 100 wait",
                series={
                    f"lanewise_queue_depth{{{lane}}}": "0 95x60",
                    f"lanewise_queue_limit{{{lane}}}": "100x60",
                    f"lanewise_queue_bytes{{{lane}}}": "1x60",
                    f"lanewise_queue_bytes_limit{{{lane}}}": "100x60",
                },
                at="10m",
                fired=(Fired(labels={**_HERE, "lane": "short", "bound": "requests"}, value="95%"),),
            ),
            Case(
                name="it is full for two minutes, and half full afterwards",
                series={
                    f"lanewise_queue_depth{{{lane}}}": "100x8 50x60",
                    f"lanewise_queue_limit{{{lane}}}": "100x70",
                },
                at="6m",
            ),
        ),
    )


def _rejections_high() -> Alert:
    def requests(rejected: int) -> dict[str, str]:
        return {
            'lanewise_requests_total{lane="long", outcome="rejected"}': f"0+{rejected}x80",
            'lanewise_requests_total{lane="long", outcome="ok"}': f"0+{100 - rejected}x80",
        }

    return Alert(
        name="LanewiseRejectionsHigh",
        expr="lane:lanewise_rejections:ratio_rate5m > 0.05",
        wait="5m",
        severity="warning",
        summary=Said(
            en="Lane {{ $labels.lane }} refuses {{ $value | humanizePercentage }} of its requests",
            zh="{{ $labels.lane }} 通道拒绝了 {{ $value | humanizePercentage }} 的请求",
        ),
        description=Said(
            en="Rejected at once, or dropped because the deadline could not be met. `lanewise explain` tells of each.",
            zh="立即拒绝,或因无法满足截止时间而丢弃。可用 `lanewise explain` 查看单个请求的原因。",
        ),
        cases=(
            Case(
                name="one in ten is refused",
                series=requests(10),
                at="15m",
                fired=(Fired(labels={"lane": "long"}, value="10%"),),
            ),
            Case(name="one in fifty is refused", series=requests(2), at="15m"),
        ),
    )


def _breaker_open() -> Alert:
    state = f'lanewise_backend_state{{{_AT}, backend="a", state="open"}}'
    return Alert(
        name="LanewiseBreakerOpen",
        expr='lanewise_backend_state{state="open"} == 1',
        wait="2m",
        severity="warning",
        summary=Said(
            en="Backend {{ $labels.backend }} gets no requests",
            zh="后端 {{ $labels.backend }} 已被熔断,不再接收请求",
        ),
        description=Said(
            en="It does not answer its probes, or requests failed there one after the other. The others carry its "
            "load.",
            zh="探测无响应,或请求连续失败。其负载由其余后端承担。",
        ),
        cases=(
            Case(
                name="it stays away",
                series={state: "0x4 1x40"},
                at="6m",
                fired=(Fired(labels={**_HERE, "backend": "a", "state": "open"}),),
            ),
            Case(name="it comes back after a minute", series={state: "0x4 1x4 0x40"}, at="6m"),
        ),
    )


def _queue_bypassed() -> Alert:
    def engine(waiting: int) -> dict[str, str]:
        return {
            f'lanewise_backend_waiting_requests{{{_AT}, backend="a"}}': f"{waiting}x80",
            f'lanewise_inflight_requests{{{_AT}, backend="a"}}': "40x80",
        }

    return Alert(
        name="LanewiseQueueBypassed",
        expr="max by (backend) (lanewise_backend_waiting_requests)"
        " > 0.2 * sum by (backend) (lanewise_inflight_requests)",
        wait="10m",
        severity="warning",
        summary=Said(
            en="{{ $value }} requests wait inside engine {{ $labels.backend }}, where their order is not ours",
            zh="有 {{ $value }} 个请求在引擎 {{ $labels.backend }} 内部排队,其顺序不受 lanewise 控制",
        ),
        description=Said(
            en="The concurrency limit is too high for the engine's max_num_seqs or KV cache, or somebody sends to it "
            "past lanewise.",
            zh="并发上限超过引擎的 max_num_seqs 或 KV 缓存容量,或有请求绕过 lanewise 直接发往引擎。",
        ),
        cases=(
            Case(
                name="12 wait beside 40",
                series=engine(12),
                at="15m",
                fired=(Fired(labels={"backend": "a"}, value="12"),),
            ),
            Case(name="4 wait beside 40", series=engine(4), at="15m"),
        ),
    )


def _limit_flapping() -> Alert:
    """A limit that searches goes up by one and down by 5 %, over and over; what is wrong is a wide swing."""
    limit = "lanewise_concurrency_limit"
    downs = "lanewise_concurrency_limit_changes_total"

    def moves(values: str) -> dict[str, str]:
        return {
            f'{limit}{{{_AT}, backend="a"}}': values,
            f'{downs}{{{_AT}, backend="a", direction="down", cause="tpot_high"}}': "0+1x80",
        }

    return Alert(
        name="LanewiseLimitFlapping",
        expr=f"(max_over_time({limit}[10m]) - min_over_time({limit}[10m])) / avg_over_time({limit}[10m]) > 0.5\n"
        f'and on (instance, backend) sum by (instance, backend) (increase({downs}{{direction="down"}}[10m])) > 10',
        severity="warning",
        summary=Said(
            en="The concurrency limit of {{ $labels.backend }} swings by {{ $value | humanizePercentage }} of its mean",
            zh="{{ $labels.backend }} 的并发上限在均值的 {{ $value | humanizePercentage }} 范围内摆动",
        ),
        description=Said(
            en="The engine's time per output token does not follow the limit: something else slows it, or tpot_slo "
            "lies "
            "at the edge of what it can do.",
            zh="引擎的每 token 时间不随并发上限变化:可能有其他因素拖慢引擎,或 tpot_slo 设置在其能力边缘。",
        ),
        cases=(
            Case(
                name="between 20 and 60 every other scrape",
                series=moves("20 60 " * 40),
                at="15m",
                fired=(Fired(labels={**_HERE, "backend": "a"}, value="101.2%"),),
            ),
            Case(name="it searches between 38 and 41", series=moves("38 39 40 41 " * 20), at="15m"),
        ),
    )


def _estimate_drift() -> Alert:
    metric = "lanewise_prompt_tokens_estimate_ratio_bucket"
    by = f"sum by (le, model) (rate({metric}[30m]))"

    def ratios(high: int) -> dict[str, str]:
        counts = {"0.75": 0, "0.9": 10, "1.1": 100 - high, "1.25": 100 - high, "1.5": 100 - high, "2.0": 100}
        rows = {f'{metric}{{{_AT}, model="m", le="{le}"}}': f"0+{count}x300" for le, count in counts.items()}
        return {**rows, f'{metric}{{{_AT}, model="m", le="+Inf"}}': "0+100x300"}

    return Alert(
        name="LanewiseEstimateDrift",
        expr=f"histogram_quantile(0.95, {by}) > 1.5\nor histogram_quantile(0.5, {by}) > 1.25\n"
        f"or histogram_quantile(0.5, {by}) < 0.8",
        wait="30m",
        severity="warning",
        summary=Said(
            en="Prompt lengths of model {{ $labels.model }} are estimated badly",
            zh="模型 {{ $labels.model }} 的提示长度估计偏差过大",
        ),
        description=Said(
            en="One in twenty is estimated at over 1.5 times its length, or the median is off by a fifth: requests "
            "land "
            "in the wrong lane. estimate.tokenize: border asks the engine.",
            zh="每二十个请求中有一个估计值超过实际的 1.5 倍,或中位数偏差超过五分之一:请求会进入错误的通道。"
            "可设置 estimate.tokenize: border 向引擎查询。",
        ),
        cases=(
            Case(
                name="one in ten is estimated at up to twice its length",
                series=ratios(10),
                at="1h10m",
                fired=(Fired(labels={"model": "m"}),),
            ),
            Case(name="one in fifty is", series=ratios(2), at="1h10m"),
        ),
    )


def _cap_truncation_high() -> Alert:
    def cut(count: int) -> dict[str, str]:
        return {
            'lanewise_output_truncated_total{lane="short"}': f"0+{count}x300",
            'lanewise_requests_total{lane="short", outcome="ok"}': "0+100x300",
        }

    return Alert(
        name="LanewiseCapTruncationHigh",
        expr="sum by (lane, experiment) (rate(lanewise_output_truncated_total[30m]))\n"
        '/ (sum by (lane, experiment) (rate(lanewise_requests_total{outcome="ok"}[30m])) > 0) > 0.1',
        wait="15m",
        severity="warning",
        summary=Said(
            en="{{ $value | humanizePercentage }} of the answers in lane {{ $labels.lane }} end at our output cap",
            zh="{{ $labels.lane }} 通道有 {{ $value | humanizePercentage }} 的回答被 lanewise 的输出上限截断",
        ),
        description=Said(
            en="People get answers that stop in the middle. Raise lanes.*.output.ceiling or default, or the policy "
            "that "
            "sets them.",
            zh="用户会收到中途截断的回答。请提高 lanes.*.output.ceiling 或 default,或相应的长度策略。",
        ),
        cases=(
            Case(
                name="one in five is cut",
                series=cut(20),
                at="1h",
                fired=(Fired(labels={"lane": "short"}, value="20%"),),
            ),
            Case(name="one in twenty is cut", series=cut(5), at="1h"),
        ),
    )


def _config_reload_failed() -> Alert:
    metric = f"lanewise_config_last_reload_success{{{_AT}}}"
    return Alert(
        name="LanewiseConfigReloadFailed",
        expr="lanewise_config_last_reload_success == 0",
        severity="warning",
        summary=Said(
            en="The last reload of lanewise at {{ $labels.instance }} changed nothing",
            zh="{{ $labels.instance }} 上 lanewise 最近一次重载未生效",
        ),
        description=Said(
            en="The file was refused; the configuration before it is still in force. The log and /status.json name the "
            "key.",
            zh="配置文件被拒绝,之前的配置仍在生效。日志与 /status.json 指出了出错的键。",
        ),
        cases=(
            Case(name="a reload is refused", series={metric: "1x4 0x20"}, at="2m", fired=(Fired(labels=_HERE),)),
            Case(name="the next one succeeds", series={metric: "1x4 0x2 1x20"}, at="4m"),
        ),
    )


def _recorder_dropping() -> Alert:
    metric = f'lanewise_recorder_dropped_total{{{_AT}, reason="disk_error"}}'
    return Alert(
        name="LanewiseRecorderDropping",
        expr="sum by (job, instance, reason) (rate(lanewise_recorder_dropped_total[5m])) > 0",
        severity="warning",
        summary=Said(
            en="lanewise at {{ $labels.instance }} loses trace records ({{ $labels.reason }})",
            zh="{{ $labels.instance }} 上的 lanewise 正在丢失追踪记录({{ $labels.reason }})",
        ),
        description=Said(
            en="Requests are not affected. disk_error: the disk is full or not writable; queue_full: it is too slow.",
            zh="请求不受影响。disk_error:磁盘已满或不可写;queue_full:磁盘写入过慢。",
        ),
        cases=(
            Case(
                name="the disk takes no more",
                series={metric: "0x8 0+5x40"},
                at="6m",
                fired=(Fired(labels={**_HERE, "reason": "disk_error"}),),
            ),
            Case(name="records were lost an hour ago", series={metric: "0 7x240"}, at="1h"),
        ),
    )


def _metrics_stale() -> Alert:
    def seen(up: int) -> dict[str, str]:
        return {
            f'lanewise_backend_scrape_age_seconds{{{_AT}, backend="a"}}': "1 0+15x60",
            f'lanewise_backend_up{{{_AT}, backend="a"}}': f"{up}x60",
        }

    return Alert(
        name="LanewiseMetricsStale",
        expr="lanewise_backend_scrape_age_seconds > 30 and on (instance, backend) lanewise_backend_up == 1",
        wait="2m",
        severity="warning",
        summary=Said(
            en="lanewise has not read the metrics of engine {{ $labels.backend }} for {{ $value | humanizeDuration }}",
            zh="lanewise 已有 {{ $value | humanizeDuration }} 未能读取引擎 {{ $labels.backend }} 的指标",
        ),
        description=Said(
            en="The engine answers its probes and not /metrics. Scheduling does not need it; what is shown of its "
            "queue "
            "and KV cache is old.",
            zh="引擎响应探测但不返回 /metrics。调度不依赖它,但显示的队列与 KV 缓存数据已过时。",
        ),
        cases=(
            Case(
                name="only /metrics of the engine fails",
                series=seen(1),
                at="5m15s",
                fired=(Fired(labels={**_HERE, "backend": "a"}, value="5m 0s"),),
            ),
            Case(name="the engine is down altogether, which other alerts tell", series=seen(0), at="5m15s"),
        ),
    )
