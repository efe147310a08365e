"""An engine that schedules prefill with perfect knowledge: the yardstick that no real engine offers."""

import math
from dataclasses import replace

from loadgen.sim.engine import Engine
from loadgen.sim.jobs import Job, Stage
from loadgen.sim.nouns import EngineProfile, Noise, Step

STEP_LIMIT_S = 0.08
"""Steps are held under this by the size of the prefill in them: it keeps TPOT under 100 ms."""
SMALLEST_CHUNK = 64
"""Tokens of prefill that a step takes even when its decodes alone last longer, so that no prompt starves."""


class SrptEngine(Engine):
    """Shortest remaining prefill first, over running and waiting prompts alike, in steps of bounded length.

    Args:
        profile: constants and limits; its own prefill threshold is not used.
        step_limit_s: longest step that prefill may make, seconds.
        noise: source of the step noise.
    """

    def __init__(self, profile: EngineProfile, step_limit_s: float = STEP_LIMIT_S, noise: Noise | None = None) -> None:
        super().__init__(replace(profile, long_prefill_token_threshold=0, prefix_caching=False), noise)
        self._limit = step_limit_s

    def _schedule(self, step: Step) -> None:
        for job in self._decoding.growing(self._number):
            if job.stage is Stage.DECODE:
                self._grow_by_one(job, step)
        for job in sorted([*self._prefills.values(), *self._waiting], key=_remaining):
            size = min(self._budget_left(step), self._affordable(job, step))
            if size <= 0 or step.preempted or not self._may_run(job, step):
                break
            self._compute(job, size, step)

    def _may_run(self, job: Job, step: Step) -> bool:
        """Admit a waiting job when it fits; one in prefill may go on."""
        if job.stage is Stage.PREFILL:
            return True
        if len(self._running) >= self.profile.max_num_seqs or not self._fits(job, 0, job.total):
            return False
        self._start(job, 0, step)
        return True

    def _affordable(self, job: Job, step: Step) -> int:
        """Return the prompt tokens of `job` that still keep the step under its limit."""
        profile = self.profile
        spent = profile.step_s(self._decoding.count, step.prefill_tokens, self._decoding.context, step.attention)
        spare = max(0.0, self._limit - spent)
        linear = profile.c + profile.e * job.computed
        root = math.sqrt(linear * linear + 2 * profile.e * spare)
        # the positive root of e/2 x² + linear x = spare
        tokens = int(2 * spare / (root + linear)) if root else job.rest
        return tokens or (0 if step.prefill_tokens else SMALLEST_CHUNK)


def _remaining(job: Job) -> tuple[int, int]:
    return job.rest, job.arrival
