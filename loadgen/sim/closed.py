"""A closed loop against one pure engine in virtual time: always so many requests in it, one leaves, the next comes."""

from collections.abc import Sequence

import numpy as np

from loadgen.knee import Level
from loadgen.sim.engine import Engine, EngineRequest
from loadgen.sim.nouns import EngineProfile, Noise

EDGE = 10
"""The first and the last of so many parts of the completions are not counted: filling up and running dry."""


def closed_loop(
    profile: EngineProfile, lengths: Sequence[tuple[int, int]], concurrency: int, noise: Noise | None = None
) -> Level:
    """Run all requests with `concurrency` of them in the engine.

    Args:
        profile: of the engine.
        lengths: prompt and output tokens, in order.
        concurrency: how many are in the engine.
        noise: source of the step noise, where the profile has some.
    """
    engine, now, sent = Engine(profile, noise), 0.0, 0
    begun: list[float] = []
    first: dict[int, float] = {}
    end: dict[int, float] = {}
    while len(end) < len(lengths):
        while sent < len(lengths) and sent - len(end) < concurrency:
            engine.submit(now, EngineRequest(sent, *lengths[sent]))
            begun.append(now)
            sent += 1
        step = engine.step(now)
        assert step is not None, "requests are left and the engine has no work"
        now += step.duration_s
        first.update((int(name), now) for name in step.first)
        end.update((int(name), now) for name in step.finished)
    edge = len(lengths) // EDGE
    counted = sorted(end, key=end.__getitem__)[edge : len(lengths) - edge]
    span = max(1e-9, end[counted[-1]] - end[counted[0]])
    tpots = [(end[name] - first[name]) / (lengths[name][1] - 1) for name in counted if lengths[name][1] > 1]
    return Level(
        asked=concurrency,
        in_flight=concurrency,
        requests=len(counted),
        per_s=(len(counted) - 1) / span,
        tokens_per_s=sum(lengths[name][1] for name in counted) / span,
        tpot_p95_s=float(np.percentile(tpots, 95)) if tpots else float("nan"),
        ttft_p95_s=float(np.percentile([first[name] - begun[name] for name in counted], 95)),
        failed_share=0.0,
    )
