"""Background tasks that are not lost: a reference is kept and a crash is logged."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

_log = logging.getLogger("lanewise")
_alive: set[asyncio.Task[Any]] = set()


def spawn(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Start `work` in the background of the running loop.

    Args:
        work: the coroutine to run.
        name: what the log calls it when it crashes.

    Returns:
        The task, so that its owner can cancel it at shutdown.
    """
    task = asyncio.get_running_loop().create_task(work, name=name)
    _alive.add(task)
    task.add_done_callback(_finished)
    return task


def _finished(task: asyncio.Task[None]) -> None:
    _alive.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("background task %s ended by %r", task.get_name(), error, exc_info=error)
