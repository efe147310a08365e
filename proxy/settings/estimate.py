"""`estimate`: how prompt lengths become known before the engine has counted them."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from proxy.settings.sections import Section, read_switch
from proxy.settings.units import Count, Duration


class Estimate(Section):
    """How long a prompt is, before the engine has counted it.

    The text is counted by script class and corrected per model by the engine's own `usage`.
    """

    remember: bool = Field(
        default=True,
        description="Keep what was learned in `state_dir`, so that a restart does not begin with guesses.",
    )
    tokenize: Annotated[Literal["off", "border"], BeforeValidator(read_switch)] = Field(
        default="off",
        description="`border`: ask the engine's `/tokenize` for the exact length of a prompt whose estimate is near "
        "the border of the lanes; costs it a few milliseconds of CPU, and that request as long. `off`: never.",
    )
    near: float = Field(
        default=0.15,
        gt=0,
        le=1,
        description="How near: share of the border that the estimate may be away from it, either way.",
    )
    timeout: Duration = Field(
        default=0.2, gt=0, le=5, description="How long such an answer is waited for; then the estimate stands."
    )
    at_once: Count = Field(
        default=4,
        ge=1,
        description="How many are asked for at the same time; the next one's estimate stands. Engines answer them one "
        "after the other anyway.",
    )
