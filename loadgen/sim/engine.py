"""The simulated engine: continuous batching with chunked prefill, one step at a time, without a clock.

The structure is vLLM V1's scheduler. Per step, with a budget of `max_num_batched_tokens`: running requests first, in
admission order (a decode takes one token, an unfinished prompt takes what is left); then waiting requests while
budget, sequences and KV last, never passing the first one that does not fit. KV blocks are allocated as tokens are
computed; when none is left, the last running request is thrown back to the front of the queue and computed again, and
nobody is admitted in that step. Every token of a step comes at its end.

Decoding sequences cost nothing per step: their number and the sum of their contexts are kept as two integers, and
what happens to one of them (a new KV block, its last token) is filed under the number of the step when it is due.
"""

from collections.abc import Iterator, Sequence

from loadgen.sim.decoding import Decoding
from loadgen.sim.jobs import Job, Stage, WaitingQueue
from loadgen.sim.kv import KvCache
from loadgen.sim.nouns import Counters, EngineProfile, EngineRequest, Gauges, Noise, RequestId, SchedulingPolicy, Step

__all__ = [
    "Counters",
    "Engine",
    "EngineProfile",
    "EngineRequest",
    "Gauges",
    "Noise",
    "QueueFull",
    "RequestId",
    "SchedulingPolicy",
    "Step",
]


class QueueFull(Exception):  # noqa: N818  (a state of the engine, answered with 503, not a fault)
    """The engine's own admission limit refused a request.

    Attributes:
        limit: the flag that refused it, `max_num_queued_reqs` or `max_num_queued_tokens`.
    """

    def __init__(self, limit: str, value: int) -> None:
        super().__init__(f"the engine is full: {limit} is {value}")
        self.limit = limit


class Engine:
    """One engine. Call `step` again `duration_s` after the last one, or when something was submitted to an idle one.

    Args:
        profile: constants, limits and flags.
        noise: source of the step noise; needed when `profile.noise_sigma` is above 0.

    Raises:
        ValueError: the profile asks for noise and there is no source.
    """

    def __init__(self, profile: EngineProfile, noise: Noise | None = None) -> None:
        if profile.noise_sigma > 0 and noise is None:
            raise ValueError(f"profile {profile.name!r} has noise_sigma above 0, but the engine got no random source")
        self.profile = profile
        self.counters = Counters()
        self.kv = KvCache(profile.kv_blocks)
        self._noise = noise
        self._number = 0
        self._arrivals = 0
        self._admissions = 0
        self._known: dict[RequestId, Job] = {}
        self._waiting = WaitingQueue(profile.scheduling_policy)
        self._prefill_backlog = 0
        self._running: dict[RequestId, Job] = {}
        self._prefills: dict[RequestId, Job] = {}
        self._decoding = Decoding(profile.block_size)
        self._chunked: list[Job] = []
        self._aborts: list[RequestId] = []
        self._gauges = Gauges()
        self._last = Step()

    # --- what goes in

    def submit(self, now: float, request: EngineRequest) -> None:
        """Put a request into the waiting queue; the next step may take it.

        Args:
            now: seconds on the driver's clock (kept for symmetry: order of calls is order of arrival).
            request: an id that no live request has, at least one prompt and one output token.

        Raises:
            ValueError: the request can never run here; the sentence says why.
        """
        del now
        self._check(request)
        self._arrivals += 1
        job = Job(request, self._arrivals)
        self._known[request.id] = job
        self._prefill_backlog += request.prompt_tokens
        self._waiting.push(job)

    def check_admission(self, sequences: int = 1) -> None:
        """Apply `max_num_queued_reqs` and `max_num_queued_tokens`; whoever wants them calls this before `submit`.

        Args:
            sequences: how many requests are about to be submitted together (`n`).

        Raises:
            QueueFull: over a limit; counted.
        """
        requests, tokens = self.profile.max_num_queued_reqs, self.profile.max_num_queued_tokens
        if requests is not None and len(self._known) + sequences > requests:
            self.counters.rejected_requests += 1
            raise QueueFull("max_num_queued_reqs", requests)
        if tokens is not None and self._prefill_backlog >= tokens:
            self.counters.rejected_tokens += 1
            raise QueueFull("max_num_queued_tokens", tokens)

    def abort(self, request_id: RequestId) -> None:
        """Forget a request at the next step boundary. Unknown and finished ids are ignored."""
        self._aborts.append(request_id)

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        return bool(self._known)

    # --- what comes out

    def step(self, now: float) -> Step | None:
        """Do one step.

        Args:
            now: when it begins, seconds; only documents the caller's clock, the engine keeps none.

        Returns:
            What the step did, with its duration; None when there is nothing to do.
        """
        del now
        self._apply_aborts()
        if not self._known:
            self._gauges = Gauges()
            return None
        self._number += 1
        step = Step()
        self._schedule(step)
        step.decodes = self._decoding.count
        step.duration_s = self._duration(step)
        self._gauges = Gauges(len(self._running), len(self._waiting), 1 - self.kv.free / self.kv.blocks)
        self._last = step
        self._complete(step)
        return step

    def got_token(self) -> Iterator[RequestId]:
        """Yield every request that got a token in the latest step, first tokens included; valid until the next one."""
        for job in self._running.values():
            if job.stage is Stage.DECODE:
                yield job.request.id
        yield from self._last.finished

    @property
    def gauges(self) -> Gauges:
        """Running, waiting and KV usage while the latest step runs."""
        return self._gauges

    def reset_prefix_cache(self) -> None:
        """Drop all cached blocks that no running request holds."""
        self.kv.forget()

    # --- checks

    def _check(self, request: EngineRequest) -> None:
        profile, asked = self.profile, request.prompt_tokens + request.output_tokens
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError(f"request {request.id!r}: prompt and output need at least one token each")
        if request.id in self._known:
            raise ValueError(f"request {request.id!r} is already in the engine")
        if asked > profile.max_model_len:
            raise ValueError(
                f"request {request.id!r}: {asked} tokens are more than the context length of {profile.max_model_len}"
            )
        if asked > profile.kv_tokens:
            raise ValueError(
                f"request {request.id!r}: {asked} tokens are more than the whole KV cache of {profile.kv_tokens}"
            )

    # --- one step: running first, then waiting

    def _schedule(self, step: Step) -> None:
        growing = self._decoding.growing(self._number)
        if growing or self._prefills:
            left = self._serve_running(growing, step)
        else:
            left = self.profile.max_num_batched_tokens - self._decoding.count
        if self._waiting and not step.preempted:
            self._serve_waiting(left, step)

    def _serve_running(self, growing: list[Job], step: Step) -> int:
        """Serve all that runs, in admission order; return the budget that is left.

        Decodes can be counted off the budget first, wherever they stand: whoever was admitted behind unfinished prompts
        got a token then, and what those take of a step never grows after it.
        """
        jobs = growing + list(self._prefills.values())
        if len(jobs) > 1:
            jobs.sort(key=_by_admission)
        for job in jobs:
            if job.stage is Stage.PREFILL:
                self._compute(job, self._budget_left(step), step)
            elif job.stage is Stage.DECODE:
                self._grow_by_one(job, step)
        return self._budget_left(step)

    def _budget_left(self, step: Step) -> int:
        return self.profile.max_num_batched_tokens - self._decoding.count - step.prefill_tokens

    def _cut(self, tokens: int) -> int:
        limit = self.profile.long_prefill_token_threshold
        if limit and tokens > limit and len(self._running) + len(self._waiting) > 1:
            return limit
        return tokens

    def _compute(self, job: Job, budget: int, step: Step) -> int:
        """Put the next chunk of a running prompt into the step; its size is returned, 0 when it was preempted."""
        size = min(self._cut(job.rest), budget)
        if size <= 0 or not self._allocate(job, job.computed + size, step):
            return 0
        begin, end = job.computed, job.computed + size
        job.computed, job.chunk = end, size
        step.prefill_tokens += size
        step.attention += size * (begin + size / 2)
        if begin < job.lost:
            self.counters.recomputed_tokens += min(job.lost, end) - begin
        self._chunked.append(job)
        if job.request.hashes is not None and self.profile.prefix_caching:
            self._publish(job, job.request.hashes, begin, end)
        return size

    def _publish(self, job: Job, hashes: Sequence[int], begin: int, end: int) -> None:
        size = self.profile.block_size
        full = min(end, job.request.prompt_tokens) // size
        for key in hashes[begin // size : full]:
            if self.kv.store(key):
                job.held.append(key)

    def _allocate(self, job: Job, tokens: int, step: Step) -> bool:
        """Give `job` the blocks for its first `tokens`; False when it had to be preempted itself."""
        need = -(-tokens // self.profile.block_size) - job.blocks
        while need > 0 and not self.kv.take(need):
            victim = self._victim()
            self._preempt(victim, step)
            if victim is job:
                return False
        job.blocks += max(0, need)
        return True

    def _grow_by_one(self, job: Job, step: Step) -> None:
        if self._allocate(job, job.blocks * self.profile.block_size + 1, step):
            self._decoding.file_growth(job, self._number + self.profile.block_size)

    def _victim(self) -> Job:
        if self.profile.scheduling_policy is SchedulingPolicy.PRIORITY:
            return max(self._running.values(), key=Job.rank)
        return next(reversed(self._running.values()))

    def _preempt(self, job: Job, step: Step) -> None:
        if job.stage is Stage.DECODE:
            job.lost = job.context(self._number)
            job.generated += self._number - job.start
            self._decoding.leave(job, self._number)
            self._prefill_backlog += job.request.prompt_tokens
        else:
            self._take_out_chunk(job, step)
            job.lost = max(job.lost, job.computed)
        self._drop(job)
        job.total = job.request.prompt_tokens + job.generated
        job.computed = 0
        self._waiting.push(job, front=True)
        self.counters.preemptions += 1
        step.preempted.append(job.request.id)

    def _take_out_chunk(self, job: Job, step: Step) -> None:
        """Undo a chunk of this very step (only a preemption by priority meets one)."""
        if job.chunk:
            job.computed -= job.chunk
            step.prefill_tokens -= job.chunk
            step.attention -= job.chunk * (job.computed + job.chunk / 2)
            job.chunk = 0
            self._chunked.remove(job)

    def _drop(self, job: Job) -> None:
        """Take a running request off the engine and give its blocks back."""
        del self._running[job.request.id]
        self._prefills.pop(job.request.id, None)
        self.kv.release(job.blocks - len(job.held), job.held)
        job.blocks, job.held = 0, []

    # --- waiting

    def _serve_waiting(self, left: int, step: Step) -> None:
        while left > 0 and len(self._running) < self.profile.max_num_seqs:
            job = self._waiting.head()
            if job is None:
                return
            found = self._found(job)
            if not self._fits(job, found, min(self._cut(job.total - found * self.profile.block_size), left)):
                return
            self._start(job, found, step)
            left -= self._compute(job, left, step)

    def _found(self, job: Job) -> int:
        """Whole blocks of the prompt in the prefix cache; at least one token always has to be computed."""
        hashes = job.request.hashes
        if hashes is None or not self.profile.prefix_caching:
            return 0
        return self.kv.match(hashes, (job.total - 1) // self.profile.block_size)

    def _fits(self, job: Job, found: int, chunk: int) -> bool:
        size = self.profile.block_size
        tokens = job.total if self.profile.reserve_full_isl else found * size + chunk
        need = -(-tokens // size) - found
        if found and job.request.hashes is not None:
            need += self.kv.idle_among(job.request.hashes[:found])
        return need <= self.kv.free

    def _start(self, job: Job, found: int, step: Step) -> None:
        self._waiting.leave(job, Stage.PREFILL)
        self._admissions += 1
        job.order = self._admissions
        self._running[job.request.id] = self._prefills[job.request.id] = job
        job.computed, job.blocks = found * self.profile.block_size, found
        if job.request.hashes is not None and self.profile.prefix_caching:
            job.held = list(job.request.hashes[:found])
            self.kv.hold(job.held)
            self.counters.prefix_queries += job.total
            self.counters.prefix_hits += job.computed
        step.admitted.append((job.request.id, job.computed))

    # --- the end of a step

    def _duration(self, step: Step) -> float:
        profile = self.profile
        seconds = profile.step_s(step.decodes, step.prefill_tokens, self._decoding.context, step.attention)
        if self._noise is not None and profile.noise_sigma > 0:
            sigma = profile.noise_sigma
            seconds *= self._noise.lognormvariate(-sigma * sigma / 2, sigma)
        return seconds

    def _complete(self, step: Step) -> None:
        counters = self.counters
        counters.steps += 1
        counters.busy_s += step.duration_s
        counters.prefill_tokens += step.prefill_tokens
        counters.generation_tokens += step.decodes
        self._decoding.advance(step.decodes)
        for job in self._decoding.finishing(self._number):
            self._decoding.leave(job, self._number + 1)
            self._end(job, step)
        for job in self._chunked:
            job.chunk = 0
            if job.computed == job.total:
                self._end_prefill(job, step)
        self._chunked.clear()

    def _end_prefill(self, job: Job, step: Step) -> None:
        del self._prefills[job.request.id]
        self._prefill_backlog -= job.request.prompt_tokens
        job.generated += 1
        self.counters.generation_tokens += 1
        if job.generated == 1:
            self.counters.prompt_tokens += job.request.prompt_tokens
            step.first.append(job.request.id)
        if job.generated == job.request.output_tokens:
            self._end(job, step)
        else:
            self._decoding.join(job, self._number + 1)

    def _end(self, job: Job, step: Step) -> None:
        self._drop(job)
        job.stage = Stage.GONE
        del self._known[job.request.id]
        self.counters.finished += 1
        step.finished.append(job.request.id)

    # --- aborts

    def _apply_aborts(self) -> None:
        for request_id in self._aborts:
            job = self._known.pop(request_id, None)
            if job is not None:
                self._abort(job)
        self._aborts.clear()

    def _abort(self, job: Job) -> None:
        if job.stage is Stage.DECODE:
            self._decoding.leave(job, self._number + 1)
        else:
            self._prefill_backlog -= job.request.prompt_tokens
        if job.stage is Stage.WAITING:
            self._waiting.leave(job, Stage.GONE)
        else:
            self._drop(job)
            job.stage = Stage.GONE
        self.counters.aborted += 1


def _by_admission(job: Job) -> int:
    return job.order
