"""Options of a replay that several load generators share."""

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Group, Parameter

from loadgen.failure import UsageError
from loadgen.flags import seconds
from loadgen.shards.nouns import WHOLE, Shard, read_shard


@Parameter(name="*", group=Group("Several load generators"))
@dataclass(frozen=True, slots=True, kw_only=True)
class ShardOptions:
    """Which share of the plan is sent, and how the generators find one start."""

    shard: str | None = None
    """INDEX/COUNT, the index from 0: send this share of the plan. All generators get the same other options."""
    barrier: str | None = None
    """redis://HOST:PORT: all wait there for each other and start by its clock. It gives the common salt."""
    barrier_name: str | None = None
    """Tells runs apart that use one Redis at the same time; None: the hash of the plan."""
    barrier_wait_s: Annotated[float, seconds("barrier-wait")] = 600.0
    """Longest wait for the others."""
    start_at: float | None = None
    """Instead of a barrier: when to start, Unix seconds on this machine's wall clock. Needs `--salt`, equal on all."""

    def read(self) -> Shard:
        """Return the share.

        Raises:
            UsageError: it is none, or barrier and start do not go together with it.
        """
        if self.barrier is not None and self.start_at is not None:
            raise UsageError("--barrier and --start-at: both say when to start; leave out one of the two")
        if self.shard is None:
            if self.barrier is not None:
                raise UsageError("--barrier: says when several start together; say which of them this is with --shard")
            return WHOLE
        shard = read_shard(self.shard)
        if shard.of > 1 and self.barrier is None and self.start_at is None:
            raise UsageError(f"--shard {self.shard}: the others start when? Give --barrier, or --start-at and --salt")
        if self.barrier is not None and not self.barrier.startswith(("redis://", "rediss://", "unix://")):
            raise UsageError("--barrier: write redis://HOST:PORT (rediss:// with TLS, unix:// for a socket)")
        return shard


ALONE = ShardOptions()
