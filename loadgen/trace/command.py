"""`lanewise-load trace`: what is in trace files, and new trace files out of them."""

# ruff: noqa: PLC0415 - numpy and the rest are imported by the command that needs them

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
from cyclopts import App, Parameter

from loadgen.failure import Exit, UsageError
from loadgen.flags import Switch, seconds
from loadgen.options import BadLines, Process, SourceOptions
from loadgen.trace import shown

if TYPE_CHECKING:
    from loadgen.trace.output import Output
    from loadgen.trace.rewrite import Made
    from loadgen.tracefile import Skipped, Trace

app = App(
    name="trace",
    help="Look into trace files; cut, scale, convert, merge and make them.",
    help_format="plaintext",
)

BadLine = Annotated[BadLines, Parameter(name=("--bad-lines", "--on-bad-line"))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """How the lines of trace files are read."""

    format: str | None = None
    """azure, mooncake, bailian, burstgpt, servegen, sharegpt, log or lanewise; else told by the content."""
    bad_lines: BadLine = BadLines.REFUSE
    """A line that cannot be read: refuse, or skip and count it."""


AsLines = Annotated[Lines, Parameter(name="*")]
_AS_THEY_ARE = Lines()


@app.command
def info(
    *files: Path,
    lines: AsLines = _AS_THEY_ARE,
    border: int = 2048,
    seed: int = 1,
    json: Switch = False,
) -> int:
    """Say what is in trace files: rows, rate, burstiness, clock, lengths, lane border, output caps, shared prefixes.

    Parameters
    ----------
    files
        Trace files, read together as one.
    border
        Longest prompt of the short lane, in tokens.
    seed
        Of what is drawn (ServeGen).
    json
        Print one JSON document.
    """
    from loadgen.trace.info import trace_info

    options = SourceOptions(traces=files, format=lines.format, bad_lines=lines.bad_lines, border=border, seed=seed)
    found = trace_info(options)
    say(found, as_json=json, text=shown.info)
    return Exit.DONE


def say(document: dict[str, Any], *, as_json: bool, text: Any = shown.pairs) -> None:
    """Print a result: one JSON document, or lines for people."""
    if as_json:
        sys.stdout.write(orjson.dumps(document).decode() + "\n")
    else:
        sys.stdout.write(text(document))


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Where a new trace goes."""

    out: Annotated[Path, Parameter(allow_leading_hyphen=True)]
    """The file to write; `-`: stdout. A name that ends in .gz is compressed."""
    force: Switch = False
    """Replace a file that is there."""
    json: Switch = False
    """Print what was done as one JSON document (on stderr when the trace itself goes to stdout)."""


Where = Annotated[Written, Parameter(name="*")]


@app.command
def cut(
    file: Path,
    /,
    *,
    where: Where,
    rows: int | None = None,
    skip: int = 0,
    start: Annotated[float, seconds("start")] = 0.0,
    duration: Annotated[float | None, seconds("duration")] = None,
    lane: str | None = None,
    border: int = 2048,
    sample: float = 1.0,
    seed: int = 1,
    lines: AsLines = _AS_THEY_ARE,
) -> int:
    """Keep a part of a trace: what fits every condition given. Lines stay as they are.

    Parameters
    ----------
    file
        Trace file.
    rows
        At most this many requests, in file order.
    skip
        Leave out this many first.
    start
        Only what comes this long after the earliest request, or later.
    duration
        Only that long from there.
    lane
        short or long: only prompts up to, or over, the border.
    border
        Longest prompt of the short lane, in tokens.
    sample
        Draw this share, each request by itself.
    seed
        Of the draw.
    """
    from loadgen.trace.rewrite import Part
    from loadgen.trace.rewrite import cut as do_cut

    part = Part(skip, rows, start, duration, lane, border, sample, seed)
    one, skipped = _opened(file, lines)
    options = {name: value for name, value in asdict(part).items() if value != getattr(Part(), name)}
    return _made("trace cut", (file,), options, where, partial(do_cut, one, part), skipped=skipped)


@app.command
def scale(
    file: Path,
    /,
    *,
    where: Where,
    by: float | None = None,
    rate: float | None = None,
    dequantise: Switch = False,
    seed: int = 1,
    to: str | None = None,
    lines: AsLines = _AS_THEY_ARE,
) -> int:
    """Make a trace faster or slower: times are divided, from the first request on; lengths stay.

    Parameters
    ----------
    file
        Trace file.
    by
        2 is twice as fast.
    rate
        Mean requests/s to reach; instead of --by.
    dequantise
        Spread the requests that share one tick of a coarse clock over that tick.
    seed
        Of the spreading.
    to
        azure, mooncake, bailian or lanewise; else the format of the file.
    """
    from loadgen.trace.rewrite import scale as do_scale

    one, skipped = _opened(file, lines)
    options = {"by": by, "rate": rate, "dequantise": dequantise or None, "seed": seed if dequantise else None, "to": to}
    spread = seed if dequantise else None

    make = partial(do_scale, one, to, factor=by, rate=rate, seed=spread)
    return _made("trace scale", (file,), options, where, make, skipped=skipped)


@app.command
def convert(
    file: Path,
    /,
    *,
    to: str,
    where: Where,
    assume_output: int | None = None,
    seed: int = 1,
    lines: AsLines = _AS_THEY_ARE,
) -> int:
    """Write a trace in another format, in order of arrival, and say what that format has no place for.

    Parameters
    ----------
    file
        Trace file (of ServeGen: chunk-N-trace.csv).
    to
        azure, mooncake, bailian or lanewise.
    assume_output
        Keep requests whose output length was not recorded, with this one; else they are left out and counted.
    seed
        Of what is drawn (ServeGen).
    """
    from loadgen.trace.rewrite import convert as do_convert
    from loadgen.tracefile import Reading

    reading = Reading(assume_output_tokens=assume_output or 256, seed=seed)
    one, skipped = _opened(file, lines, reading)
    options = {"to": to, "assume_output": assume_output, "seed": seed if one.format.name == "servegen" else None}

    make = partial(do_convert, one, to, keep_assumed=assume_output is not None)
    return _made("trace convert", (file,), options, where, make, skipped=skipped)


@app.command
def merge(
    *files: Path,
    where: Where,
    weights: str | None = None,
    seed: int = 1,
    to: str | None = None,
    bad_lines: BadLine = BadLines.REFUSE,
) -> int:
    """Write several traces as one, in order of arrival.

    By their clocks where they share one (Azure, lanewise and logs do), else each from its own start.

    Parameters
    ----------
    files
        Trace files.
    weights
        Like 9,1: nine requests of the first to one of the second, drawn by seed, over the span of the first.
    seed
        Of the draw.
    to
        azure, mooncake, bailian or lanewise; else the format that all have.
    bad_lines
        A line that cannot be read: refuse, or skip and count it.
    """
    from loadgen.trace.rewrite import merge as do_merge
    from loadgen.tracefile import Skipped, open_trace

    if len(files) < 2:
        raise UsageError("trace merge: give two trace files or more")
    shares = None if weights is None else _numbers("--weights", weights)
    skipped = Skipped()
    counting = skipped if bad_lines is BadLines.SKIP else None
    traces = [open_trace(path, skipped=counting, source=source) for source, path in enumerate(files)]
    options = {"weights": weights, "seed": seed if weights else None, "to": to}

    make = partial(do_merge, traces, to, weights=shares, seed=seed)
    return _made("trace merge", files, options, where, make, skipped=skipped)


@app.command
def synth(
    *,
    where: Where,
    to: str = "azure",
    workload: str | None = None,
    rows: int | None = None,
    duration: Annotated[float | None, seconds("duration")] = None,
    arrivals: Process = Process.POISSON,
    rate: float | None = None,
    rates: str | None = None,
    cv: float = 1.0,
    prompt: str | None = None,
    output: str | None = None,
    seed: int = 1,
) -> int:
    """Make a trace that was never recorded: by a shipped workload, or by arrivals and two length distributions.

    Parameters
    ----------
    to
        azure, mooncake, bailian or lanewise.
    workload
        Name of a shipped profile (burst, chat, code, mixed) or path of a YAML file; needs --rows or
        --duration.
    rows
        How many requests.
    duration
        With --workload: how long.
    arrivals
        constant, poisson or gamma.
    rate
        Mean requests/s.
    rates
        Rates that change, like 60s@2,30s@2..10; the trace ends with them.
    cv
        Of gamma gaps: standard deviation over mean.
    prompt
        Prompt tokens: 512, uniform:1..900, lognormal:MEDIAN,SIGMA or quantiles:0=10,50=800,100=9000.
    output
        Output tokens, written the same.
    seed
        Decides everything that is drawn.
    """
    from loadgen.trace.synth import Wanted, make

    wanted = Wanted(to, workload, rows, duration, arrivals, rate, rates, cv, prompt, output, seed)
    options = {name: value for name, value in asdict(wanted).items() if value is not None}
    return _made("trace synth", (), options, where, partial(make, wanted))


def _opened(file: Path, lines: Lines, reading: Any = None) -> "tuple[Trace, Skipped]":
    from loadgen.tracefile import Skipped, open_trace

    skipped = Skipped()
    counting = skipped if lines.bad_lines is BadLines.SKIP else None
    return open_trace(file, lines.format, skipped=counting, reading=reading), skipped


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} {text}: is no list of numbers like 9,1") from None


def _made(
    command: str,
    sources: tuple[Path, ...],
    options: dict[str, Any],
    where: Written,
    make: "Callable[[Output], Made]",
    *,
    skipped: "Skipped | None" = None,
) -> int:
    from loadgen.trace import provenance
    from loadgen.trace.output import Output

    with Output(where.out, force=where.force) as out:
        made = make(out)
    out.origin(provenance.step(command, sources, options))
    document = {"out": str(where.out), **made.document()}
    if skipped is not None and skipped.count:
        document["bad_lines"] = {"skipped": skipped.count, "examples": skipped.examples}
    if where.json:
        text = orjson.dumps(document).decode() + "\n"
    else:  # what is nothing needs no line, but that nothing of a trace was lost does
        said = {"requests_written", "lost" if sources else ""}
        text = shown.pairs({name: value for name, value in document.items() if value or name in said})
    (sys.stderr if out.to_stdout else sys.stdout).write(text)
    return Exit.DONE
