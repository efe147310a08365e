"""The client cases: what the user of real client libraries sees, with `tests.clients` driving them.

The libraries are not part of the development environment; they are installed once, into `runs/clients`. Where they
cannot be had, or `FAULTS_CLIENTS=off` says so, the rows are not run.
"""

import asyncio
import os
from typing import Any

from tests.clients import engine
from tests.clients.environment import Environment, MissingError, environment
from tests.clients.matrix import Row, run
from tests.faults.case import NotRunError, case

_ANTHROPIC = ("anthropic", "anthropic_js")
_OPENAI = tuple(library for library in engine.LIBRARIES if library not in _ANTHROPIC)
_AS_EXPECTED = {"drivers": {"at_least": 2}, "other_than_expected": []}
_lock = asyncio.Lock()
_rows: dict[str, list[Row]] = {}


async def _shown(case_name: str, libraries: tuple[str, ...]) -> dict[str, Any]:
    """What those libraries show in a case; all cases of all libraries are run once, for the first that asks."""
    async with _lock:
        if not _rows:
            for row in await run(await _installed(), engine.LIBRARIES, engine.CASES):
                _rows.setdefault(row.case, []).append(row)
    rows = [row for row in _rows[case_name] if row.client in libraries]
    return {
        "drivers": len(rows),
        "other_than_expected": [f"{row.client}: {'; '.join(row.unmet)}" for row in rows if row.unmet],
        "shown": {f"{row.client} {row.version}": _short(row.got) for row in rows},
    }


async def _installed() -> Environment:
    if os.environ.get("FAULTS_CLIENTS") == "off":
        raise NotRunError("the client libraries, which FAULTS_CLIENTS=off leaves out")
    try:
        return await asyncio.to_thread(environment, make=True)
    except MissingError as error:
        raise NotRunError(f"the client libraries: {error}") from None


def _short(got: dict[str, Any]) -> str:
    status = got.get("status")
    words = [got.get("error") or "", str(status or ""), f"{got['attempts']}x", " ".join(map(str, got["gaps_s"]))]
    return " ".join(word for word in words if word)


@case(
    "CLI-00",
    "eleven client libraries against 429",
    _AS_EXPECTED,
    why="attempts and gaps as measured for each (tests/clients/matrix.py); Retry-After is obeyed",
    alone=True,
)
async def _attempts() -> dict[str, Any]:
    return await _shown("full", engine.LIBRARIES)


@case("CLI-01", "a stream that fails before its first byte", _AS_EXPECTED, why="a real status, not 200", alone=True)
async def _before() -> dict[str, Any]:
    return await _shown("failed", engine.LIBRARIES)


@case(
    "CLI-02",
    "a chat stream that fails after its first byte",
    _AS_EXPECTED,
    why="an error event, then an unclean close: it raises in every library of the OpenAI family",
    alone=True,
)
async def _after() -> dict[str, Any]:
    return await _shown("cut", _OPENAI)


@case(
    "CLI-03",
    "a stream on /v1/messages that fails after its first byte",
    _AS_EXPECTED,
    why="event: error, in its own dialect: it raises",
    alone=True,
)
async def _messages() -> dict[str, Any]:
    return await _shown("cut", _ANTHROPIC)


@case(
    "CLI-04",
    "comments as keep-alive in a long prefill",
    _AS_EXPECTED,
    why="taken by all streaming clients",
    alone=True,
)
async def _comments() -> dict[str, Any]:
    return await _shown("comments", engine.LIBRARIES)
