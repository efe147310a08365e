"""One visit: who is asked, and what all checks say of the answers."""

import asyncio
import datetime as dt
from dataclasses import dataclass
from pathlib import Path

from proxy.doctor.engine import check_engines
from proxy.doctor.facts import Case, Traffic
from proxy.doctor.finding import Diagnosis, Said, diagnosis
from proxy.doctor.gather import Asker, ask_engines, ask_proxy, ask_settings
from proxy.doctor.lengths import from_metrics, read_trace
from proxy.doctor.limits import check_limits
from proxy.doctor.traffic import check_traffic
from proxy.settings import Address, Settings

LOOK_S = 2.0
"""Between two looks at an engine's queue: longer than its longest step."""


@dataclass(frozen=True, slots=True)
class Visit:
    """What the doctor is called to."""

    settings: Settings | None
    """The configuration to judge; None: the one that the proxy at `admin` has in force."""
    admin: Address
    trace: Path | None = None
    """Where prompt lengths come from instead of the proxy's metrics."""
    apart_s: float = LOOK_S


def visit(called: Visit, today: dt.date) -> tuple[Diagnosis, str]:
    """Ask everybody and judge.

    Args:
        called: whom to ask.
        today: what day it is.

    Returns:
        The diagnosis, and one line about who was asked.

    Raises:
        GatherError: the settings are a proxy's, and it does not tell them.
        OSError: the trace cannot be read.
        ValueError: the trace holds something else.
    """
    traffic = None if called.trace is None else read_trace(called.trace)
    case = asyncio.run(gather(called, today, traffic))
    return diagnosis(judge(case)), _asked(case)


def judge(case: Case) -> list[Said]:
    """Return what all checks say of a case."""
    return [*check_engines(case), *check_limits(case), *check_traffic(case)]


async def gather(called: Visit, today: dt.date, traffic: Traffic | None) -> Case:
    """Collect what is known.

    Raises:
        GatherError: the settings are a proxy's, and it does not tell them.
    """
    async with Asker() as asker:
        settings, told_hash = called.settings, None
        if settings is None:
            settings, told_hash = await ask_settings(asker, called.admin)
        engines = await ask_engines(asker, settings, called.apart_s)
        proxy = await ask_proxy(asker, called.admin)
    if traffic is None and proxy is not None:
        traffic = from_metrics(proxy.metrics)
    return Case(settings, engines, today, proxy, traffic, told_hash)


def _asked(case: Case) -> str:
    up = sum(engine.error is None for engine in case.engines)
    proxy = "no running proxy" if case.proxy is None else f"the proxy at {case.proxy.address}"
    seen = "no traffic known" if case.traffic is None else f"{case.traffic.requests} prompts from {case.traffic.source}"
    return f"asked: {up} of {len(case.engines)} engines, {proxy}; {seen}; configuration {case.config}"
