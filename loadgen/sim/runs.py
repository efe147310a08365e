"""A window of a study as a run folder: what `replay` writes, made in virtual time, with noise in the engine's steps.

Two such runs that differ in the noise's seed alone are what two replays of the same traffic are: equal plans, unequal
luck. They tell how often a comparison sees a difference where there is none.
"""

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from loadgen.failure import UsageError
from loadgen.journal import Journal, RunFolder
from loadgen.plan import Lane
from loadgen.preflight import host_facts, versions
from loadgen.result import LoadOutcome, Result
from loadgen.sim.drive import BORDER_TOKENS, Drive, Served
from loadgen.sim.engine import Engine
from loadgen.sim.nouns import EngineProfile, Step
from loadgen.sim.srpt import SrptEngine
from loadgen.sim.trials import Trial, front
from loadgen.sim.workloads import Arrival

NOISE_SIGMA = 0.1
"""Sigma of the lognormal factor on every step time: its standard deviation is a tenth of the step, as between the
steps of one batch size of a busy engine (docs/simulated-engine.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualRun:
    """One run in virtual time."""

    trial: Trial
    """Policy and backends; its workload and load are only told in the manifest."""
    profile: EngineProfile
    arrivals: Sequence[Arrival]
    out: Path
    noise_sigma: float = NOISE_SIGMA
    noise_seed: int = 1
    """Decides the noise; the traffic does not follow it."""
    label: str | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)


class _Peak(Engine):
    """Remembers the highest KV usage."""

    kv_peak = 0.0

    def step(self, now: float) -> Step | None:
        step = super().step(now)
        self.kv_peak = max(self.kv_peak, self.gauges.kv_usage)
        return step


class _SrptPeak(_Peak, SrptEngine):
    """The same of the perfect-knowledge engine."""


def run_virtually(run: VirtualRun) -> RunFolder:
    """Drive the arrivals through policy and engines and write the run folder.

    Raises:
        UsageError: the folder is in use, an unknown policy, or a request that the engine can never hold.
    """
    profile = replace(run.profile, noise_sigma=run.noise_sigma)
    kind = _SrptPeak if run.trial.policy == "reference" else _Peak
    engines = [kind(profile, noise=random.Random(f"{run.noise_seed}/{number}")) for number in range(run.trial.backends)]
    hashed = run.trial.policy == "lanewise" and run.trial.lanes.installments
    drive = Drive(engines, front(run.trial, profile), run.arrivals, hashed=hashed)
    journal = Journal(run.out, _manifest(run))
    try:
        driven = drive.run()
    except ValueError as error:
        raise UsageError(f"engine profile {profile.name}: {error}") from None
    counts = dict.fromkeys((outcome.value for outcome in LoadOutcome), 0)
    for index, served in enumerate(driven.served):
        result = _result(index, served)
        counts[result.outcome] += 1
        journal.add(result)
    return journal.close(
        complete=True,
        outcomes=counts,
        sent=len(driven.served),
        loop_lag_p99_s=0.0,
        client_limited=False,
        peaks={
            "kv_usage": max(engine.kv_peak for engine in engines),
            "preemptions": sum(engine.counters.preemptions for engine in engines),
        },
    )


def _manifest(run: VirtualRun) -> dict[str, Any]:
    trial, profile = run.trial, run.profile
    return {
        "label": run.label or run.out.name,
        "virtual": True,
        "plan": {
            "hash": _plan_hash(run.arrivals),
            "requests": len(run.arrivals),
            "span_s": run.arrivals[-1].at_s - run.arrivals[0].at_s,
            "border": BORDER_TOKENS,
            "workload": trial.workload,
            "load": trial.load,
            "seed": trial.seed,
        },
        "target": "virtual time",
        "endpoint": "completions",
        "model": profile.name,
        "engine": {"version": f"simulated {profile.name}", "cache_config": None, "flags": _flags(profile)},
        "proxy": _in_front(trial),
        "noise": {"sigma": run.noise_sigma, "seed": run.noise_seed},
        "speed": 1.0,
        "salt": f"virtual {run.noise_sigma:g} {run.noise_seed}",
        "parameters": dict(run.parameters),
        "host": host_facts(),
        "versions": versions(),
    }


def _flags(profile: EngineProfile) -> dict[str, str]:
    """Return the simulated engine's flags in vLLM's names."""
    names = ("max_num_seqs", "max_num_batched_tokens", "long_prefill_token_threshold", "max_model_len", "block_size")
    flags = {name: str(getattr(profile, name)) for name in names}
    constants = (profile.a, profile.b, profile.c, profile.d, profile.e)
    return flags | {
        "enable_prefix_caching": str(profile.prefix_caching),
        "kv_blocks": str(profile.kv_blocks),
        "step_time": " ".join(f"{value:g}" for value in constants),
    }


def _in_front(trial: Trial) -> dict[str, Any] | None:
    """Return what stands in front of the engines, as a proxy's facts; None where nothing does."""
    if trial.policy == "direct":
        return None
    if trial.policy != "lanewise":
        return {"name": trial.policy, "settings": {"name": trial.policy}}
    lanes = trial.lanes
    settings = {
        "name": trial.policy,
        "preset": lanes.preset.value,
        "drop_factor": f"{lanes.drop_factor:g}",
        "installments": "on" if lanes.installments else "off",
        "adaptive": "on" if lanes.adaptive else "off",
        "concurrency": str(lanes.cap) if lanes.cap is not None else "default",
    }
    return {"name": trial.policy, "settings": settings}


def _plan_hash(arrivals: Sequence[Arrival]) -> str:
    """Equal hashes asked for the same lengths at the same microseconds."""
    rows = ((round(one.at_s * 1e6), one.prompt_tokens, one.output_tokens) for one in arrivals)
    return hashlib.sha256(repr(list(rows)).encode()).hexdigest()[:16]


_OUTCOMES = {
    "ok": LoadOutcome.OK,
    "rejected": LoadOutcome.REJECTED,
    "expired": LoadOutcome.REJECTED,
    "client_gone": LoadOutcome.CANCELLED,
}


def _result(index: int, served: Served) -> Result:
    due, ok = served.arrived_s, served.outcome == "ok"
    return Result(
        index=index,
        row=index + 1,
        lane=Lane.SHORT if served.short else Lane.LONG,
        prompt_tokens=served.prompt_tokens,
        output_tokens=served.output_tokens,
        due=due,
        outcome=_OUTCOMES[served.outcome],
        started=due,
        sent=due,
        connected=due,
        head=served.first_s,
        first=served.first_s,
        first_content=served.first_s,
        last=served.end_s if ok else None,
        end=served.end_s,
        tokens=served.output_tokens if ok else None,
        tokens_from="usage" if ok else None,
        chunks=served.output_tokens if ok else 0,
        status=200 if ok else None,
        finish="length" if ok else None,
        usage_prompt=served.prompt_tokens if ok else None,
        reason=served.reason or ("patience" if served.outcome == "client_gone" else None),
    )
