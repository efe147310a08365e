"""Checks of the configuration against the engines: caps, contexts, budgets, and the measurement they come from."""

from collections.abc import Iterator

from proxy.doctor.facts import Case, EngineFacts
from proxy.doctor.finding import Finding, Said, Severity, Unknown
from proxy.policy.limits import BudgetMode
from proxy.settings import LANES, Backend, Lane
from proxy.settings.units import format_duration

_DAY_S = 86400.0
_GUESSES = ("concurrency", "prefill_time_per_token", "step_time")
"""Keys of `scheduling` whose defaults are computed for an 8B model on one card."""
KV_DIFFERS = 0.02
"""Sizes of the KV cache further apart than this share are different conditions."""
KV_FULL, KV_FREE = 0.8, 0.5
"""The guard is at its limit from this share of it on, and has no reason to be while less than that share is in use."""


def check_limits(case: Case) -> Iterator[Said]:
    """Say where the configuration and the engines do not agree."""
    for backend, engine in case.pairs():
        yield from _caps(case, backend, engine)
        yield from _kv(backend, engine)
        yield from _kv_guard(case, backend, engine)
        yield from _context(case, engine)
        yield from _threshold(case, engine)
    yield from _measured(case)
    yield from _guesses(case)
    yield from _in_force(case)


def _seats(engine: EngineFacts) -> int | None:
    """Sequences that all ranks behind the address run together."""
    if engine.flags.max_num_seqs is None:
        return None
    return engine.flags.max_num_seqs * max(1, engine.ranks or 1)


def _caps(case: Case, backend: Backend, engine: EngineFacts) -> Iterator[Said]:
    """What may run there, against what the engine runs: the rest would wait in its queue."""
    start = case.settings.start_of(backend)
    limits = next(one for one in case.settings.to_backend_limits() if one.name == backend.label)
    most = limits.adaptive.ceiling if limits.adaptive is not None else start
    told = case.proxy.backend(backend.label) if case.proxy is not None else None
    now = told.get("concurrency") if told is not None else None
    seats = _seats(engine)
    if seats is None:
        if backend.max_num_seqs is None:
            yield Unknown(
                "caps_over_max_num_seqs",
                engine.name,
                "the engine's --max-num-seqs: write it in backends[].max_num_seqs",
            )
        return
    at = max(start, now if isinstance(now, int) else 0)
    if most > seats:
        ranks = f" ({engine.ranks} ranks)" if (engine.ranks or 1) > 1 else ""
        yield Finding(
            "caps_over_max_num_seqs",
            Severity.ERROR if at > seats else Severity.WARNING,
            engine.name,
            f"{at} sequences may run there now and {most} at most; the engine runs {seats}{ranks}, "
            f"so says {engine.flags_from}",
            "what is over it waits inside the engine, in its order, not in ours",
            f"set max_num_seqs: {seats} for this backend"
            + (f", and its concurrency to at most {seats}" if start > seats else ""),
        )


def _kv(backend: Backend, engine: EngineFacts) -> Iterator[Said]:
    size = engine.metrics.kv_tokens if engine.metrics is not None else None
    if backend.kv_tokens is None or size is None:
        return
    if backend.kv_tokens > size * (1 + KV_DIFFERS):
        preempts = engine.second is None or engine.second.preemptions_total != 0
        yield Finding(
            "kv_tokens_differ",
            Severity.ERROR if preempts else Severity.INFO,
            engine.name,
            f"kv_tokens is {backend.kv_tokens}, the engine says {size}",
            "the guard lets more in than fits: the engine preempts, and computes prompts twice",
            "remove kv_tokens of this backend: what the engine says is used then"
            if preempts
            else "remove kv_tokens of this backend when the engine begins to preempt",
        )


def _kv_guard(case: Case, backend: Backend, engine: EngineFacts) -> Iterator[Said]:
    """The guard holds requests back while the engine's own cache is mostly free."""
    told = case.proxy.backend(backend.label) if case.proxy is not None else None
    usage = engine.second.kv_usage if engine.second is not None else None
    if case.proxy is None or told is None or usage is None:
        return
    waits = [lane.get("name") for lane in case.proxy.status.get("lanes", ()) if lane.get("head_blocked") == "kv"]
    held, limit = told.get("kv_tokens"), told.get("kv_limit")
    if not waits or not isinstance(held, int) or not isinstance(limit, int):
        return
    if held >= KV_FULL * limit and usage < KV_FREE:
        yield Finding(
            "kv_guard_too_tight",
            Severity.WARNING,
            engine.name,
            f"lane {' and '.join(map(str, waits))} waits for kv: {held} of {limit} tokens are expected to be in use "
            f"there, and the engine has {usage:.0%} of its cache in use",
            "prompts that share a beginning are counted in full, and with context parallel or a sliding window the "
            "size that an engine tells is less than what fits: requests wait for nothing",
            f"set kv_tokens: {2 * limit} for this backend, and look whether it preempts",
        )


def _context(case: Case, engine: EngineFacts) -> Iterator[Said]:
    """Caps and borders that the context cannot hold."""
    context = engine.context
    if context is None:
        return
    settings = case.settings
    for name in LANES:
        lane: Lane = getattr(settings.lanes, name)
        output = lane.output
        for key, tokens in (("default", output.default), ("ceiling", output.ceiling)):
            if tokens is not None and tokens >= context and not output.clamp_to_context:
                yield _beyond(engine, f"lanes.{name}.output.{key}", tokens, context, Severity.ERROR)
    border, longest = settings.lanes.short.max_prompt_tokens, settings.limits.prompt_tokens
    if longest is not None and longest > context:
        yield _beyond(engine, "limits.prompt_tokens", longest, context, Severity.WARNING)
    if border >= context:
        yield _beyond(engine, "lanes.short.max_prompt_tokens", border, context, Severity.WARNING)


def _beyond(engine: EngineFacts, key: str, tokens: int, context: int, severity: Severity) -> Finding:
    output = ".output." in key
    return Finding(
        "caps_beyond_context",
        severity,
        f"{engine.name}, {key}",
        f"{tokens} tokens; the longest context there is {context}",
        "vLLM 0.18 to 0.23 answers 400 to every request that asks for so much"
        if output
        else "the key has no effect: nothing that long can be served",
        f"set {key} below {context}" + (f", or {key.rpartition('.')[0]}.clamp_to_context: true" if output else ""),
    )


def _threshold(case: Case, engine: EngineFacts) -> Iterator[Said]:
    """The engine's own cut of long prefills, and what lanewise thinks of it."""
    cut = engine.flags.long_prefill_token_threshold
    separate = case.settings.scheduling.budget_mode is BudgetMode.SEPARATE
    if cut is None:
        if separate:
            yield Unknown("separate_without_threshold", engine.name, "the engine's flags, in backends[].engine_flags")
        return
    if separate and not cut:
        yield Finding(
            "separate_without_threshold",
            Severity.ERROR,
            engine.name,
            f"scheduling.budget_mode is separate, and the engine has no threshold ({engine.flags_from})",
            "long prompts get a budget of their own, and whole steps for it: the p99 first token of short ones "
            "becomes three times as long in the model",
            f"start the engine with --long-prefill-token-threshold {case.chunk(engine) // 8}, or set "
            "scheduling.budget_mode: shared",
        )
    if not cut:
        return
    if case.installments(engine) is not False:
        yield Finding(
            "threshold_with_installments",
            Severity.ERROR,
            engine.name,
            f"--long-prefill-token-threshold {cut}, and installments.mode is {case.settings.installments.mode}",
            "a part is cut again by the engine: long prompts pay for both, short ones gain nothing more",
            "set scheduling.budget_mode: separate (installments are then off by themselves), or remove the flag",
        )
    elif not separate:
        yield Finding(
            "threshold_without_separate",
            Severity.WARNING,
            engine.name,
            f"--long-prefill-token-threshold {cut}, and scheduling.budget_mode is shared",
            "a long prompt keeps the shared budget for all the steps it now takes, and short ones wait for it",
            "set scheduling.budget_mode: separate",
        )


def _measured(case: Case) -> Iterator[Said]:
    """The knee: how old, from which conditions, and whether it is what is in force."""
    measured = case.settings.measured
    if measured.date is None:
        return
    age = (case.today - measured.date).days
    if age * _DAY_S > measured.valid_for:
        yield Finding(
            "knee_too_old",
            Severity.WARNING,
            "measured.date",
            f"measured {age} days ago ({measured.date}), valid for {format_duration(measured.valid_for)}",
            "the knee moves with model, engine and traffic; an old one is a guess",
            _again(case),
        )
    elif age < 0:
        yield Finding(
            "knee_too_old",
            Severity.WARNING,
            "measured.date",
            f"measured on {measured.date}, which is {-age} days ahead",
            "nobody can say how old it is",
            "correct measured.date, or the clock of this machine",
        )
    for backend, engine in case.pairs():
        if measured.backends and backend.label not in measured.backends:
            continue
        differs = tuple(_conditions(case, engine))
        if differs:
            yield Finding(
                "knee_other_conditions",
                Severity.WARNING,
                engine.name,
                f"measured on {measured.date} with {'; '.join(differs)}",
                "it is the knee of something else",
                _again(case),
            )
        start = case.settings.start_of(backend)
        if measured.concurrency is not None and start != measured.concurrency:
            yield Finding(
                "knee_not_in_force",
                Severity.INFO,
                engine.name,
                f"measured was {measured.concurrency}, configured is {start}",
                "what was measured is not what runs",
                f"set the concurrency of this backend to {measured.concurrency}, or remove `measured`",
            )


def _conditions(case: Case, engine: EngineFacts) -> Iterator[str]:
    """Yield what is not as it was: `then, now`."""
    measured = case.settings.measured
    names = [name for name, _ in engine.models or ()]
    if measured.model and names and measured.model not in names:
        yield f"model {measured.model}, now {', '.join(names)}"
    if measured.engine_version and engine.version is not None and measured.engine_version != engine.version:
        yield f"engine {measured.engine_version}, now {engine.version}"
    size = engine.metrics.kv_tokens if engine.metrics is not None else None
    if measured.kv_tokens and size is not None and abs(size / measured.kv_tokens - 1) > KV_DIFFERS:
        yield f"KV for {measured.kv_tokens} tokens, now {size}"
    for key in ("max_num_seqs", "max_num_batched_tokens"):
        then, now = getattr(measured, key), getattr(engine.flags, key)
        if then is not None and now is not None and then != now:
            yield f"{key} {then}, now {now}"


def _again(case: Case) -> str:
    cards = f" on {case.settings.measured.cards}" if case.settings.measured.cards else ""
    return f"measure again{cards} with lanewise-load knee, and replace the `measured` block by what it writes"


def _guesses(case: Case) -> Iterator[Said]:
    settings = case.settings
    if settings.measured.date is not None:
        return
    plain = type(settings.scheduling)()
    guesses = [
        f"scheduling.{key} {getattr(plain, key):g}"
        for key in _GUESSES
        if getattr(settings.scheduling, key) == getattr(plain, key)
        and not (key == "concurrency" and all(backend.concurrency for backend in settings.backends))
    ]
    if guesses:
        yield Finding(
            "start_values_guessed",
            Severity.INFO,
            "scheduling",
            f"still at the defaults of an 8B model on one card: {', '.join(guesses)}",
            "they are learned from the first requests on; until then deadlines and caps are off by as much as your "
            "engine differs",
            "measure once: lanewise-load knee writes concurrency with its date",
        )


def _in_force(case: Case) -> Iterator[Said]:
    if case.proxy is None:
        yield Unknown("proxy", "the proxy", "nobody answers on its admin address: what it sees could not be asked")
        return
    running = case.proxy.status.get("config")
    if running != case.config:
        yield Finding(
            "other_configuration",
            Severity.INFO,
            case.proxy.address,
            f"the proxy runs configuration {running}, this one is {case.config}",
            "what is said here of the configuration is not about what runs",
            "lanewise reload, or leave --config out and ask with --admin alone",
        )
    reload = case.proxy.status.get("reload")
    if isinstance(reload, dict) and reload.get("succeeded") is False:
        said = "; ".join(map(str, reload.get("said", ()))) or "it does not say why"
        yield Finding(
            "reload_failed",
            Severity.ERROR,
            case.proxy.address,
            f"the last change was not made: {said}",
            "the file on disk and what runs have parted; the next restart fails or changes everything at once",
            "mend the file, then lanewise reload",
        )
