"""What concerns the whole process: its log, its file limit, its garbage collector."""

import gc
import logging
import resource
import sys


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


class OneLine(logging.Formatter):
    """One event, one line: control characters in a message are escaped."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """Write the message (logging)."""
        text = super().formatMessage(record)
        return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def set_up_log() -> None:
    """Write the log to stderr, unless somebody has set it up already."""
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(message)s"))
    root.addHandler(handler)
    root.setLevel(logging.INFO)
