"""All decoding sequences together: a step costs the same however many they are.

Their number and the sum of their contexts are two integers. What happens to a single one, a new KV block or its last
token, is filed under the number of the step when it is due. An entry counts only while the job still says the same
number; others are left over from a preemption or an abort.
"""

from loadgen.sim.jobs import Job, Stage


class Decoding:
    """Number, contexts and calendar of the decoding sequences."""

    def __init__(self, block_size: int) -> None:
        self.count = 0
        self.context = 0
        """Sum of the contexts before the coming step, in tokens."""
        self._block_size = block_size
        self._grow: dict[int, list[Job]] = {}
        self._finish: dict[int, list[Job]] = {}

    def join(self, job: Job, number: int) -> None:
        """Let `job`, whose prompt is computed, decode from step `number` on."""
        job.stage = Stage.DECODE
        job.start = number
        self.count += 1
        self.context += job.total
        job.finish_at = number - 1 + job.request.output_tokens - job.generated
        self._finish.setdefault(job.finish_at, []).append(job)
        self.file_growth(job, number + job.blocks * self._block_size - job.total)

    def leave(self, job: Job, number: int) -> None:
        """Take `job` out before step `number`."""
        self.count -= 1
        self.context -= job.context(number)
        job.finish_at = job.grow_at = 0

    def advance(self, tokens: int) -> None:
        """Count the tokens of one step, one per sequence that took part."""
        self.context += tokens

    def file_growth(self, job: Job, number: int) -> None:
        """Note that `job` needs one more block in step `number`, unless it ends before."""
        job.grow_at = number
        if number <= job.finish_at:
            self._grow.setdefault(number, []).append(job)

    def growing(self, number: int) -> list[Job]:
        """Return whose next token needs one more block in step `number`."""
        due = self._grow.pop(number, None)
        return [job for job in due if job.grow_at == number] if due else []

    def finishing(self, number: int) -> list[Job]:
        """Return whose last token comes in step `number`."""
        due = self._finish.pop(number, None)
        return [job for job in due if job.finish_at == number] if due else []
