"""`length_policies` and `repeats`: how long prompts and answers may be for whom, and requests that come twice."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from proxy.policy.classify import LengthPolicy
from proxy.settings.sections import Names, Output, Section, read_switch, split_names
from proxy.settings.units import Count


def _read_lanes(value: Any) -> Any:
    names = split_names(value)
    if not isinstance(names, list | tuple) or not set(names) <= {"short", "long"}:
        raise ValueError('write a list of lanes: "short", "long" or both')
    return tuple(names)


LaneNames = Annotated[tuple[str, ...], BeforeValidator(_read_lanes)]


class LengthRule(Section):
    """Lengths for some models, tenants or lanes, beside those of the lane. Where several hold, the tightest wins."""

    models: Names = Field(default=(), description="Model names it is for, as requests write them. Default: all.")
    tenants: Names = Field(
        default=(), description="Tenants it is for: names of `tenants.named`, or `other`. Default: all."
    )
    lanes: LaneNames = Field(default=(), description="Lanes it is for. Default: both.")
    prompt_tokens: Count | None = Field(
        default=None,
        ge=1,
        description="Longest prompt, estimated tokens of all prompts of a request together. Over it: 400 `too_long` "
        "before the engine sees it.",
    )
    output: Output = Output()

    def to_policy(self) -> LengthPolicy:
        """Convert to what classify reads."""
        return LengthPolicy(
            models=frozenset(self.models),
            tenants=frozenset(self.tenants),
            lanes=frozenset(self.lanes),
            prompt_tokens=self.prompt_tokens,
            output=self.output.to_policy(),
        )


class Repeats(Section):
    """Requests that come twice. docs/repeats.md explains it."""

    duplicates: Annotated[Literal["off", "count", "reject"], BeforeValidator(read_switch)] = Field(
        default="off",
        description="An identical body for the same path with the same key while the first is queued or runs: `count` "
        "counts it; `reject` answers 409 `duplicate` with the id of the first. Off where clients ask for several "
        "answers by sending a request several times.",
    )
    damping: bool = Field(
        default=True,
        description="Tell clients that come back before the time they were told (or whose SDK says that it retries) "
        "to stay away longer: twice as long each time, 15 s at most.",
    )
