"""Checks against the traffic: whether prefix caching, installments or the engine's threshold suit it, and pay."""

from collections.abc import Iterator

from proxy.doctor.facts import ENOUGH_REQUESTS, GIANT_CHUNKS, Case, EngineFacts, Traffic
from proxy.doctor.finding import Finding, Good, Said, Severity, Unknown

SOME_LONG = 0.01
"""Share of long prompts from which they are felt: one of a hundred delays every tenth short one."""
SOME_SHORT = 0.3
"""Share of short prompts from which somebody gains when long ones step aside."""
SOME_GIANTS = 0.01
HARDLY_ANY_GIANTS = 0.001
ENOUGH_PARTS = 20
GOOD_HITS = 0.8
"""As the rule that switches installments off for a time (`OFF_BELOW`)."""
MUCH_RECOMPUTED = 0.05
"""Share of prompt tokens computed twice from which parts do harm."""
GOOD_ESTIMATE = ("0.75", "1.25")
MANY_MISSED = 0.2


def check_traffic(case: Case) -> Iterator[Said]:
    """Say what does not suit the traffic."""
    if case.traffic is None or not case.traffic.enough:
        had = "" if case.traffic is None else f" ({case.traffic.requests} seen in {case.traffic.source})"
        yield Unknown(
            "traffic",
            "traffic",
            f"at least {ENOUGH_REQUESTS} prompts{had}: a proxy that has served some, or --trace DIR",
        )
    for _, engine in case.pairs():
        if case.traffic is not None and case.traffic.enough:
            yield from _caching(case, engine, case.traffic)
            yield from _threshold(case, engine, case.traffic)
        yield from _ranks(case, engine)
        yield from _details(case, engine)
        yield from _pays(case, engine)
    yield from _estimate(case)


def _wanted(case: Case, traffic: Traffic) -> bool:
    """Whether long prompts meet short ones, so that parts would pay."""
    border = case.settings.lanes.short.max_prompt_tokens
    long = traffic.over(border)
    return long >= SOME_LONG and 1 - long >= SOME_SHORT


def _caching(case: Case, engine: EngineFacts, traffic: Traffic) -> Iterator[Said]:
    if case.settings.to_scheduling().installments is None or not _wanted(case, traffic):
        return
    if engine.caching is None:
        yield Unknown("prefix_caching_off", engine.name, "the engine does not say whether prefix caching is on")
    elif engine.caching is False:
        border = case.settings.lanes.short.max_prompt_tokens
        yield Finding(
            "prefix_caching_off",
            Severity.WARNING,
            engine.name,
            f"prefix caching is off; {traffic.over(border):.1%} of {traffic.requests} prompts are longer than {border}",
            "installments need it; without, short requests wait for whole long prompts: goodput 0.80 instead of 0.95 "
            "on mixed traffic in the model",
            "start the engine with --enable-prefix-caching and look at vllm:prefix_cache_hits_total, or set "
            "installments: off to say that you know",
        )


def _threshold(case: Case, engine: EngineFacts, traffic: Traffic) -> Iterator[Said]:
    cut, chunk = engine.flags.long_prefill_token_threshold, case.chunk(engine)
    giant = GIANT_CHUNKS * chunk
    share = traffic.over(giant)
    seen = f"{share:.1%} of {traffic.requests} prompts ({traffic.source}) are over {GIANT_CHUNKS} chunks ({giant})"
    if cut is None:
        if share >= SOME_GIANTS and case.installments(engine) is False:
            yield Unknown("threshold_advisable", engine.name, "the engine's flags, in backends[].engine_flags")
    elif cut == 0 and share >= SOME_GIANTS and case.installments(engine) is False and _wanted(case, traffic):
        yield Finding(
            "threshold_advisable",
            Severity.WARNING,
            engine.name,
            f"{seen}; installments are not used there, and the engine has no threshold",
            "such a prompt takes whole steps for itself: goodput 0.80 instead of 0.96 on mixed traffic in the model",
            f"start the engine with --long-prefill-token-threshold {max(1, chunk // 8)} and set "
            "scheduling.budget_mode: separate",
        )
    elif cut and share < HARDLY_ANY_GIANTS:
        yield Finding(
            "threshold_not_advisable",
            Severity.WARNING,
            engine.name,
            f"{seen}; --long-prefill-token-threshold is {cut}",
            "without giants the threshold only slows long prompts down: 2 to 7 points of goodput in the model",
            "start the engine without --long-prefill-token-threshold and set scheduling.budget_mode: shared",
        )


def _ranks(case: Case, engine: EngineFacts) -> Iterator[Said]:
    """Several engines behind one address, and the parts of a prompt meet different caches."""
    ranks = engine.ranks
    if case.settings.to_scheduling().installments is None or ranks is None or ranks <= 1:
        return
    told = case.proxy.backend(engine.name) if case.proxy is not None else None
    if told is None or told.get("installments") != "off":
        return  # every part names its rank, and nothing says that it is not heeded
    yield Finding(
        "ranks_not_pinned",
        Severity.WARNING,
        engine.name,
        f"{ranks} data-parallel engines behind {engine.url}, and installments are off there",
        "the parts of one prompt are not found again although each names its engine (X-data-parallel-rank): what "
        "stands between spreads them, or this version does not read the header",
        "give each rank an address of its own (--data-parallel-external-lb) and list them as backends",
    )


def _details(case: Case, engine: EngineFacts) -> Iterator[Said]:
    if case.settings.to_scheduling().installments is None or engine.caching is False:
        return
    if engine.flags.enable_prompt_tokens_details is False:
        yield Finding(
            "prompt_tokens_details_off",
            Severity.INFO,
            engine.name,
            f"--enable-prompt-tokens-details is not among its flags ({engine.flags_from})",
            "usage does not say what the prefix cache held, so each part is judged by counters and time, which is "
            "slower to prove and blind when several requests overlap",
            "start the engine with --enable-prompt-tokens-details",
        )


def _pays(case: Case, engine: EngineFacts) -> Iterator[Said]:
    """Installments as they went so far."""
    if case.proxy is None or case.settings.to_scheduling().installments is None:
        return
    told = case.proxy.backend(engine.name)
    parts = case.proxy.total("lanewise_installments_total", backend=engine.name)
    if told is None or parts is None:
        return
    if parts < ENOUGH_PARTS:
        yield Unknown("installments_pay", engine.name, f"at least {ENOUGH_PARTS} parts; {parts:.0f} were sent so far")
        return
    ratio, twice = told.get("installment_hit_ratio"), told.get("recomputed_tokens")
    prompts = case.proxy.total("lanewise_prompt_tokens_total", lane="long") or 0.0
    share = twice / prompts if isinstance(twice, int) and prompts else 0.0
    if ratio is None:
        yield Unknown(
            "installments_pay", engine.name, "what its cache held of the parts: --enable-prompt-tokens-details"
        )
    elif ratio < GOOD_HITS or share > MUCH_RECOMPUTED:
        yield Finding(
            "installments_do_not_pay",
            Severity.WARNING,
            engine.name,
            f"{ratio:.0%} of what was sent before was found again in {parts:.0f} parts; {twice} prompt tokens were "
            f"computed twice ({share:.1%} of the long lane's)",
            "parts that are not found again are work done twice",
            "give the engine more KV cache or lower concurrency, so that parts are not pushed out; if it stays so, "
            "installments: off",
        )
    else:
        seen = f"{ratio:.0%} of what was sent before was found again in {parts:.0f} parts, {share:.1%} computed twice"
        yield Good("installments_pay", engine.name, seen)


def _estimate(case: Case) -> Iterator[Said]:
    """Prompt lengths that are estimated too badly for lanes."""
    if case.proxy is None:
        return
    name = "lanewise_prompt_tokens_estimate_ratio"
    known = case.proxy.total(f"{name}_count")
    if not known or known < ENOUGH_REQUESTS:
        return
    low, high = (case.proxy.total(f"{name}_bucket", le=bound) for bound in GOOD_ESTIMATE)
    if low is None or high is None:
        return
    missed = 1 - (high - low) / known
    if missed > MANY_MISSED:
        yield Finding(
            "estimate_poor",
            Severity.WARNING,
            "prompt lengths",
            f"{missed:.0%} of {known:.0f} estimates were further off than a quarter",
            "requests wait in the wrong lane, and budgets hold too much or too little",
            "set estimate.tokenize: border, so that prompts near the border are counted exactly",
        )
