"""All cases: importing their modules registers them."""

from dataclasses import replace

from tests.faults import (
    admission,
    bodies,
    clients,
    exposure,
    lifecycle,
    loadgen_answers,
    loadgen_runs,
    odd_answers,
    operations,
    raw,
    semantics,
    workers,
)
from tests.faults.case import Case, Observe

MODULES = (
    raw,
    bodies,
    semantics,
    lifecycle,
    odd_answers,
    admission,
    operations,
    exposure,
    workers,
    clients,
    loadgen_answers,
    loadgen_runs,
)


def replaced(one: Case, observe: Observe) -> Case:
    """Return the case with another observation: on a station that is shared, for example."""
    return replace(one, observe=observe)
