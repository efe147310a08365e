"""Counts the asyncio tasks of the process under test: a thread of its own writes the number into a file now and then.

Python imports `sitecustomize` by itself when it starts; `SOAK_TASKS` names the file.
"""

import asyncio
import os
import threading
import time
from pathlib import Path


def _tasks() -> int:
    tasks = asyncio.tasks
    known = getattr(tasks, "_all_tasks", None)  # up to 3.11
    if known is None:
        return len(tasks._scheduled_tasks) + len(tasks._eager_tasks)  # type: ignore[attr-defined]
    return len(known)


def _count(path: Path) -> None:
    while True:
        time.sleep(1.0)
        path.with_suffix(".new").write_text(str(_tasks()), "ascii")
        path.with_suffix(".new").replace(path)


if "SOAK_TASKS" in os.environ:
    threading.Thread(target=_count, args=(Path(os.environ["SOAK_TASKS"]),), daemon=True).start()
