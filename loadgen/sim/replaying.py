"""`lanewise-load sim run`: a window of a study in virtual time, as a run folder that `summarise` and `compare` read."""

import json as jsonlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from loadgen.failure import Exit, UsageError
from loadgen.flags import Switch
from loadgen.report import console, print_summary
from loadgen.sim.nouns import EngineProfile
from loadgen.sim.profile import load_profile
from loadgen.sim.runs import NOISE_SIGMA, VirtualRun, run_virtually
from loadgen.sim.trials import POLICIES, WINDOW_SEED, Study, Trial
from loadgen.sim.virtual import LaneOptions, Preset
from loadgen.sim.workloads import workload_names
from loadgen.summarise import summarise


def run(
    *,
    traces: Path,
    out: Path,
    workload: str = "mixed",
    load: float = 0.6,
    rows: int = 4000,
    window_seed: int = WINDOW_SEED,
    policy: str = "direct",
    preset: Preset = Preset.STRICT,
    installments: Literal["on", "off"] = "off",
    cap: int | None = None,
    engine: str = "8b",
    slower: float = 1.0,
    backends: int = 1,
    noise: float = NOISE_SIGMA,
    noise_seed: int = 1,
    label: str | None = None,
    set: Annotated[tuple[str, ...], Parameter(negative="")] = (),  # noqa: A002 - the name of the option
    json: Switch = False,
) -> int:
    """Replay a window of a study in virtual time and write a run folder, in seconds instead of an hour.

    Two runs that differ in `--noise-seed` alone are what two replays of the same traffic are: they tell what a
    comparison makes of luck.

    Parameters
    ----------
    traces
        Folder of the public traces, as for study.
    out
        Run folder; must not exist or be empty.
    workload
        mixed, azure, burst or conv.
    load
        Multiple of the saturated throughput of all backends.
    rows
        Requests of the window.
    window_seed
        Draws the window.
    policy
        direct, bounded-queue, static-lanes, lanewise or reference.
    preset
        Of lanewise.
    installments
        Of lanewise.
    cap
        Of lanewise: sequences per backend, fixed; else 32, adaptive.
    engine
        Profile of the simulated engine, or a file.
    slower
        Factor on every constant of the step time: a planted change.
    backends
        How many.
    noise
        Sigma of the lognormal factor on every step time.
    noise_seed
        Decides the noise, and nothing else.
    label
        What people call this run in a table.
    set
        NAME=VALUE that compare shows as changed. May be repeated.
    json
        Print the summary as one JSON document.
    """
    profile = load_profile(engine)
    _check(workload, policy, positive={"--load": load, "--slower": slower, "--rows": rows, "--backends": backends})
    if not 0 <= noise <= 2:
        raise UsageError(f"--noise {noise:g}: must be from 0 to 2")
    bench = Study(traces, profile, profile)
    lanes = LaneOptions(preset, None, installments == "on", cap, cap is None)
    trial = Trial(workload, load, policy, lanes, backends, 1, rows, window_seed)
    (window,) = bench.workload(workload).windows(1, rows, window_seed)
    folder = run_virtually(
        VirtualRun(
            trial=trial,
            profile=slowed(profile, slower),
            arrivals=window.arrivals(load * bench.saturated_per_s(workload) * backends),
            out=out,
            noise_sigma=noise,
            noise_seed=noise_seed,
            label=label,
            parameters=dict(_parameter(text) for text in set),
        )
    )
    summary = summarise(folder)
    if json:
        sys.stdout.write(jsonlib.dumps(summary.to_json(), allow_nan=False) + "\n")
    print_summary(summary, console(stderr=json))
    return Exit.DONE


def slowed(profile: EngineProfile, factor: float) -> EngineProfile:
    """Return an engine whose every step takes `factor` times as long."""
    constants = {name: getattr(profile, name) * factor for name in ("a", "b", "c", "d", "e")}
    return replace(profile, **constants)


def _check(workload: str, policy: str, positive: dict[str, float]) -> None:
    if workload not in workload_names():
        raise UsageError(f"--workload {workload}: not known; one of {', '.join(workload_names())}")
    if policy not in POLICIES:
        raise UsageError(f"--policy {policy}: not known; one of {', '.join(POLICIES)}")
    for name, value in positive.items():
        if not 0 < value < float("inf"):
            raise UsageError(f"{name} {value:g}: must be above 0")


def _parameter(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--set {text}: write NAME=VALUE")
    return name, value
