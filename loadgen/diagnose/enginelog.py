"""What an engine's log says went wrong: while it was loading, or while it served. Pure.

Each pattern has its source in docs/diagnose.md. The first line that matches wins within a stage, because what follows
it is mostly its consequence (`Engine core initialization failed` and the like name no cause of their own).
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from loadgen.diagnose.nouns import Confidence, Finding, Layer

LOADING, INFERENCE = "loading", "inference"
LONGEST_LINE = 4000
"""Longer lines are cut before they are searched."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A line of a log, and what it means."""

    name: str
    regex: re.Pattern[str]
    layer: Layer
    part: str | None
    stages: frozenset[str]
    """In which stages it can be the cause."""
    meaning: str
    next_step: str


_BOTH = frozenset({LOADING, INFERENCE})
_LOADING = frozenset({LOADING})
_INFERENCE = frozenset({INFERENCE})


def _pattern(  # noqa: PLR0917 - one row of the table below
    name: str, regex: str, layer: Layer, stages: frozenset[str], meaning: str, next_step: str, part: str | None = None
) -> Pattern:
    return Pattern(name, re.compile(regex, re.IGNORECASE), layer, part, stages, meaning, next_step)


PATTERNS = (
    _pattern(
        "quantisation mismatch",
        r"quantization method specified in the model config .{0,80}does not match"
        r"|unknown quantization method"
        r"|keyerror:.{0,40}quant_method"
        r"|not in self\.quant_description"
        r"|quant_model_description\.json"
        r"|(?:cannot find|missing|no) (?:the )?(?:quant(?:ization)?_?config|config file for (?:ascend|quant))",
        Layer.ADAPTATION,
        _LOADING,
        "the weights are quantised in another way than the engine was told, or their description lacks a layer",
        "leave --quantization away (ModelSlim weights: --quantization ascend), or take weights made for this version",
        part="quantisation",
    ),
    _pattern(
        "split wrong for the cards",
        r"must be divisible by (?:the )?tensor[ _]parallel"
        r"|is not divisible by (?:the )?(?:number of )?tensor[ _]parallel"
        r"|world size .{0,60}(?:larger|greater) than .{0,40}(?:npus|gpus|devices)"
        r"|not divisible by weight quantization block_[nk]"
        r"|invalid (?:device ordinal|device id)"
        r"|(?:rank|device)\w* .{0,30}(?:exceeds|out of range).{0,30}(?:device|npu)",
        Layer.PARALLEL,
        _LOADING,
        "the parallel sizes fit neither the model's heads nor the cards that are there",
        "set --tensor-parallel-size to a divisor of the model's attention heads that is not above the number of cards",
        part="split",
    ),
    _pattern(
        "KV cache does not fit",
        r"no available memory for the cache blocks"
        r"|larger than the maximum number of tokens that can be stored in kv cache"
        r"|kv cache is needed, which is larger than the available kv cache memory"
        r"|available kv cache memory: -",
        Layer.MEMORY,
        _LOADING,
        "after weights and activations no room is left for the KV cache of even one request of full length",
        "lower --max-model-len to what requests really need",
        part="kv",
    ),
    _pattern(
        "fragmentation",
        r"reserved memory is >> allocated"
        r"|max_split_size_mb to avoid fragmentation"
        r"|memory fragmentation",
        Layer.MEMORY,
        _BOTH,
        "memory is reserved and cannot be used in one piece",
        "set PYTORCH_NPU_ALLOC_CONF=expandable_segments:True and start again",
        part="fragmentation",
    ),
    _pattern(
        "out of memory",
        r"(?:npu|cuda|hip) out of memory|outofmemoryerror|tried to allocate .{0,20}[gmk]ib"
        r"|207018|aclrtmalloc.{0,60}fail|memory allocation .{0,40}fail",
        Layer.MEMORY,
        _BOTH,
        "",
        "",
    ),
    _pattern(
        "graph capture resources",
        r"stream resources insufficient|error code:? ?207008|\b207008\b",
        Layer.ADAPTATION,
        _LOADING,
        "the graphs to be captured need more streams than the card has",
        "capture fewer batch sizes (cudagraph_capture_sizes in --compilation-config)",
        part="graph",
    ),
    _pattern(
        "operator not adapted",
        r"could not run '[\w:.]+' with arguments from the"
        r"|operator '?[\w:.]+'? is not currently (?:supported|implemented) (?:on|for) the npu"
        r"|notimplementederror: .{0,60}(?:npu|privateuse1)"
        r"|\bEZ(?:1001|3002|3003|9999)\b"
        r"|call aclnn\w+ failed"
        r"|op(?:erator)? \S+ .{0,40}(?:not supported|unsupported|no kernel)"
        r"|model architectures? .{0,120}(?:not supported|failed to be inspected)"
        r"|has no vllm implementation",
        Layer.ADAPTATION,
        _BOTH,
        "an operator, or the whole architecture, is not adapted to this card and software version",
        "take a pair of engine and CANN versions that lists this model as supported, then start again",
        part="operator",
    ),
    _pattern(
        "weights",
        r"(?:safetensors|header).{0,40}(?:incomplete|too large|invalid|deserializ)"
        r"|cannot find any model weights"
        r"|no such file or directory: .{0,200}\.(?:safetensors|bin)"
        r"|(?:size|shape) mismatch for|weights were not initialized from checkpoint"
        r"|keyerror: '(?:model|lm_head|visual|transformer)\.",
        Layer.MEMORY,
        _LOADING,
        "the weights are incomplete or do not belong to this model code",
        "check the files of the weights against their index (size and checksum), and download what is missing",
        part="weights",
    ),
    _pattern(
        "collective communication",
        r"hccl.{0,80}(?:timeout|timed out|fail|error)|\bEI000[26]\b|\bEJ0001\b",
        Layer.PARALLEL,
        _BOTH,
        "the cards do not reach each other",
        "check the card links (hccn_tool), and that no other engine holds one of the cards",
        part="communication",
    ),
    _pattern(
        "preemption",
        r"is preempted by .{0,60}not enough kv cache|preempt.{0,80}kv cache",
        Layer.MEMORY,
        _INFERENCE,
        "requests were thrown out of the KV cache and computed again",
        "lower the concurrency cap in front of the engine by a fifth and run again",
        part="kv",
    ),
)

_READY = re.compile(
    r"application startup complete|uvicorn running on|starting vllm api server|avg prompt throughput", re.IGNORECASE
)
_STARTS = re.compile(r"vllm api server version|initializing an? (?:v1 )?llm engine", re.IGNORECASE)
_WEIGHTS_DONE = re.compile(r"loading (?:model )?weights took|model loading took", re.IGNORECASE)
_KV_DONE = re.compile(r"kv cache size: [\d,]+ tokens|# (?:gpu|npu|cpu) blocks: [1-9]", re.IGNORECASE)


def read_log(lines: Iterable[str]) -> list[Finding]:
    """Find what went wrong in an engine's log.

    Args:
        lines: of the log, in order; several starts may be in it, the last one counts.

    Returns:
        At most one finding per stage: loading first, then inference. Empty: no pattern is in it.
    """
    found: dict[str, Finding] = {}
    stage, weights, cache = LOADING, False, False
    for number, whole in enumerate(lines, 1):
        line = whole[:LONGEST_LINE]
        if _STARTS.search(line) and stage == INFERENCE:
            found.clear()
            stage, weights, cache = LOADING, False, False
        weights = weights or _WEIGHTS_DONE.search(line) is not None
        cache = cache or _KV_DONE.search(line) is not None
        if _READY.search(line):
            stage = INFERENCE
        for finding in _in_line(line, stage, number, weights=weights, cache=cache):
            if stage not in found or _more_exact(finding, found[stage]):
                found[stage] = finding
    return [found[name] for name in (LOADING, INFERENCE) if name in found]


def _more_exact(new: Finding, old: Finding) -> bool:
    """A full cache is told from plain lack of memory, and fragmentation too, whichever line came first."""
    return (
        old.layer is new.layer is Layer.MEMORY
        and old.part in {"weights", "activations"}
        and new.part == "fragmentation"
    )


def _in_line(line: str, stage: str, number: int, *, weights: bool, cache: bool) -> Iterator[Finding]:
    for pattern in PATTERNS:
        if stage in pattern.stages and pattern.regex.search(line):
            yield _finding(pattern, stage, line, number, weights=weights, cache=cache)
            return


def _finding(pattern: Pattern, stage: str, line: str, number: int, *, weights: bool, cache: bool) -> Finding:
    part, meaning, step = pattern.part, pattern.meaning, pattern.next_step
    if pattern.name == "out of memory":
        part, meaning, step = _out_of_memory(stage, weights=weights, cache=cache)
    return Finding(
        layer=pattern.layer,
        part=part,
        stage=stage,
        sentence=f"{stage} stage, {pattern.name}: {meaning}",
        evidence=(),
        confidence=Confidence.HIGH,
        next_step=step,
        tuning_helps=pattern.layer is not Layer.ADAPTATION and part != "weights",
        where=f"line {number}: {line.strip()[:300]}",
    )


def _out_of_memory(stage: str, *, weights: bool, cache: bool) -> tuple[str, str, str]:
    """Which part did not fit follows from how far the engine had come."""
    if stage == LOADING and not weights:
        return (
            "weights",
            "memory ran out before the weights were loaded",
            "spread the model over more cards (--tensor-parallel-size), or take quantised weights",
        )
    if stage == LOADING and not cache:
        return (
            "activations",
            "the weights fit; memory ran out in the trial run that measures activations",
            "halve --max-num-batched-tokens",
        )
    if stage == LOADING:
        return (
            "activations",
            "weights and KV cache fit; memory ran out while graphs were captured or the engine warmed up",
            "lower --gpu-memory-utilization by 0.05",
        )
    return (
        "activations",
        "it started and served; a step needed more memory than was left beside weights and KV cache",
        "lower --gpu-memory-utilization by 0.05",
    )


def read_message(message: str) -> Finding | None:
    """Find what an error message that a client got says; None: it names no cause."""
    return next(_in_line(message[:LONGEST_LINE], INFERENCE, 1, weights=True, cache=True), None)
