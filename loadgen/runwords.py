"""The words of a run's page, in English and Chinese."""

# ruff: noqa: RUF001 (Chinese punctuation is wide)

from collections.abc import Mapping
from enum import StrEnum


class Language(StrEnum):
    """Language of a page."""

    EN = "en"
    ZH = "zh"


_WORDS: Mapping[str, tuple[str, str]] = {
    "run": ("Run", "运行"),
    "comparison": ("Comparison", "对比"),
    "lead": (
        "{sent} requests sent over {window} s at {rate}/s to {target}, model {model}.",
        "{window} 秒内以每秒 {rate} 个的速率向 {target}（模型 {model}）发送了 {sent} 个请求。",
    ),
    "verdict": ("Verdict: {verdict}. {why}", "结论：{verdict}。{why}"),
    "refused": ("Not comparable: {why}", "不可比较：{why}"),
    "metrics": ("What changed", "变化"),
    "latencies": ("Latencies and outcomes", "延迟与结局"),
    "before": ("A", "A"),
    "after": ("B", "B"),
    "difference": ("B - A", "B - A"),
    "interval": ("95 % interval", "95% 区间"),
    "short": ("short", "短请求"),
    "long": ("long", "长请求"),
    "all": ("all", "全部"),
    "sent": ("requests sent", "已发送请求"),
    "unsent": ("planned, not sent", "计划内未发送"),
    "goodput": ("goodput", "达标率"),
    "good": ("inside every SLO", "全部达标"),
    "late": ("complete, but late", "完成但超时限"),
    "rejected": ("rejected", "被拒绝"),
    "lost": ("lost", "丢失"),
    "ttft": ("TTFT  p50 / p90 / p99", "首字延迟 TTFT  p50 / p90 / p99"),
    "ttft_all": ("TTFT, failures infinite", "首字延迟，失败计为无穷"),
    "ttft_send": ("TTFT from the send", "自发送起的首字延迟"),
    "ttfot": ("first answer token", "首个回答字"),
    "tpot": ("TPOT", "每字延迟 TPOT"),
    "icl": ("chunk gap", "块间隔"),
    "e2e": ("end to end", "端到端"),
    "reject": ("rejection", "拒绝延迟"),
    "stall": ("longest chunk gap", "最长块间隔"),
    "cdf": ("Distributions", "分布"),
    "cdf_ttft": ("TTFT, {lane}", "首字延迟，{lane}"),
    "cdf_tpot": ("TPOT, all", "每字延迟，全部"),
    "cdf_caption": (
        "Share of all requests sent that had it within this time. What was lost is missing.",
        "在此时间内得到结果的请求占全部已发送请求的比例；丢失的请求不在曲线内。",
    ),
    "time": ("Over time", "随时间变化"),
    "time_caption": (
        "Each dot is a request at the time it was due; a mark at the top is one without a first token.",
        "每个点是一个请求，横轴为其应发时刻；顶端标记为没有首字的请求。",
    ),
    "outcomes": ("What became of every request", "请求结局"),
    "conditions": ("Conditions", "条件"),
    "warnings": ("Read with care", "注意"),
    "footer": (
        "TTFT counts from when a request was due. Latencies are over complete answers, goodput over everything sent.",
        "首字延迟从请求应发时刻算起；延迟只统计完整回答，达标率以全部已发送请求为分母。",
    ),
    "plan": ("Plan", "计划"),
    "target": ("Target", "目标"),
    "model": ("Model", "模型"),
    "engine": ("Engine", "引擎"),
    "started": ("Started", "开始时间"),
    "parameters": ("Parameters", "参数"),
    "certificate": ("Generator's own error", "压测端自身误差"),
    "rates": ("Rates", "速率"),
    "keep": ("keep", "保留"),
    "keep tuning": ("keep tuning", "继续调优"),
    "roll back": ("roll back", "回退"),
    "better": ("better", "变好"),
    "worse": ("worse", "变差"),
    "noise": ("noise", "噪声内"),
}


class Words:
    """The words of one language."""

    def __init__(self, language: Language) -> None:
        self.language = language
        self._at = 0 if language is Language.EN else 1

    def __call__(self, key: str, **values: object) -> str:
        """Return a text with its values filled in; what has no translation is returned as it is."""
        if key not in _WORDS:
            return key
        return _WORDS[key][self._at].format(**values) if values else _WORDS[key][self._at]
