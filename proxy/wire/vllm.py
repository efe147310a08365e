"""vLLM's metric names over its versions (0.9 to 0.33, vLLM-Ascend included), and reading them from `/metrics`."""

import math
import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "preemptions_total": ("vllm:num_preemptions_total", "vllm:num_preemptions"),
    "prefix_queries_total": (
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_queries",
        "vllm:gpu_prefix_cache_queries_total",
        "vllm:gpu_prefix_cache_queries",
    ),
    "prefix_hits_total": (
        "vllm:prefix_cache_hits_total",
        "vllm:prefix_cache_hits",
        "vllm:gpu_prefix_cache_hits_total",
        "vllm:gpu_prefix_cache_hits",
    ),
    "prompt_tokens_total": ("vllm:prompt_tokens_total", "vllm:prompt_tokens"),
    "generation_tokens_total": ("vllm:generation_tokens_total", "vllm:generation_tokens"),
    "success_total": ("vllm:request_success_total", "vllm:request_success"),
    "rejections_total": ("vllm:admission_rejections_total", "vllm:admission_rejections"),
    "prefill_seconds_sum": ("vllm:request_prefill_time_seconds_sum",),
    "prefill_seconds_count": ("vllm:request_prefill_time_seconds_count",),
    "process_start_time_s": ("process_start_time_seconds",),
    "resident_bytes": ("process_resident_memory_bytes",),
}
"""Field of `EngineMetrics` → names, the newest first: the first one present is taken."""

CACHE_CONFIG: Final = "vllm:cache_config_info"

_MAX: Final = frozenset({"kv_usage", "process_start_time_s", "resident_bytes"})
_WANTED: Final = frozenset(name for names in ALIASES.values() for name in names) | {CACHE_CONFIG}
# Name, labels, value; what follows (a timestamp, an exemplar) is of no interest. A label value may hold anything.
_SAMPLE: Final = re.compile(
    r"""^[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?[ \t]*(\S+)"""
)
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"')
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_NAME_END: Final = re.compile(r"[{ \t]")
_TRUE: Final = frozenset({"true", "1"})


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """What `cache_config_info` says of one engine process; None: not said."""

    block_size: int | None = None
    """Tokens in one KV block."""
    num_gpu_blocks: int | None = None
    enable_prefix_caching: bool | None = None
    gpu_memory_utilization: float | None = None
    size_tokens: int | None = None
    """KV cache in tokens: as told (newer engines), else blocks times block size."""
    labels: Mapping[str, str] | None = None
    """All labels as they came."""


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """One scrape. Counts are summed over data-parallel engines; None: not exported, which is not 0.

    Gauges are renewed once per engine step: they are stale during a long prefill step.
    """

    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    """Share of KV blocks in use, 0 to 1; of the fullest engine."""
    preemptions_total: float | None = None
    prefix_queries_total: float | None = None
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits_total: float | None = None
    """Prompt tokens found there."""
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    success_total: float | None = None
    """Requests that ended, whatever their finish reason."""
    rejections_total: float | None = None
    """Refused by the engine's own admission (vLLM 0.32 and newer)."""
    prefill_seconds_sum: float | None = None
    prefill_seconds_count: float | None = None
    process_start_time_s: float | None = None
    """Unix seconds; a change is a restart, after which counters begin at 0."""
    resident_bytes: float | None = None
    """Host memory of the API server process."""
    cache: CacheConfig | None = None
    """Of the first engine."""
    engines: int | None = None
    """Data-parallel engines, by the series of `cache_config_info`."""
    kv_tokens: int | None = None
    """KV cache of all engines together, in tokens."""


def parse_metrics(text: str) -> EngineMetrics:
    """Read a `/metrics` answer in Prometheus text form.

    Lines that are not needed, or broken, are passed over; values that are no finite number count as absent. About
    1 ms for the 1,000 lines of a busy engine.

    Args:
        text: the whole answer.

    Returns:
        What was found. Never raises.
    """
    values: dict[str, list[float]] = {}
    caches: list[CacheConfig] = []
    for line in text.split("\n"):
        if line[:1] == "#":
            continue
        end = _NAME_END.search(line, 1)
        if end is None or line[: end.start()].strip() not in _WANTED:
            continue
        sample = _SAMPLE.match(line)
        value = _number(sample.group(3)) if sample else None
        if sample is None or value is None:
            continue
        if sample.group(1) == CACHE_CONFIG:
            caches.append(_cache_config(sample.group(2) or ""))
        else:
            values.setdefault(sample.group(1), []).append(value)
    numbers = {field: _reduced(field, values) for field in ALIASES}
    sizes = [cache.size_tokens for cache in caches]
    known = [size for size in sizes if size is not None]
    return EngineMetrics(
        **numbers,
        cache=caches[0] if caches else None,
        engines=len(caches) or None,
        kv_tokens=sum(known) if known and len(known) == len(sizes) else None,
    )


def read_samples(text: str, wanted: Container[str]) -> Iterator[tuple[str, str, float]]:
    """Yield the samples of a page in Prometheus text form whose name is wanted.

    Lines that are broken, and values that are no finite number, are passed over.

    Args:
        text: the whole page.
        wanted: names of samples (with `_sum`, `_count`, `_total`), not of families.

    Yields:
        Name, the inside of the braces (see `parse_labels`), value.
    """
    for line in text.split("\n"):
        if line[:1] == "#":
            continue
        end = _NAME_END.search(line, 1)
        if end is None or line[: end.start()].strip() not in wanted:
            continue
        sample = _SAMPLE.match(line)
        value = _number(sample.group(3)) if sample else None
        if sample is not None and value is not None:
            yield sample.group(1), sample.group(2) or "", value


def parse_labels(text: str) -> dict[str, str]:
    r"""Read the inside of `{…}`; `\\`, `\"` and `\n` in values are unescaped."""
    return {name: _ESCAPE.sub(_unescaped, value) if "\\" in value else value for name, value in _LABEL.findall(text)}


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match.group(1) == "n" else match.group(1)


def _reduced(field: str, values: Mapping[str, list[float]]) -> float | None:
    series = next((values[name] for name in ALIASES[field] if name in values), None)
    if series is None:
        return None
    return max(series) if field in _MAX else sum(series)


def _cache_config(text: str) -> CacheConfig:
    labels = parse_labels(text)
    block_size = _count(labels.get("block_size"))
    blocks = _count(labels.get("num_gpu_blocks"))
    size = _count(labels.get("kv_cache_size_tokens"))
    if size is None and block_size is not None and blocks is not None:
        size = block_size * blocks
    caching = labels.get("enable_prefix_caching")
    return CacheConfig(
        block_size=block_size,
        num_gpu_blocks=blocks,
        enable_prefix_caching=None if caching in {None, "None"} else caching.lower() in _TRUE,
        gpu_memory_utilization=_number(labels.get("gpu_memory_utilization", "")),
        size_tokens=size,
        labels=labels,
    )


def _count(text: str | None) -> int | None:
    value = _number(text or "")
    return int(value) if value is not None and value >= 0 else None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
