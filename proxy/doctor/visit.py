"""One visit: who is asked, and what all checks say of the answers."""

import asyncio
import datetime as dt
import os
import time
from dataclasses import dataclass
from pathlib import Path

from proxy.credentials import Credentials
from proxy.credentials import read as read_credentials
from proxy.doctor.engine import check_engines
from proxy.doctor.facts import Case, Guards, Traffic
from proxy.doctor.finding import Diagnosis, Said, diagnosis
from proxy.doctor.gather import Asker, ask_engines, ask_proxy, ask_settings
from proxy.doctor.lengths import from_metrics, read_trace
from proxy.doctor.limits import check_limits
from proxy.doctor.security import check_guards
from proxy.doctor.traffic import check_traffic
from proxy.floors import too_old
from proxy.settings import Address, ConfigurationError, Settings

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
    admin_key: str | None = None
    """Key of the admin listener there."""


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


def look_at_guards(settings: Settings, *, own: bool) -> tuple[Credentials, Guards]:
    """Read what a configuration names, as far as we may, and look at what is installed.

    Args:
        settings: the configuration.
        own: it is given here, not told by a proxy.
    """
    try:
        credentials = read_credentials(settings, os.environ)
    except ConfigurationError as error:
        return Credentials(), Guards(too_old(), unread=error.sentences, own=own)
    return credentials, Guards(too_old(), doubts=credentials.doubts(settings, time.time()), own=own)


def judge(case: Case) -> list[Said]:
    """Return what all checks say of a case."""
    return [*check_engines(case), *check_limits(case), *check_traffic(case), *check_guards(case.guards)]


async def gather(called: Visit, today: dt.date, traffic: Traffic | None) -> Case:
    """Collect what is known.

    Raises:
        GatherError: the settings are a proxy's, and it does not tell them.
    """
    async with Asker(admin_key=called.admin_key) as asker:
        settings, told_hash = called.settings, None
        if settings is None:
            settings, told_hash = await ask_settings(asker, called.admin)
        credentials, guards = look_at_guards(settings, own=called.settings is not None)
        asker.let_in(settings, credentials.backends)
        engines = await ask_engines(asker, settings, called.apart_s)
        proxy = await ask_proxy(asker, called.admin)
    if traffic is None and proxy is not None:
        traffic = from_metrics(proxy.metrics)
    return Case(settings, engines, today, proxy, traffic, told_hash, guards)


def _asked(case: Case) -> str:
    up = sum(engine.error is None for engine in case.engines)
    proxy = "no running proxy" if case.proxy is None else f"the proxy at {case.proxy.address}"
    seen = "no traffic known" if case.traffic is None else f"{case.traffic.requests} prompts from {case.traffic.source}"
    return f"asked: {up} of {len(case.engines)} engines, {proxy}; {seen}; configuration {case.config}"
