"""`lanewise-load trace`: what is in trace files, and new trace files out of them."""

# ruff: noqa: PLC0415 - numpy and the rest are imported by the command that needs them

import sys
from pathlib import Path
from typing import Annotated, Any

import orjson
from cyclopts import App, Parameter

from loadgen.failure import Exit
from loadgen.flags import Switch
from loadgen.options import BadLines, SourceOptions
from loadgen.trace import shown

app = App(
    name="trace",
    help="Look into trace files; cut, scale, convert, merge and make them.",
    help_format="plaintext",
)

BadLine = Annotated[BadLines, Parameter(name=("--bad-lines", "--on-bad-line"))]


@app.command
def info(
    *files: Path,
    format: str | None = None,  # noqa: A002 - the name of the option
    bad_lines: BadLine = BadLines.REFUSE,
    border: int = 2048,
    seed: int = 1,
    json: Switch = False,
) -> int:
    """Say what is in trace files: rows, rate, burstiness, clock, lengths, lane border, output caps, shared prefixes.

    Parameters
    ----------
    files
        Trace files, read together as one.
    format
        azure, mooncake, bailian, burstgpt, servegen, sharegpt, log or lanewise; else told by the content.
    bad_lines
        A line that cannot be read: refuse, or skip and count it.
    border
        Longest prompt of the short lane, in tokens.
    seed
        Of what is drawn (ServeGen).
    json
        Print one JSON document.
    """
    from loadgen.trace.info import trace_info

    found = trace_info(SourceOptions(traces=files, format=format, bad_lines=bad_lines, border=border, seed=seed))
    say(found, as_json=json, text=shown.info)
    return Exit.DONE


def say(document: dict[str, Any], *, as_json: bool, text: Any = shown.pairs) -> None:
    """Print a result: one JSON document, or lines for people."""
    if as_json:
        sys.stdout.write(orjson.dumps(document).decode() + "\n")
    else:
        sys.stdout.write(text(document))
