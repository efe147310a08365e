"""What a check says: something that does not fit, or something that could not be told."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """How much a finding matters. Only errors make the command fail."""

    ERROR = "error"
    """Requests are lost, hurt, or scheduled by numbers that are wrong."""
    WARNING = "warning"
    """It works below its worth, or will break with the next change."""
    INFO = "info"
    """Good to know before the next measurement."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that does not fit."""

    id: str
    """Stable, one word: what scripts look for, and the anchor in docs/doctor.md."""
    severity: Severity
    about: str
    """Backend, lane or key."""
    seen: str
    """The numbers."""
    why: str
    """What it costs."""
    next: str
    """The single next step."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A check that could not be made."""

    id: str
    about: str
    needs: str
    """What would make it possible."""


@dataclass(frozen=True, slots=True)
class Good:
    """Something that was asked and is well: only where people ask for the answer."""

    id: str
    about: str
    seen: str


Said = Finding | Unknown | Good


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Everything that was said, the worst first."""

    findings: tuple[Finding, ...]
    unknown: tuple[Unknown, ...]
    good: tuple[Good, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether nothing is an error."""
        return all(found.severity is not Severity.ERROR for found in self.findings)

    def document(self) -> dict[str, Any]:
        """Return it ready for JSON."""
        return {
            "healthy": self.healthy,
            "findings": [asdict(found) for found in self.findings],
            "unknown": [asdict(one) for one in self.unknown],
            "good": [asdict(one) for one in self.good],
        }


_ORDER = tuple(Severity)


def diagnosis(said: Iterable[Said]) -> Diagnosis:
    """Sort what the checks said; what is said twice counts once."""
    told = tuple(dict.fromkeys(said))
    findings = [one for one in told if isinstance(one, Finding)]
    return Diagnosis(
        tuple(sorted(findings, key=lambda found: _ORDER.index(found.severity))),
        tuple(one for one in told if isinstance(one, Unknown)),
        tuple(one for one in told if isinstance(one, Good)),
    )


def lines(result: Diagnosis, asked: str) -> Iterator[str]:
    """Yield the diagnosis for people.

    Args:
        result: the diagnosis.
        asked: one line about who was asked.
    """
    yield asked
    for found in result.findings:
        yield ""
        yield f"{found.severity.value}: {found.about}: {found.id}"
        yield f"  seen  {found.seen}"
        yield f"  why   {found.why}"
        yield f"  next  {found.next}"
    if result.good:
        yield ""
        yield from (f"good: {one.about}: {one.id}: {one.seen}" for one in result.good)
    if result.unknown:
        yield ""
        yield "not known (never taken for zero or for a default):"
        yield from (f"  {one.about}: {one.id}: {one.needs}" for one in result.unknown)
    yield ""
    counts = ", ".join(
        f"{sum(found.severity is severity for found in result.findings)} {severity.value}" for severity in Severity
    )
    yield f"{'healthy' if result.healthy else 'not healthy'}: {counts}, {len(result.unknown)} unknown"
