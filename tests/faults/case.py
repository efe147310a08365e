"""A case: what is sent or broken, what must be observed, and the function that observes it."""

import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tests.faults.rules import Rule, unmet

KINDS = ("raw", "json", "semantics", "lifecycle", "admission", "operations", "clients", "loadgen")
Observe = Callable[[], Awaitable[dict[str, Any]]]


@dataclass(frozen=True)
class Case:
    """One row of the result table before it ran."""

    id: str
    kind: str
    input: str
    expected: Rule
    observe: Observe
    why: str = ""
    """The expectation in words, or what about it is scaled."""
    alone: bool = False
    """Measures time or fills the machine: nothing else runs beside it."""


@dataclass(frozen=True)
class NotRunError(Exception):
    """The case cannot be observed here; says what it needs. It counts as failed."""

    needs: str
    seen: dict[str, Any] | None = None
    """What could be observed nevertheless."""


CASES: dict[str, Case] = {}


def case(
    identity: str, given: str, expected: Rule, *, why: str = "", alone: bool = False
) -> Callable[[Observe], Observe]:
    """Register an async function without arguments as the observation of a case."""

    def register(observe: Observe) -> Observe:
        add(Case(identity, _KIND_OF[identity.partition("-")[0]], given, expected, observe, why, alone))
        return observe

    return register


def add(one: Case) -> None:
    """Register a case.

    Raises:
        ValueError: its id is taken.
    """
    if one.id in CASES:
        raise ValueError(f"two cases are called {one.id}")
    CASES[one.id] = one


_KIND_OF = {
    "RAW": "raw",
    "JSON": "json",
    "INT": "semantics",
    "LIFE": "lifecycle",
    "ADM": "admission",
    "OPS": "operations",
    "CLI": "clients",
    "LG": "loadgen",
}


@dataclass(frozen=True)
class Row:
    """A case after it ran."""

    case: Case
    got: dict[str, Any]
    unmet: list[str]
    seconds: float

    @property
    def passed(self) -> bool:
        return not self.unmet

    def as_json(self) -> dict[str, Any]:
        case = self.case
        return {
            "id": case.id,
            "kind": case.kind,
            "input": case.input,
            "why": case.why,
            "expected": case.expected,
            "got": self.got,
            "passed": self.passed,
            "unmet": self.unmet,
            "seconds": round(self.seconds, 2),
        }


async def run(one: Case) -> Row:
    """Run a case. One that measures time gets three tries: what else the machine does is not the proxy's fault."""
    row = await _try(one)
    for number in (2, 3):
        if row.passed or not one.alone or "not run" in row.got:
            break
        row = await _try(one)
        row.got["try"] = number
    return row


async def _try(one: Case) -> Row:
    """Observe, and compute the verdict from what was observed. A crash of the observation is an observation too."""
    began = time.monotonic()
    try:
        got = await one.observe()
        failed: list[str] = []
    except NotRunError as error:
        got = {"not run": f"needs {error.needs}", **(error.seen or {})}
        failed = [f"not run: needs {error.needs}"]
    except Exception as error:  # noqa: BLE001 - one broken case must not hide the others
        where = traceback.extract_tb(error.__traceback__)
        inside = [
            f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in where if "faults" in frame.filename
        ]
        got = {"crashed": f"{type(error).__name__}: {error}"[:600], "at": inside[-3:]}
        failed = [f"the observation failed with {type(error).__name__}: {error}"[:600]]
    return Row(one, got, failed or unmet(one.expected, got), time.monotonic() - began)
