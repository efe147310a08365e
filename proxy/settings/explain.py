"""`explain`: how much is kept of finished requests, and who may ask for an explanation with the answer."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from proxy.settings.sections import Section, read_switch


class Explain(Section):
    """What `lanewise explain` can tell of finished requests, and who gets it with the answer."""

    keep: int = Field(
        default=256,
        ge=0,
        le=100_000,
        description="Finished requests whose decisions are kept in memory, about 1 KB each; the oldest go first. 0: "
        "none, and `lanewise explain` reads records only.",
    )
    header: Annotated[Literal["trusted", "all", "off"], BeforeValidator(read_switch)] = Field(
        default="trusted",
        description="Whose `x-lanewise-explain: 1` is answered with a header of that name that says what was decided: "
        "`trusted` (peers in `trusted_networks`), `all`, or `off`.",
    )
