"""One request inside the engine, and the queue of those that wait."""

import heapq
from collections import deque
from collections.abc import Iterator
from enum import Enum, auto

from loadgen.sim.nouns import EngineRequest, SchedulingPolicy


class Stage(Enum):
    """Where a request stands."""

    WAITING = auto()
    PREFILL = auto()
    DECODE = auto()
    GONE = auto()


class Job:
    """What the engine keeps of one request: what vLLM calls a sequence."""

    __slots__ = (
        "arrival",
        "blocks",
        "chunk",
        "computed",
        "finish_at",
        "generated",
        "grow_at",
        "held",
        "lost",
        "order",
        "request",
        "stage",
        "start",
        "total",
    )

    def __init__(self, request: EngineRequest, arrival: int) -> None:
        self.request = request
        self.arrival = arrival
        self.stage = Stage.WAITING
        self.order = 0
        """Rank of its admission."""
        self.total = request.prompt_tokens
        """Tokens to compute before its next one; a preemption adds those already generated."""
        self.computed = 0
        """Of these; while decoding: the context in step `start`."""
        self.generated = 0
        """While decoding: tokens generated before step `start`."""
        self.start = 0
        """Number of its first decode step."""
        self.finish_at = 0
        """Number of the step of its last token."""
        self.grow_at = 0
        """Number of the step that needs one more block."""
        self.blocks = 0
        self.held: list[int] = []
        """Hashes of its cached blocks, in prompt order."""
        self.chunk = 0
        """Its prompt tokens in the step being put together."""
        self.lost = 0
        """Tokens that a preemption threw away."""

    @property
    def rest(self) -> int:
        """Prompt tokens still to compute."""
        return self.total - self.computed

    def context(self, number: int) -> int:
        """Return what a decoding job has in the KV cache before step `number`."""
        return self.computed + number - self.start

    def rank(self) -> tuple[int, int]:
        """Return the place by priority; the largest is preempted first."""
        return self.request.priority, self.arrival


class WaitingQueue:
    """The engine's own queue: first come first served, or by priority.

    A job that is no longer waiting is passed over when it comes to the head, so taking one out costs nothing; `leave`
    keeps the count right.
    """

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._by_priority = policy is SchedulingPolicy.PRIORITY
        self._line: deque[Job] = deque()
        self._heap: list[tuple[int, int, Job]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Job]:
        everyone = [entry[2] for entry in self._heap] if self._by_priority else self._line
        return (job for job in everyone if job.stage is Stage.WAITING)

    def push(self, job: Job, *, front: bool = False) -> None:
        """Let `job` wait; at the front when it was preempted (by priority its place decides)."""
        job.stage = Stage.WAITING
        self._count += 1
        if self._by_priority:
            heapq.heappush(self._heap, (*job.rank(), job))
        elif front:
            self._line.appendleft(job)
        else:
            self._line.append(job)

    def head(self) -> Job | None:
        """Return who is next."""
        heap, line = self._heap, self._line
        while heap and heap[0][2].stage is not Stage.WAITING:
            heapq.heappop(heap)
        while line and line[0].stage is not Stage.WAITING:
            line.popleft()
        if heap:
            return heap[0][2]
        return line[0] if line else None

    def leave(self, job: Job, stage: Stage) -> None:
        """Take `job` out, whatever for."""
        head = self.head()
        job.stage = stage
        self._count -= 1
        if head is job:
            self.head()
        elif stage is not Stage.GONE:
            self._forget(job)

    def _forget(self, job: Job) -> None:
        """Remove the entry of a job that was not at the head and may wait again."""
        if self._by_priority:
            self._heap = [entry for entry in self._heap if entry[2] is not job]
            heapq.heapify(self._heap)
        else:
            self._line.remove(job)
