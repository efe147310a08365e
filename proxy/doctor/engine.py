"""Checks of what the engines themselves say: their queue, their own scheduling, their connections, their age."""

import re
from collections.abc import Iterator

from proxy.doctor.facts import Case, EngineFacts
from proxy.doctor.finding import Finding, Said, Severity, Unknown
from proxy.settings import Backend
from proxy.settings.units import format_duration

QUEUE_OF_A_FEW = 4
"""Requests that may wait in an engine for a step or two without anybody being at fault."""
STRANGERS = 2
"""Requests that an engine may have beyond ours: ends and probes that cross each other."""
OLDEST, NEWEST = (0, 9), (0, 33)
"""vLLM versions whose metric names and behaviour are known (vLLM-Ascend takes the numbers of its vLLM)."""
_VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})")


def check_engines(case: Case) -> Iterator[Said]:
    """Say what is wrong with each engine, as it is."""
    for engine in case.engines:
        if engine.error is not None:
            yield _unreachable(engine)
    for backend, engine in case.pairs():
        yield from _metrics(engine)
        yield from _queue(case, engine)
        yield from _rivals(engine)
        yield from _keep_alive(case, engine)
        yield from _preemptions(case, backend, engine)
        yield from _version(engine)
        yield from _context(engine)
        yield from _flags(engine)
    yield from _twice(case)


def _unreachable(engine: EngineFacts) -> Finding:
    return Finding(
        "engine_unreachable",
        Severity.ERROR,
        engine.name,
        f"{engine.url}: {engine.error}",
        "nothing can be sent there, and nothing is known of it",
        f"check that the engine runs: curl -sS {engine.url}/health",
    )


def _metrics(engine: EngineFacts) -> Iterator[Said]:
    if engine.first is None or engine.second is None:
        yield Unknown("engine_metrics", engine.name, f"{engine.url}/metrics could not be read twice")
    elif engine.second.running is None and engine.second.waiting is None:
        yield Unknown("engine_metrics", engine.name, f"{engine.url}/metrics has none of vLLM's names; is it vLLM?")


def _queue(case: Case, engine: EngineFacts) -> Iterator[Said]:
    """The engine's own queue, at two looks: ours should hold what waits."""
    if engine.first is None or engine.second is None:
        return
    before, after, running = engine.first.waiting, engine.second.waiting, engine.second.running
    if before is None or after is None or running is None:
        yield Unknown("engine_queue_grows", engine.name, "the engine does not export num_requests_waiting")
        return
    ours = case.in_flight(engine.name)
    if ours is None:
        yield Unknown("other_traffic", engine.name, "a running proxy: give its --admin HOST:PORT")
    elif min(running + after, (engine.first.running or 0.0) + before) > ours + STRANGERS:
        yield Finding(
            "other_traffic",
            Severity.ERROR,
            engine.name,
            f"the engine has {running:.0f} running and {after:.0f} waiting, {ours} of them ours",
            "requests that do not come through lanewise take the engine's time, and no lane or cap holds them",
            "send all traffic of this engine through lanewise; look for clients that still know its address",
        )
        return
    if after >= QUEUE_OF_A_FEW and after >= before >= 1:
        yield Finding(
            "engine_queue_grows",
            Severity.ERROR,
            engine.name,
            f"{before:.0f} requests waited in the engine, {engine.apart_s:.1f} s later {after:.0f}, {running:.0f} ran",
            "what waits there is in the engine's order, not in ours: short prompts stand behind long ones again",
            f"set max_num_seqs of this backend to what the engine runs with (it ran {running:.0f} just now)",
        )


def _rivals(engine: EngineFacts) -> Iterator[Said]:
    """Scheduling inside the engine that competes with lanes."""
    flags = engine.flags
    if not flags.known:
        yield Unknown(
            "engine_scheduling",
            engine.name,
            "its start flags: write them in backends[].engine_flags (ShortRequestFirst, --scheduling-policy, "
            "--max-num-seqs, --long-prefill-token-threshold cannot be asked of an engine)",
        )
        return
    if flags.short_request_first:
        yield Finding(
            "short_request_first",
            Severity.WARNING,
            engine.name,
            f"ShortRequestFirst is on ({engine.flags_from})",
            "two schedulers sort by length: what lanewise sends is sorted a second time, by another border, without a "
            "bound, and no measurement can tell which of the two did what",
            "switch short_request_first_config off in the engine's --additional-config, and compare",
        )
    if flags.policy is not None and flags.policy != "fcfs":
        yield Finding(
            "priority_scheduling",
            Severity.WARNING,
            engine.name,
            f"--scheduling-policy {flags.policy} ({engine.flags_from})",
            "the order inside the engine, and whom it preempts, is no longer the order in which lanewise sends",
            "start the engine with --scheduling-policy fcfs, unless clients rely on `priority`",
        )
    yield from _queue_limits(engine)


def _queue_limits(engine: EngineFacts) -> Iterator[Said]:
    flags = engine.flags
    limits = {
        "--max-num-queued-reqs": flags.max_num_queued_reqs,
        "--max-num-queued-tokens": flags.max_num_queued_tokens,
        "--max-num-active-seqs": flags.max_num_active_seqs,
    }
    told = [f"{name} {value}" for name, value in limits.items() if value]
    refused = engine.metrics.rejections_total if engine.metrics is not None else None
    if told or refused:
        count = "" if refused is None else f"; it has refused {refused:.0f} requests since its start"
        yield Finding(
            "engine_queue_limits",
            Severity.ERROR if refused else Severity.WARNING,
            engine.name,
            f"{', '.join(told) or 'limits that its flags do not name'}{count}",
            "a second admission behind ours: its 503 comes after a place in our queue was waited for",
            "remove the engine's queue limits: lanewise bounds the queue, per lane",
        )


def _keep_alive(case: Case, engine: EngineFacts) -> Iterator[Said]:
    kept = case.settings.timeouts.idle_connection
    told = engine.flags.keep_alive_s
    closed = engine.closed_after_s if engine.closed_after_s is not None else told
    if closed is not None and closed <= kept:
        yield Finding(
            "keep_alive_short",
            Severity.ERROR,
            engine.name,
            f"the engine closes an idle connection after {closed:.1f} s, the pool keeps it {format_duration(kept)}",
            "requests meet connections that are just being closed: retries, and now and then a 502",
            f"set timeouts.idle_connection to {max(0.1, closed * 0.8):.1f}s, or raise the engine's "
            "VLLM_HTTP_TIMEOUT_KEEP_ALIVE",
        )
    elif engine.waited_s is None and told is None:
        yield Unknown("keep_alive_short", engine.name, "an idle connection could not be watched")


def _preemptions(case: Case, backend: Backend, engine: EngineFacts) -> Iterator[Said]:
    if engine.first is None or engine.second is None:
        return
    before, after = engine.first.preemptions_total, engine.second.preemptions_total
    if before is None or after is None:
        yield Unknown("preemptions", engine.name, "the engine does not export num_preemptions")
        return
    told = engine.metrics.kv_tokens if engine.metrics is not None else None
    guarded = backend.kv_tokens is not None or told is not None
    if after > 0 and (not guarded or after > before):
        use = "" if engine.second.kv_usage is None else f"; KV cache {engine.second.kv_usage:.0%} in use"
        step = (
            f"lower scheduling.kv_fraction (now {case.settings.scheduling.kv_fraction:g})"
            if guarded
            else "set kv_tokens of this backend to the KV size of its start log: the engine does not tell it"
        )
        yield Finding(
            "preemptions",
            Severity.WARNING,
            engine.name,
            f"{after:.0f} preemptions since its start, {after - before:.0f} in the last {engine.apart_s:.1f} s{use}",
            "a preempted prompt is computed again: time per output token jumps by 10 to 100 ms",
            step,
        )


def _version(engine: EngineFacts) -> Iterator[Said]:
    if engine.version is None:
        yield Unknown("engine_version", engine.name, f"{engine.url}/version does not say")
        return
    found = _VERSION.match(engine.version)
    if found is None or not OLDEST <= (int(found[1]), int(found[2])) <= NEWEST:
        yield Finding(
            "engine_version",
            Severity.INFO,
            engine.name,
            f"version {engine.version}; known are {'.'.join(map(str, OLDEST))} to {'.'.join(map(str, NEWEST))}",
            "its metric names and its answers to odd requests were not checked against lanewise",
            "compare one day under mode observe before enforce",
        )


def _context(engine: EngineFacts) -> Iterator[Said]:
    if engine.models is None:
        yield Unknown("context_unknown", engine.name, f"{engine.url}/v1/models could not be read (probes.api_key?)")
        return
    silent = [name for name, length in engine.models if length is None]
    if silent or not engine.models:
        yield Finding(
            "context_unknown",
            Severity.WARNING,
            engine.name,
            f"no max_model_len for {', '.join(silent)}" if silent else "no model is listed",
            "prompts that can never fit are not refused before they wait, and clamp_to_context has nothing to go by",
            "write limits.prompt_tokens, or ask the engine itself instead of the router in front of it",
        )


def _flags(engine: EngineFacts) -> Iterator[Said]:
    flags = engine.flags
    if flags.dead:
        yield Finding(
            "dead_flags",
            Severity.INFO,
            engine.name,
            ", ".join("--" + name.replace("_", "-") for name in flags.dead),
            "these do nothing in the V1 engine and stop newer ones from starting",
            "remove them from the start command; --long-prefill-token-threshold is the living one",
        )
    if flags.unreadable:
        names = ", ".join("--" + name.replace("_", "-") for name in flags.unreadable)
        yield Unknown("engine_flags", engine.name, f"the values of {names} are no numbers")
    if flags.enable_chunked_prefill is False:
        yield Finding(
            "chunked_prefill_off",
            Severity.WARNING,
            engine.name,
            f"chunked prefill is off ({engine.flags_from})",
            "a long prompt is one step as long as itself, and every answer stands still meanwhile",
            "remove --no-enable-chunked-prefill: it is on by default",
        )


def _twice(case: Case) -> Iterator[Said]:
    """Two backends that are one process: their caps add up in one engine."""
    seen: dict[tuple[float, float | None, int | None], list[str]] = {}
    for backend, engine in case.pairs():
        found = engine.metrics
        if found is not None and found.process_start_time_s is not None:
            key = (found.process_start_time_s, found.prompt_tokens_total, found.kv_tokens)
            seen.setdefault(key, []).append(backend.label)
    for names in seen.values():
        if len(names) > 1:
            caps = sum(case.settings.start_of(one) for one in case.settings.backends if one.label in names)
            yield Finding(
                "same_engine_twice",
                Severity.ERROR,
                ", ".join(names),
                "they began in the same instant with the same counters: one engine under several addresses",
                f"their caps add up ({caps} sequences at the start), and each thinks that it is alone",
                "keep one of these backends",
            )
