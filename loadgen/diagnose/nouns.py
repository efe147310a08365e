"""What a diagnosis says, as values."""

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

SCHEMA = "lanewise.diagnosis/1"


class Layer(StrEnum):
    """Where the time goes, or what fails."""

    LINK = "link"
    CLIENT = "client"
    QUEUE = "queue"
    PREFILL = "prefill"
    DECODE = "decode"
    MEMORY = "memory"
    PARALLEL = "parallel"
    ADAPTATION = "adaptation"
    CEILING = "hardware ceiling"


class Confidence(StrEnum):
    """How far a finding can be trusted."""

    HIGH = "high"
    """Two independent measurements agree, or the engine itself counted it."""
    MEDIUM = "medium"
    """One measurement says so."""
    LOW = "low"
    """Nothing else explains it."""


@dataclass(frozen=True, slots=True)
class Number:
    """One measured number that a finding rests on."""

    name: str
    value: float
    unit: str
    """s, share, count, tokens, times."""
    limit: float | None = None
    """What it is held against, in the same unit."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One layer that limits the run."""

    layer: Layer
    sentence: str
    evidence: tuple[Number, ...]
    confidence: Confidence
    next_step: str
    """The one thing to do next."""
    part: str | None = None
    """Of memory: weights, kv, activations or fragmentation."""
    stage: str | None = None
    """From an engine's log: loading or inference."""
    tuning_helps: bool = True
    """False: no setting of engine or proxy moves this."""
    where: str | None = None
    """Line of the engine's log."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings of a run, the one to act on first."""

    label: str
    findings: tuple[Finding, ...]
    invalid: str | None = None
    """Why the run cannot be judged; None: it can."""
    unknown: tuple[str, ...] = ()
    """What could not be looked at, and what would show it."""
    answers: tuple[str, ...] = ()
    """What is abnormal about the answers themselves: empties, repetition, shifted finish reasons, canaries, a changed
    quantisation. Speed is worth nothing before it is explained."""
    schema: str = field(default=SCHEMA)

    def to_json(self) -> dict[str, Any]:
        """Return one document of plain values."""
        document = asdict(self)
        document["layer"] = self.findings[0].layer.value if self.findings else None
        document["valid"] = self.invalid is None
        return document
