"""Replay: from options to a run folder. `replay` is synchronous and runs its own event loop."""

from collections.abc import Callable

from loadgen.journal import RunFolder
from loadgen.options import Progress, ReplayOptions


def replay(options: ReplayOptions, *, on_progress: Callable[[Progress], None] | None = None) -> RunFolder:
    """Send the requests at their due times and write the run folder.

    Runs its own event loop (uvloop), so call it from a thread without one. On the main thread it handles Ctrl-C:
    once stops sending, drains within `drain_s` and writes the result; twice stops at once and writes it. The folder
    is complete only when `RunFolder.manifest()["complete"]` is true; `interrupted` says why it is not.

    Args:
        options: what to send, where to, and into which folder.
        on_progress: called in the event loop about five times a second; must return quickly.

    Returns:
        The run folder, readable with `loadgen.summarise.summarise`.

    Raises:
        UsageError: an option, a trace line or the folder is wrong; nothing was sent or written.
        StopError: the target does not answer.
    """
    raise NotImplementedError
