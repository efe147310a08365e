"""What concerns the whole process: its file limit, its garbage collector."""

import gc
import resource


def calm_the_collector() -> None:
    """Keep the garbage collector from holding every stream up: what lives for ever is not looked at again.

    A request makes a few hundred objects and almost no cycles, so the youngest generation may grow larger.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def raise_file_limit() -> None:
    """Each stream takes two file descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
