"""The rules: measured facts in, findings out, the one to act on first. Pure. docs/diagnose.md is their table.

A rule names a layer only where its own measurement says so. What is explained by a layer further down (a queue behind
a full KV cache, say) is not told beside it.
"""

import math
from collections.abc import Iterator

from loadgen.answers import abnormal, requantised, shifted
from loadgen.diagnose.enginelog import read_message
from loadgen.diagnose.facts import Facts, Group
from loadgen.diagnose.nouns import Confidence, Diagnosis, Finding, Layer, Number
from loadgen.diagnose.phases import late
from loadgen.diagnose.reading import WAITS, cards_of, complains, engine_of, number, outside_s
from loadgen.summarise import CLIENT_LAG_S, CLIENT_LAG_SHARE
from loadgen.telemetry.digest import EngineDigest

LINK_S = 0.02
LINK_SHARE = 0.2
"""A link is slow when its round trip is above both: 20 ms of the wall clock, whatever the speed of the replay, and a
fifth of the median TTFT from the send."""
ALWAYS = 0.9
"""Share of a group that failed, from which it counts as always failing."""
LEAST_GROUP = 5
PREEMPTED_SHARE = 0.01
"""Preemptions per finished request that are no accident."""
KV_FULL = 0.95
AI_CORE_FULL = 0.9
BANDWIDTH_FULL = 0.85
"""Median over the sending window at which a card has nothing left (judgement; no figure was found for Ascend)."""
SAME = 0.05
"""Throughputs this close are the same: the spread of three repeats of one baseline is rarely below it."""
IDLE = 0.05
LOADED = 0.2
"""Share of its memory from which a card holds a part of a model."""
UNEVEN = 2.0
SCALES = 0.3
"""Share of the ideal gain that more cards have to bring at least."""
HBM_FULL = 0.98


def diagnose(facts: Facts, baseline: Facts | None = None) -> Diagnosis:
    """Name the layer that limits a run.

    Args:
        facts: of the run.
        baseline: of an earlier run of the same traffic with another setting or another number of cards.
    """
    invalid = _invalid(facts)
    findings = _findings(facts, baseline, invalid)
    unknown = tuple(_unknown(facts)) if invalid is None else ()
    return Diagnosis(facts.label, tuple(findings), invalid, unknown, tuple(_answers(facts, baseline)))


def _findings(facts: Facts, baseline: Facts | None, invalid: str | None) -> list[Finding]:
    if facts.summary.client_limited:
        return [_client(facts)]
    if invalid is not None:
        return []
    failing = list(_adaptation(facts, baseline))
    if failing:
        return failing
    findings = [*_link(facts), *_memory(facts), *_parallel(facts, baseline)]
    if not any(one.layer in {Layer.MEMORY, Layer.PARALLEL} for one in findings):
        findings += _ceiling(facts, baseline)
    if not any(one.layer in {Layer.MEMORY, Layer.CEILING} for one in findings):
        findings += list(late(facts))
    return findings


def _answers(facts: Facts, baseline: Facts | None) -> Iterator[str]:
    yield from abnormal(facts.answers)
    yield from facts.canaries
    if baseline is not None:
        yield from shifted(baseline.answers, facts.answers)
        changed = requantised(baseline.quantisation, facts.quantisation)
        if changed is not None:
            yield changed


def _invalid(facts: Facts) -> str | None:
    everything = facts.summary.lanes["all"]
    if facts.summary.client_limited:
        return "the load generator limited the run: nothing that it measured tells of the server"
    if not everything.sent:
        return "the run holds no request"
    if not facts.summary.complete:
        return "the run did not end by itself; a part of a run is not judged"
    return None


def _unknown(facts: Facts) -> Iterator[str]:
    telemetry = facts.telemetry
    if telemetry is None or not any(one.readings > one.missing for one in telemetry.engines):
        yield (
            "the engine's metrics were not read: queue, prefill, decode and memory cannot be told apart; run again "
            "with --engine-metrics http://ENGINE/metrics"
        )
    if telemetry is None or not telemetry.cards:
        yield "no card was read: a hardware ceiling is only seen with --card-metrics http://HOST:8082/metrics"


# --- client, adaptation


def _client(facts: Facts) -> Finding:
    summary = facts.summary
    ttft = summary.lanes["all"].ttft.p50
    allowed = max(CLIENT_LAG_S, CLIENT_LAG_SHARE * (0.0 if math.isnan(ttft) else ttft / facts.speed))
    why = next((one.message for one in summary.warnings if one.code == "client_limited"), "client-limited")
    return Finding(
        layer=Layer.CLIENT,
        sentence=f"{why.rpartition('; ')[0] or why}: the load generator, not the server, set the pace",
        evidence=(
            Number("lag p99, wall clock", summary.lag.p99, "s", allowed),
            Number("event loop lag p99", number(summary.notes.get("loop_lag_p99_s")), "s", CLIENT_LAG_S),
            Number("most in flight", number(summary.notes.get("most_in_flight")), "count"),
        ),
        confidence=Confidence.HIGH,
        next_step="run it again on a machine with a free core, or at a lower rate (--rate)",
    )


def _adaptation(facts: Facts, baseline: Facts | None) -> Iterator[Finding]:
    """One kind of request always fails while it can be reached: the engine cannot run it."""
    for group in facts.groups:
        if group.sent < LEAST_GROUP or group.failed < ALWAYS * group.sent or group.unreachable:
            continue
        told = read_message(group.detail)
        if told is not None:
            yield told
            return
        yield _failing(facts, baseline, group)
        return


def _failing(facts: Facts, baseline: Facts | None, group: Group) -> Finding:
    model = str(facts.manifest.get("model", ""))
    other = ""
    if baseline is not None and baseline.manifest.get("model") != model and not baseline.groups[0].failed:
        other = f"; model {baseline.manifest.get('model')} answers on the same path"
    said = f": {group.detail[:200]}" if group.detail else f" ({group.reason})" if group.reason else ""
    whole = group is facts.groups[0]
    subject = f"model {model} fails" if whole else f"{group.name} to model {model} fail, the others do not:"
    return Finding(
        layer=Layer.ADAPTATION,
        sentence=f"{subject} {group.failed} of {group.sent} times{said}{other}",
        evidence=(Number(f"failed, {group.name}", group.failed / group.sent, "share", ALWAYS),),
        confidence=Confidence.HIGH if other or group.failed == group.sent else Confidence.MEDIUM,
        next_step=(
            "give the engine's log to `lanewise-load diagnose --engine-log FILE`: it tells an operator that is not "
            "adapted from weights, quantisation and memory"
        ),
        tuning_helps=False,
    )


# --- link


def _link(facts: Facts) -> Iterator[Finding]:
    measured = [value for value in (facts.connect_s, facts.head_s, facts.floor_s) if value is not None]
    ttft = facts.ttft_send_s
    if not measured or ttft is None:
        return
    trip = min(measured)
    if trip / facts.speed < LINK_S or trip < LINK_SHARE * ttft:
        return
    evidence = [Number("time to the answer's head, p10", facts.head_s, "s", LINK_S)] if facts.head_s is not None else []
    if facts.connect_s is not None:
        evidence.append(Number("TCP handshake, median", facts.connect_s, "s", LINK_S))
    if facts.floor_s is not None:
        evidence.append(Number("TCP handshake before the run (floor), median", facts.floor_s, "s", LINK_S))
    evidence.append(Number("TTFT from the send, median", ttft, "s"))
    outside = outside_s(facts)
    if outside is not None:
        evidence.append(Number("mean TTFT at the client less that at the engine", outside, "s"))
    agree = len(measured) > 1 or (outside is not None and outside > trip / 2)
    yield Finding(
        layer=Layer.LINK,
        sentence=(
            f"a round trip to the server takes {trip * 1e3:.0f} ms, {trip / ttft:.0%} of the median time to first "
            "token: the link, not the engine"
        ),
        evidence=tuple(evidence),
        confidence=Confidence.HIGH if agree else Confidence.MEDIUM,
        next_step="measure the path with `lanewise-load floor`, then bring client and server closer or mend the path",
        tuning_helps=False,
    )


# --- memory


def _memory(facts: Facts) -> Iterator[Finding]:
    engine = engine_of(facts)
    finding = None if engine is None else _kv(facts, engine)
    if finding is not None:
        yield finding
        return
    full = [card for card in cards_of(facts) if card.hbm_peak is not None and card.hbm_peak >= HBM_FULL]
    if full:
        share = full[0].hbm_peak or math.nan
        yield Finding(
            layer=Layer.MEMORY,
            part="activations",
            sentence=f"card {full[0].chip} had {share:.1%} of its memory in use: the next large prefill may not fit",
            evidence=(Number(f"HBM peak, card {full[0].chip}", share, "share", HBM_FULL),),
            confidence=Confidence.MEDIUM,
            next_step="lower --gpu-memory-utilization by 0.02",
        )


def _kv(facts: Facts, engine: EngineDigest) -> Finding | None:
    finished = sum(engine.finished.values()) or facts.summary.lanes["all"].outcomes["ok"] or 1
    preempted = engine.preemptions or 0.0
    blocked = (
        (engine.kv_peak or 0) >= KV_FULL and (engine.waiting_share or 0) >= WAITS and (engine.full_share or 0) >= 0.5
    )
    if preempted < max(1.0, PREEMPTED_SHARE * finished) and not blocked:
        return None
    evidence = [Number("preemptions", preempted, "count", max(1.0, PREEMPTED_SHARE * finished))]
    if engine.kv_peak is not None:
        evidence.append(Number("KV cache peak", engine.kv_peak, "share", KV_FULL))
    if engine.full_share is not None:
        evidence.append(Number("readings with a backlog that had a full cache", engine.full_share, "share", 0.5))
    running = engine.running_median or engine.running_peak
    cap = f" to {max(1, math.floor(0.8 * running))}" if running else ""
    what = (
        f"{preempted:.0f} preemptions: the KV cache is full and the engine computes prompts again" if preempted else ""
    )
    return Finding(
        layer=Layer.MEMORY,
        part="kv",
        sentence=what or "requests wait for room in the KV cache, which is full",
        evidence=tuple(evidence),
        confidence=Confidence.HIGH if preempted else Confidence.MEDIUM,
        next_step=(
            f"lower the concurrency cap in front of the engine{cap} (`scheduling.concurrency` in lanewise's "
            "configuration) and run again"
        ),
    )


# --- parallel


def _parallel(facts: Facts, baseline: Facts | None) -> Iterator[Finding]:
    finding = _mismatch(facts) or _idle_cards(facts) or (_scaling(facts, baseline) if baseline is not None else None)
    if finding is not None:
        yield finding


def _mismatch(facts: Facts) -> Finding | None:
    told, parallel = facts.premise("cards") or facts.setting("cards"), facts.parallel
    cards = facts.cards if told is not None else None
    if cards is None or parallel is None or cards == parallel:
        return None
    return Finding(
        layer=Layer.PARALLEL,
        sentence=f"the engine has {cards} cards and is split over {parallel}",
        evidence=(Number("cards", cards, "count"), Number("product of the parallel sizes", parallel, "count", cards)),
        confidence=Confidence.HIGH,
        next_step=f"set the parallel sizes so that their product is {cards}, or run {cards // parallel or 1} engines",
    )


def _idle_cards(facts: Facts) -> Finding | None:
    """Cards that hold a part of the model and do not work, or work less than half as much as others."""
    loaded = [card for card in cards_of(facts) if (card.hbm_peak or 0) >= LOADED and card.ai_core_median is not None]
    if len(loaded) < 2:
        return None
    shares = [card.ai_core_median or 0.0 for card in loaded]
    busiest, laziest = max(shares), min(shares)
    if busiest < LOADED or (laziest >= IDLE and busiest < UNEVEN * laziest):
        return None
    if sum(share * UNEVEN > busiest for share in shares) == facts.parallel:
        return None  # as many work as the engine has: the others hold somebody else's model
    lazy = [card.chip for card, share in zip(loaded, shares, strict=True) if share * UNEVEN <= busiest]
    return Finding(
        layer=Layer.PARALLEL,
        sentence=(
            f"{len(lazy)} of {len(loaded)} loaded cards ({', '.join(lazy)}) work at {laziest:.0%} or little more while "
            f"others are at {busiest:.0%}: the split does not match the cards"
        ),
        evidence=(
            Number("AI core, busiest card", busiest, "share"),
            Number("AI core, laziest card", laziest, "share", busiest / UNEVEN),
        ),
        confidence=Confidence.HIGH if laziest < IDLE else Confidence.MEDIUM,
        next_step="set --tensor-parallel-size (times the other parallel sizes) to the cards that the engine holds",
    )


def _scaling(facts: Facts, baseline: Facts) -> Finding | None:
    """More cards than the baseline, and hardly faster."""
    more, fewer = facts.cards, baseline.cards
    now, then = facts.summary.lanes["all"].tpot.p50, baseline.summary.lanes["all"].tpot.p50
    if more is None or fewer is None or more <= fewer or math.isnan(now) or math.isnan(then) or now <= 0:
        return None
    gain, ideal = then / now - 1, more / fewer - 1
    if gain >= SCALES * ideal:
        return None
    slower = gain < -SAME
    verb = f"{-gain:.0%} slower" if slower else f"only {max(0.0, gain):.0%} faster"
    return Finding(
        layer=Layer.PARALLEL,
        sentence=f"decoding is {verb} on {more} cards than on {fewer}: the cards wait for each other",
        evidence=(
            Number(f"TPOT median, {more} cards", now, "s"),
            Number(f"TPOT median, {fewer} cards", then, "s"),
            Number("gain", gain, "share", SCALES * ideal),
        ),
        confidence=Confidence.HIGH if slower else Confidence.MEDIUM,
        next_step=f"go back to {fewer} cards per engine, and run {more // fewer} engines behind lanewise",
    )


# --- hardware ceiling


def _ceiling(facts: Facts, baseline: Facts | None) -> list[Finding]:
    if not complains(facts):
        return []
    full = _full_cards(facts)
    unmoved = baseline is not None and _unmoved(facts, baseline)
    if not full and not unmoved:
        return []
    evidence = list(full)
    if baseline is not None and unmoved:
        evidence += [
            Number("output tokens/s", facts.tokens_per_s or 0.0, "count"),
            Number(f"output tokens/s, {baseline.label}", baseline.tokens_per_s or 0.0, "count"),
        ]
    reason = (
        f"{full[0].name.partition(',')[0]} is at {full[0].value:.0%}" if full else "no setting moves the throughput"
    )
    return [
        Finding(
            layer=Layer.CEILING,
            sentence=f"{reason} while requests come too late: the hardware does no more of it, tuning cannot help",
            evidence=tuple(evidence),
            confidence=Confidence.HIGH if full and unmoved else Confidence.MEDIUM,
            next_step=(
                "add an engine, or take less: lanes and fast rejection keep what fits inside its SLO, they do not "
                "raise the ceiling"
            ),
            tuning_helps=False,
        )
    ]


def _full_cards(facts: Facts) -> list[Number]:
    """Every loaded card has nothing left, in one of the two measures."""
    cards = [card for card in cards_of(facts) if card.hbm_peak is None or card.hbm_peak >= LOADED]
    measures = (
        ("AI core, median of the laziest card", [card.ai_core_median for card in cards], AI_CORE_FULL),
        ("HBM bandwidth, median of the laziest card", [card.hbm_bandwidth_median for card in cards], BANDWIDTH_FULL),
    )
    found = []
    for name, values, limit in measures:
        known = [value for value in values if value is not None]
        if known and min(known) >= limit:
            found.append(Number(name, min(known), "share", limit))
    return found


def _unmoved(facts: Facts, baseline: Facts) -> bool:
    """Another setting, the same plan, backlog in both, and the same throughput."""
    one, two = facts.tokens_per_s, baseline.tokens_per_s
    changed = facts.manifest.get("parameters") != baseline.manifest.get("parameters")
    same_plan = facts.summary.plan_hash == baseline.summary.plan_hash
    if one is None or two is None or not two or not changed or not same_plan or not complains(baseline):
        return False
    return abs(one / two - 1) <= SAME and _backlog(facts) and _backlog(baseline)


def _backlog(facts: Facts) -> bool:
    engine = engine_of(facts)
    waiting = engine is not None and (engine.waiting_share or 0) >= WAITS
    return waiting or facts.summary.drain_s > 0.1 * facts.summary.window_s
