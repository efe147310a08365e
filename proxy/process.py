"""What concerns the whole process: its file limit, its garbage collector."""

import ctypes
import gc
import resource
import signal

_PR_SET_PDEATHSIG = 1


def calm_the_collector() -> None:
    """Keep the garbage collector from holding every stream up: what lives for ever is not looked at again.

    A request makes a few hundred objects and almost no cycles, so the youngest generation may grow larger.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def end_with_parent() -> None:
    """Ask the kernel for a SIGTERM when the process that started this one is gone."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def raise_file_limit() -> None:
    """Each stream takes two file descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
