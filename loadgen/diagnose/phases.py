"""Rules for requests that come too late: in which of the three phases the time went. Pure."""

import math
from collections.abc import Iterator

from loadgen.diagnose.facts import Facts, whole
from loadgen.diagnose.nouns import Confidence, Finding, Layer, Number
from loadgen.diagnose.reading import (
    GOOD_ENOUGH,
    WAITS,
    complains,
    engine_of,
    first_token_late,
    outside_s,
    ratio,
    tokens_late,
)
from loadgen.telemetry.digest import EngineDigest

PINNED = 0.7
"""Share of the readings with a backlog that had the highest number running: the engine has no free slot."""
DEFAULT_BUDGET = 2048
"""`max_num_batched_tokens` of a vLLM-Ascend server that was started without the flag."""
FULL_STEP = 0.25
"""Mean share of the budget from which steps count as full: the steps that end a prompt, and those with decodes alone,
are short."""
PROMPT_HEAVY = 8.0
"""Computed prompt tokens per output token from which prompts take most of a step: published figures of Ascend cards
give 0.13 to 1.5 ms per decoding sequence and step, and about 0.18 ms per prompt token."""
UNEVEN_GAPS = 3.0
"""p99 over p50 of the chunk gaps from which prefill chunks, and not the depth of the batch, make them long."""


def late(facts: Facts) -> Iterator[Finding]:
    """Requests come too late: say in which of the three phases."""
    engine = engine_of(facts)
    if facts.rejected_share >= 1 - GOOD_ENOUGH:
        yield _rejecting(facts)
        return
    if engine is None or not complains(facts):
        return
    if first_token_late(facts):
        finding = _queue(facts, engine)
        if finding is None and (_prompt_heavy(engine) or not tokens_late(facts)):
            finding = _prefill(engine, facts)
        if finding is not None:
            yield finding
            return
    if tokens_late(facts):
        shared = _uneven(facts) or _prompt_heavy(engine)
        yield _stepped_on(facts, engine) if shared else _decode(facts, engine)


def _prompt_heavy(engine: EngineDigest) -> bool:
    """Whether computing prompts, and not decoding, takes most of a step."""
    per_output = _computed_per_output(engine)
    return per_output is not None and per_output >= PROMPT_HEAVY


def _computed_per_output(engine: EngineDigest) -> float | None:
    prompt = engine.prompt_tokens
    computed = None if prompt is None else max(0.0, prompt - (engine.prefix_hits or 0.0))
    return ratio(computed, engine.generation_tokens)


def _rejecting(facts: Facts) -> Finding:
    return Finding(
        layer=Layer.QUEUE,
        sentence=f"{facts.rejected_share:.0%} of the requests were rejected: more comes than is let in",
        evidence=(Number("rejected", facts.rejected_share, "share", 1 - GOOD_ENOUGH),),
        confidence=Confidence.HIGH,
        next_step="find the knee with `lanewise-load knee`, then set the concurrency cap just before it",
    )


def _queue(facts: Facts, engine: EngineDigest) -> Finding | None:
    """No free slot: requests wait before anything is computed, while the batch could be deeper."""
    queue, ttft = engine.queue_s, engine.ttft_s
    behind = outside_s(facts)
    if facts.through_proxy and behind is not None and ttft is not None and behind > max(0.1, ttft):
        return Finding(
            layer=Layer.QUEUE,
            sentence=f"requests spend {behind:.2f} s before they reach the engine, which then takes {ttft:.2f} s",
            evidence=(Number("mean TTFT at the client less that at the engine", behind, "s", ttft),),
            confidence=Confidence.MEDIUM,
            next_step="find the knee with `lanewise-load knee` and set the concurrency cap just before it",
        )
    pinned = (engine.pinned_share or 0) >= PINNED and (engine.waiting_share or 0) >= WAITS
    if queue is None or not ttft or queue < 0.5 * ttft or not pinned or tokens_late(facts):
        return None
    peak = engine.running_peak or 0.0
    limit = whole(facts.setting("max_num_seqs"))
    sure = limit is not None and peak >= limit
    if not sure and (limit is not None or _full_steps(facts, engine)):
        return None
    return Finding(
        layer=Layer.QUEUE,
        sentence=(
            f"requests wait {queue:.2f} s for one of {peak:.0f} slots, {queue / ttft:.0%} of the time to first token, "
            "while decoding is fast enough"
        ),
        evidence=(
            Number("queue time in the engine, mean", queue, "s", 0.5 * ttft),
            Number("TTFT in the engine, mean", ttft, "s"),
            Number("running, peak", peak, "count"),
            Number("readings with a backlog that had every slot taken", engine.pinned_share or 0.0, "share", PINNED),
            *([Number("KV cache peak", engine.kv_peak, "share")] if engine.kv_peak is not None else []),
        ),
        confidence=Confidence.HIGH if sure else Confidence.MEDIUM,
        next_step=f"raise --max-num-seqs by half ({peak:.0f} to {math.ceil(1.5 * peak):.0f}) and run again",
    )


def _full_steps(facts: Facts, engine: EngineDigest) -> bool:
    """Whether steps are full of prompt tokens: then it is their budget that requests wait for, and no slot."""
    budget = whole(facts.setting("max_num_batched_tokens")) or DEFAULT_BUDGET
    return engine.tokens_per_step is not None and engine.tokens_per_step > FULL_STEP * budget


def _prefill(engine: EngineDigest, facts: Facts) -> Finding | None:
    """Prompts are computed too slowly: their own prefill, and the wait for a share of the step's token budget."""
    ttft = engine.ttft_s
    if ttft is None or engine.prefill_s is None:
        return None
    queue = engine.queue_s or 0.0
    per_output = _computed_per_output(engine)
    evidence = [
        Number("prefill time, mean", engine.prefill_s, "s"),
        Number("queue time in the engine, mean", queue, "s"),
        Number("TTFT in the engine, mean", ttft, "s"),
    ]
    if per_output is not None:
        evidence.append(Number("prompt tokens computed per output token", per_output, "times", PROMPT_HEAVY))
    if engine.tokens_per_step is not None:
        evidence.append(Number("tokens per step, mean", engine.tokens_per_step, "tokens"))
    threshold = facts.setting("long_prefill_token_threshold") in {None, "0"}
    step = "set --long-prefill-token-threshold 256 on the engine" if threshold else "turn installments on in lanewise"
    return Finding(
        layer=Layer.PREFILL,
        sentence=f"first tokens wait for prompts to be computed: {engine.prefill_s + queue:.2f} of {ttft:.2f} s",
        evidence=tuple(evidence),
        confidence=Confidence.HIGH if engine.prefill_s >= 0.5 * ttft else Confidence.MEDIUM,
        next_step=f"{step} and run again: short requests then pass between the parts of long prompts",
    )


def _stepped_on(facts: Facts, engine: EngineDigest) -> Finding:
    """Decoding stalls while prompts are computed in the same steps."""
    p50, p99 = facts.gap_p50_s or 0.0, facts.gap_p99_s or 0.0
    evidence = [Number("chunk gap p99", p99, "s", UNEVEN_GAPS * p50), Number("chunk gap median", p50, "s")]
    if engine.tokens_per_step is not None:
        evidence.append(Number("tokens per step, mean", engine.tokens_per_step, "tokens"))
    per_output = _computed_per_output(engine)
    if per_output is not None:
        evidence.append(Number("prompt tokens computed per output token", per_output, "times", PROMPT_HEAVY))
    return Finding(
        layer=Layer.PREFILL,
        sentence=(
            f"decoding stalls behind prompts that share its steps: gaps of {p50 * 1e3:.0f} ms (median) and "
            f"{p99 * 1e3:.0f} ms (p99)"
        ),
        evidence=tuple(evidence),
        confidence=Confidence.MEDIUM,
        next_step="halve --max-num-batched-tokens: the part of a prompt that shares a step with decodes gets smaller",
    )


def _decode(facts: Facts, engine: EngineDigest) -> Finding:
    tpot, slo = facts.summary.lanes["all"].tpot.p95, facts.summary.slo.tpot_s
    evidence = [Number("TPOT p95", tpot, "s", slo), Number("chunk gap median", facts.gap_p50_s or math.nan, "s")]
    if engine.running_median is not None:
        evidence.append(Number("running, median", engine.running_median, "count"))
    if engine.decode_s is not None:
        evidence.append(Number("decode time, mean", engine.decode_s, "s"))
    return Finding(
        layer=Layer.DECODE,
        sentence=(
            f"every token takes {tpot * 1e3:.0f} ms (TPOT p95, SLO {slo * 1e3:.0f} ms) with "
            f"{engine.running_median or 0:.0f} sequences in a batch: the batch is too deep"
        ),
        evidence=tuple(evidence),
        confidence=Confidence.HIGH if (facts.gap_p50_s or 0) > 0.5 * slo else Confidence.MEDIUM,
        next_step="find the knee with `lanewise-load knee` and set the concurrency cap just before it",
    )


def _uneven(facts: Facts) -> bool:
    return facts.gap_p50_s is not None and (facts.gap_p99_s or 0.0) >= UNEVEN_GAPS * facts.gap_p50_s
