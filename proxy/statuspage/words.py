"""What the status page says, in English and in Chinese."""
# ruff: noqa: RUF001 - Chinese punctuation is meant

from collections.abc import Callable

LANGUAGES = ("en", "zh")
"""The first is taken where nobody asks for another."""

Say = Callable[[str], str]
"""Returns the text of a key in one language."""

_WORDS: dict[str, tuple[str, str]] = {
    "title": ("lanewise status", "lanewise 状态"),
    "ready": ("ready", "就绪"),
    "not_ready": ("not ready", "未就绪"),
    "version": ("version", "版本"),
    "configuration": ("configuration", "配置"),
    "preset": ("preset", "预设"),
    "mode": ("mode", "模式"),
    "up_for": ("up for", "已运行"),
    "generation": ("generation", "第几代配置"),
    "since": ("since", "生效于"),
    "judged": ("judged", "评价"),
    "sharing": ("shared limits", "共享限额"),
    "experiment": ("experiment", "实验"),
    "changed": ("What this generation changed", "本代配置的改动"),
    "reload_failed": ("The last change was not made", "上次变更未生效"),
    "stale": ("No answer from the proxy: what stands here is old.", "代理没有响应：以下内容已过时。"),
    "no_script": (
        "Without JavaScript this page shows tables and loads itself again from time to time. The charts' figures:",
        "未启用 JavaScript：页面只显示表格，并定期自动刷新。图表数据：",
    ),
    "last_15": ("Last 15 minutes (UTC)", "最近 15 分钟（UTC）"),
    "time": ("Time", "时间"),
    "lanes": ("Lanes", "车道"),
    "backends": ("Backends", "后端"),
    "tenants": ("Tenants", "租户"),
    "on_paper": ("On paper: what would have been done", "纸上推演：如果启用会怎样"),
    "moves": ("Last limit moves", "最近的并发上限变动"),
    "rejections": ("Last rejections", "最近的拒绝"),
    "settings": ("Configuration: what differs from the defaults", "配置：与默认值不同之处"),
    "none": ("None.", "无"),
    "same_as_json": ("The same as JSON", "JSON 版本"),
    "lane": ("Lane", "车道"),
    "waiting": ("Waiting", "排队"),
    "prompt_tokens": ("Prompt tokens", "提示词元"),
    "oldest": ("Oldest", "最久等待"),
    "held_by": ("Next is held by", "受阻于"),
    "on_time": ("On time", "准时"),
    "late": ("Late", "迟到"),
    "dropped": ("Dropped", "丢弃"),
    "rejected": ("Rejected", "拒绝"),
    "minute_finished": ("Finished, 1 min", "完成（1 分钟）"),
    "minute_refused": ("Refused, 1 min", "拒绝（1 分钟）"),
    "minute_failed": ("Failed, 1 min", "失败（1 分钟）"),
    "wait_p95": ("Wait p95", "等待 p95"),
    "ttft_p95": ("TTFT p95", "首词元 p95"),
    "tpot_p95": ("TPOT p95", "每词元 p95"),
    "backend": ("Backend", "后端"),
    "state": ("State", "状态"),
    "models": ("Models", "模型"),
    "in_flight": ("In flight / cap", "在途 / 上限"),
    "prefill_budget": ("Prefill budget", "预填充预算"),
    "installments": ("Installments", "分段"),
    "found_again": ("found again", "命中"),
    "engine_waiting": ("Engine waiting", "引擎排队"),
    "kv": ("KV cache", "KV 缓存"),
    "last_probe": ("Last probe", "最近探测"),
    "last_fault": ("Last fault", "最近故障"),
    "adaptive": ("adaptive", "自适应"),
    "held_back": ("left alone for", "暂停"),
    "tenant": ("Tenant", "租户"),
    "running": ("Running", "运行"),
    "granted": ("Granted", "放行"),
    "granted_tokens": ("Granted tokens", "放行词元"),
    "would_send": ("Sent at once", "直接发送"),
    "would_queue": ("Queued", "排队"),
    "would_reject": ("Rejected", "拒绝"),
    "would_expire": ("Expired", "超时"),
    "would_too_long": ("Too long", "过长"),
    "would_invalid": ("Invalid", "无效"),
    "would_cap": ("Capped", "截短"),
    "at": ("At (UTC)", "时间（UTC）"),
    "limit": ("Limit", "上限"),
    "cause": ("Why", "原因"),
    "reason": ("Reason", "原因"),
    "waited": ("Waited", "等待"),
    "detail": ("Detail", "说明"),
    "explain": ("explain", "解释"),
    "key": ("Key", "键"),
    "value": ("Value", "值"),
    "why": ("Why", "理由"),
    "no_why": ("no reason given", "未写理由"),
    "chart_ttft": ("Time to first token, p95 of a minute", "首词元时间，每分钟 p95"),
    "chart_waiting": ("Requests waiting", "排队请求"),
    "chart_running": ("Running, cap, waiting in the engine", "运行、上限、引擎内排队"),
    "chart_finished": ("Finished per second", "每秒完成"),
    "chart_refused": ("Refused or failed per second", "每秒拒绝或失败"),
    "chart_kv": ("KV cache, the fullest engine", "KV 缓存，最满的引擎"),
    "series_short": ("short", "短"),
    "series_long": ("long", "长"),
    "series_running": ("running", "运行"),
    "series_cap": ("cap", "上限"),
    "series_engine": ("engine waiting", "引擎排队"),
    "series_refused_short": ("refused, short", "拒绝（短）"),
    "series_refused_long": ("refused, long", "拒绝（长）"),
    "series_failed_short": ("failed, short", "失败（短）"),
    "series_failed_long": ("failed, long", "失败（长）"),
    "series_kv": ("in use", "使用率"),
}

_MEANINGS: dict[str, tuple[str, str]] = {
    "tpot_high": ("a token took longer than its SLO", "每词元时间超过目标"),
    "room_used": ("TPOT was good and all room was used", "每词元时间达标且名额用满"),
    "configured": ("the operator or a reload set it", "由运维或重载设置"),
    "none_up": ("no backend is up", "没有可用后端"),
    "cap": ("the concurrency cap", "并发上限"),
    "prefill": ("the prefill budget", "预填充预算"),
    "kv": ("expected KV use", "KV 预计用量"),
    "started": ("another long prompt is fed there in parts", "另一条长提示正在分段送入"),
    "pause": ("a pause between two parts", "两段之间的停顿"),
    "tenant": ("the limit of its tenant", "租户上限"),
    "held": ("room kept for one that waited far too long", "名额留给等待过久的请求"),
    "busy": ("the engine said that it is busy", "引擎表示繁忙"),
    "trial": ("a trial of the backend", "后端试探中"),
    "queue_full": ("the queue is full", "队列已满"),
    "queue_timeout": ("waited longer than its deadline allows", "等待超过期限"),
    "tenant_limit": ("the tenant's own limit", "租户自身上限"),
    "duplicate": ("an identical one is in flight", "相同请求在途"),
    "no_backend": ("no backend could take it", "没有后端能接收"),
    "draining": ("the proxy shuts down", "代理正在关闭"),
    "too_long": ("it can never fit", "长度永远放不下"),
    "invalid": ("the request itself is wrong", "请求本身有误"),
    "unauthorized": ("no API key that is known", "没有有效的 API 密钥"),
    "starting": ("not probed yet", "尚未探测"),
    "up": ("", "可用"),
    "slow_start": ("back, gets more step by step", "恢复中，逐步加量"),
    "down": ("nobody answers", "无响应"),
    "tripped": ("requests failed there: left alone", "请求失败过多，暂停使用"),
    "half_open": ("one request at a time tries it", "逐个请求试探"),
    "drained": ("by order it gets nothing new", "按指令不再接收新请求"),
    "on": ("", "开"),
    "off": ("", "关"),
    "unknown": ("not proved yet", "尚未证实"),
}
"""Words of the closed sets, which metrics and logs have too: the word stays, its meaning is added."""


def say(language: str) -> Say:
    """Return what gives the text of a key in a language of `LANGUAGES`."""
    place = LANGUAGES.index(language)
    return lambda key: _WORDS[key][place]


def meaning(language: str, word: str) -> str:
    """Return what a word of a closed set means; "" when it says enough, or is none of them."""
    return _MEANINGS.get(word, ("", ""))[LANGUAGES.index(language)]


def choose(asked: str | None, accepted: str) -> str:
    """Return the language of a page.

    Args:
        asked: what the address says (`lang`), if anything.
        accepted: the Accept-Language header; what cannot be read in it is skipped.
    """
    if asked in LANGUAGES:
        return str(asked)
    best, best_weight = LANGUAGES[0], 0.0
    for part in accepted.split(","):
        name, _, rest = part.strip().partition(";")
        language = name.strip().lower().partition("-")[0]
        weight = _weight(rest)
        if language in LANGUAGES and weight > best_weight:
            best, best_weight = language, weight
    return best


def _weight(parameters: str) -> float:
    key, _, value = parameters.strip().partition("=")
    if key != "q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0
