"""From a metrics page to named numbers: vLLM's `/metrics` over its versions, and npu-exporter with both label sets.

Pure. A number that is not on the page is absent, which is not 0.

npu-exporter's names are those of Ascend/mind-cluster, `component/npu-exporter`; older releases label a chip with `id`
alone, newer ones add `model_name`, `vdie_id`, `pcie_bus_info` and the container's names. Used and total memory are MB,
utilisations percent.
"""

import re
from collections.abc import Mapping
from typing import Final

from proxy.wire.vllm import ALIASES, parse_labels, read_samples

Numbers = dict[str, float]

_ENGINE: Final[Mapping[str, tuple[str, ...]]] = {
    "running": ALIASES["running"],
    "waiting": ALIASES["waiting"],
    "kv_usage": ALIASES["kv_usage"],
    "preemptions": ALIASES["preemptions_total"],
    "prefix_queries": ALIASES["prefix_queries_total"],
    "prefix_hits": ALIASES["prefix_hits_total"],
    "prompt_tokens": ALIASES["prompt_tokens_total"],
    "generation_tokens": ALIASES["generation_tokens_total"],
    "finished": ALIASES["success_total"],
    "rejections": ALIASES["rejections_total"],
    "started_at": ALIASES["process_start_time_s"],
    "step_tokens": ("vllm:iteration_tokens_total_sum",),
    "steps": ("vllm:iteration_tokens_total_count",),
    **{
        f"{ours}_{part}": tuple(f"vllm:{name}_{whole}" for name in names)
        for ours, names in (
            ("ttft", ("time_to_first_token_seconds",)),
            ("gap", ("inter_token_latency_seconds", "time_per_output_token_seconds")),
            ("e2e", ("e2e_request_latency_seconds",)),
            ("queue", ("request_queue_time_seconds",)),
            ("prefill", ("request_prefill_time_seconds",)),
            ("decode", ("request_decode_time_seconds",)),
        )
        for part, whole in (("s", "sum"), ("n", "count"))
    },
}
"""Our name → the engine's sample names, the newest first."""
GAUGES: Final = frozenset({"running", "waiting", "kv_usage", "started_at"})
"""The names that are states; all others only grow, until the engine starts again."""
_LARGEST: Final = frozenset({"kv_usage", "started_at"})
_ENGINE_WANTED: Final = frozenset(name for names in _ENGINE.values() for name in names)

_CARD: Final[Mapping[str, str]] = {
    "npu_chip_info_hbm_used_memory": "hbm_used_mb",
    "npu_chip_info_hbm_total_memory": "hbm_total_mb",
    "npu_chip_info_hbm_bandwidth_utilization": "hbm_bandwidth_percent",
    "npu_chip_info_utilization": "ai_core_percent",
    "npu_chip_info_power": "power_w",
    "npu_chip_info_temperature": "temperature_c",
    "npu_chip_info_health_status": "healthy",
}
_CARD_WITHOUT_HBM: Final[Mapping[str, str]] = {
    "npu_chip_info_used_memory": "hbm_used_mb",
    "npu_chip_info_total_memory": "hbm_total_mb",
}
"""310P has DDR instead; chips with HBM may export both."""
_CARD_WANTED: Final = frozenset({*_CARD, *_CARD_WITHOUT_HBM})
_STAMP: Final = re.compile(r"^npu_chip_info_\S*(?:\{[^}]*\})?[ \t]+\S+[ \t]+(\d{12,})[ \t]*$", re.MULTILINE)


def engine_numbers(page: str) -> Numbers:
    """Read a vLLM metrics page.

    Counts and requests are summed over data-parallel engines; KV usage is that of the fullest one.

    Returns:
        `running`, `waiting`, `kv_usage` (0 to 1), `preemptions`, `prefix_queries` and `prefix_hits` (tokens),
        `prompt_tokens`, `generation_tokens`, `finished`, `finished.REASON`, `rejections`, `steps`, `step_tokens`, and
        sums (`_s`, wall-clock seconds) and counts (`_n`) of `ttft`, `gap`, `e2e`, `queue`, `prefill`, `decode`; what is
        not on the page is absent. Empty for a page of something else.
    """
    found: dict[str, list[float]] = {}
    reasons: Numbers = {}
    for name, labels, value in read_samples(page, _ENGINE_WANTED):
        found.setdefault(name, []).append(value)
        if name in _ENGINE["finished"]:
            reason = parse_labels(labels).get("finished_reason", "unknown")
            reasons[f"finished.{reason}"] = reasons.get(f"finished.{reason}", 0.0) + value
    numbers: Numbers = {}
    for ours, names in _ENGINE.items():
        values = next((found[name] for name in names if name in found), None)
        if values is not None:
            numbers[ours] = max(values) if ours in _LARGEST else sum(values)
    return {**numbers, **reasons} if numbers.keys() - {"started_at"} else {}


def card_numbers(page: str, at_s: float | None = None, stale_s: float = 30.0) -> dict[str, Numbers]:
    """Read an npu-exporter page.

    Args:
        page: the text, with the old or the new label set.
        at_s: Unix time of the reading; with it, a page whose own stamps are older than `stale_s` counts as empty: an
            exporter that lost its chips repeats the last values.
        stale_s: how old its stamps may be, seconds.

    Returns:
        Chip (`0`, or `0/1` for die 1 of it) → `hbm_used_mb`, `hbm_total_mb`, `hbm_bandwidth_percent`,
        `ai_core_percent`, `power_w`, `temperature_c`, `healthy`; what is not there, or negative, which the exporter
        writes for what it could not read, is absent.
    """
    newest = max((int(stamp) for stamp in _STAMP.findall(page)), default=None)
    if at_s is not None and newest is not None and at_s - newest / 1000 > stale_s:
        return {}
    chips: dict[str, Numbers] = {}
    other: dict[str, Numbers] = {}
    for name, text, value in read_samples(page, _CARD_WANTED):
        if value < 0:
            continue
        into, ours = (chips, _CARD[name]) if name in _CARD else (other, _CARD_WITHOUT_HBM[name])
        into.setdefault(_chip(parse_labels(text)), {})[ours] = value
    for chip, numbers in other.items():
        whole = chips.setdefault(chip, {})
        if not whole.get("hbm_total_mb"):
            whole.update(numbers)
    return chips


def _chip(labels: Mapping[str, str]) -> str:
    """Two dies of one card have one id and different `vdie_id` (an index, or a serial number that is no name)."""
    chip, die = labels.get("id", "?"), labels.get("vdie_id", "")
    return f"{chip}/{die}" if die.isdigit() and len(die) <= 2 and die != "0" else chip
