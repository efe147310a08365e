"""How options are written on the command line: durations with units, flags without a negative."""

from typing import Annotated, Any

from cyclopts import Parameter

_UNITS = (("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("", 1.0))


def duration_s(text: str) -> float:
    """Return seconds of `30`, `30s`, `500ms`, `2m` or `1h`.

    Raises:
        ValueError: the text is no such duration.
    """
    for suffix, factor in _UNITS:
        if text.endswith(suffix):
            try:
                return float(text.removesuffix(suffix)) * factor
            except ValueError:
                break
    raise ValueError(f"{text!r} is not a duration; write 30s, 500ms, 2m or 1h")


def _converted(_: Any, tokens: Any) -> float:
    return duration_s(tokens[0].value)


def seconds(name: str, **more: Any) -> Parameter:
    """Return the annotation of an option that is a duration."""
    return Parameter(name=f"--{name}", converter=_converted, n_tokens=1, **more)


def named(name: str, **more: Any) -> Parameter:
    """Return the annotation of an option whose flag differs from its field."""
    return Parameter(name=f"--{name}", **more)


Switch = Annotated[bool, Parameter(negative="")]
"""A flag that is only ever turned on."""
