"""All cases, registered by importing their modules."""

from dataclasses import replace

from tests.faults import admission, bodies, exposure, lifecycle, odd_answers, operations, raw, semantics  # noqa: F401 - importing registers
from tests.faults.case import CASES, Case, Observe

__all__ = ["CASES", "replaced"]


def replaced(one: Case, observe: Observe) -> Case:
    """Return the case with another observation: on a station that is shared, for example."""
    return replace(one, observe=observe)
