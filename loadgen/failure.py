"""Why a command of `lanewise-load` stops, as an exit code and one sentence for people."""

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of `lanewise-load`; a contract with scripts."""

    DONE = 0
    RUNTIME = 1
    """The target died, a port is in use, a disk is full."""
    USAGE = 2
    """The request itself is wrong: an option, a configuration key, a trace line."""
    GATE = 3
    """A gate failed: roll back, or a demo without effect."""
    INVALID = 4
    """The measurement is invalid, or a comparison is refused."""
    INTERRUPTED = 130


class StopError(Exception):
    """A stop that people can act on: the message says what was wrong, where, what is allowed, what to do."""

    def __init__(self, message: str, code: Exit = Exit.RUNTIME) -> None:
        super().__init__(message)
        self.code = code


class UsageError(StopError):
    """The request itself is wrong; nothing was started and nothing was written."""

    def __init__(self, message: str) -> None:
        super().__init__(message, Exit.USAGE)


class RefusedError(StopError):
    """The numbers exist and must not be used: invalid measurement, or conditions that differ."""

    def __init__(self, message: str) -> None:
        super().__init__(message, Exit.INVALID)
