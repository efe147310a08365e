"""The command `lanewise-load`. Everything heavy is imported by the command that needs it, so that --help is fast."""

# ruff: noqa: PLC0415

import dataclasses
import json
import sys
from dataclasses import dataclass
from importlib.metadata import distribution, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

from cyclopts import App, CycloptsError, Group, Parameter

from loadgen.failure import Exit, StopError, UsageError
from loadgen.flags import Switch, seconds
from loadgen.options import ReplayOptions, SourceOptions
from loadgen.premises import PremisesOptions
from loadgen.shards.options import ALONE, ShardOptions

if TYPE_CHECKING:
    from loadgen.journal import RunFolder
    from loadgen.summary import Slo

_MORE = """\
FILES

A run folder holds manifest.json, shots.jsonl and what is made from them. Workload and engine profiles go by \
name, or by path.

ENVIRONMENT

LANEWISE_API_KEY is the key for the target (--api-key-file reads it from a file). NO_COLOR switches colours off.

EXIT CODES

0 done (keep, keep tuning); 1 runtime failure; 2 usage; 3 gate failed (roll back); 4 measurement invalid or \
comparison refused; 130 interrupted: what was measured until then is written.

EXAMPLES

lanewise-load replay --workload mixed --rows 60 --rate 2.5 --target http://127.0.0.1:8000 --out runs/one

lanewise-load compare runs/before runs/after

lanewise-load completion bash > ~/.local/share/bash-completion/completions/lanewise-load
"""


def _release() -> str:
    commit = (distribution("lanewise").read_text("extra_metadata/commit") or "").strip()
    return f"{version('lanewise')} (commit {commit})" if commit else version("lanewise")


app = App(
    name="lanewise-load",
    help="Replay recorded traffic at an LLM server, measure every latency apart, and compare runs.",
    help_format="plaintext",
    version=_release,
    version_flags=["--version"],
)

_ELSEWHERE = {
    "study": ("loadgen.study:app", "Run the scheduling policies in virtual time and tabulate them."),
    "sim": ("loadgen.sim.command:app", "The simulated engine."),
    "trace": ("loadgen.trace.command:app", "Look into trace files; cut, scale, convert, merge and make them."),
    "diagnose": ("loadgen.diagnose.command:app", "Name the layer that limits a run, and the next single step."),
    "walkthrough": (
        "loadgen.walkthrough.command:app",
        "The recipe: shortest request, one real request, the knee, the first single change to try.",
    ),
    "floor": ("loadgen.floor:floor", "The link's own latencies, directly and through the proxy."),
    "baseline": ("loadgen.baseline:baseline", "Repeats of one replay, and whether their spread makes a baseline."),
    "knee": ("loadgen.sweep:knee", "Find the concurrency before which TPOT crosses its SLO."),
    "merge": ("loadgen.merging:merge", "Make one run of those of several load generators."),
    "report": ("loadgen.reporting:report", "A run, or two compared, as one HTML file."),
    "shots": ("loadgen.shots:shots", "The requests of a run as a table, CSV or Parquet."),
    "export": ("loadgen.export:export", "A run as OpenMetrics samples, or as a benchmark report of llm-d."),
    "demo": ("loadgen.demo:app", "The whole loop on this machine, with a before/after table."),
}
"""Commands that are imported when they are used."""

for _name, (_path, _help) in _ELSEWHERE.items():
    if find_spec(_path.partition(":")[0]) is not None:
        app.command(_path, name=_name, help=_help)


@Parameter(name="*", group=Group("SLO"))
@dataclass(frozen=True, slots=True, kw_only=True)
class SloOptions:
    """What makes one request good."""

    short: Annotated[float, seconds("slo-short")] = 1.0
    """TTFT within which a short request is good."""
    long: Annotated[float, seconds("slo-long")] = 5.0
    """TTFT within which a long request is good."""
    tpot: Annotated[float, seconds("slo-tpot")] = 0.1
    """TPOT within which any request is good."""

    def slo(self) -> "Slo":
        """Return it as the summary takes it."""
        from loadgen.summary import Slo

        return Slo(self.short, self.long, self.tpot)


_ANY_SOURCE, _DEFAULT_SLO, _NO_PREMISES = SourceOptions(), SloOptions(), PremisesOptions()


@app.command
def replay(
    *traces: Path,
    options: ReplayOptions,
    source: SourceOptions = _ANY_SOURCE,
    slo: SloOptions = _DEFAULT_SLO,
    premises: PremisesOptions = _NO_PREMISES,
    shards: ShardOptions = ALONE,
    set: Annotated[tuple[str, ...], Parameter(negative="")] = (),  # noqa: A002 - the name of the option
    dry_run: Switch = False,
    json: Switch = False,
) -> int:
    """Send recorded (or synthetic) requests at their due times and write a run folder.

    Open loop: a request is never held back for another one, and latencies count from when it was due.

    Parameters
    ----------
    traces
        Trace files of any format that docs/traces.md lists; several are replayed together.
    set
        NAME=VALUE that was set on the system under test; compare shows what changed. May be repeated.
    dry_run
        Read and plan, print what would be sent, send nothing.
    json
        Print the result as one JSON document.
    """
    whole = dataclasses.replace(
        options,
        source=dataclasses.replace(source, traces=traces),
        premises=premises,
        shards=shards,
        parameters=parameters_of(set),
    )
    if dry_run:
        return _dry_run(whole, as_json=json)
    return _replay(whole, slo.slo(), as_json=json)


def parameters_of(texts: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Read the values of `--set`.

    Raises:
        UsageError: one of them is not NAME=VALUE.
    """
    return tuple(_parameter(text) for text in texts)


def _parameter(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--set {text}: write NAME=VALUE")
    return name, value


def _dry_run(options: ReplayOptions, *, as_json: bool) -> int:
    from loadgen.source import read_source

    source = read_source(options.source, endpoint=options.endpoint)
    plan, shard = source.plan, options.shards.read()
    lengths = {"short": 0, "long": 0}
    for shot in plan.part(shard.index, shard.of):
        lengths[shot.lane] += 1
    document = {"requests": sum(lengths.values()), "span_s": plan.span_s, "hash": plan.hash, **lengths, **source.facts}
    _print_document(document) if as_json else _print_pairs(document)
    return Exit.DONE


def _replay(options: ReplayOptions, slo: "Slo", *, as_json: bool) -> int:
    return print_run(replayed(options), slo, as_json=as_json)


def print_run(folder: "RunFolder", slo: "Slo", *, as_json: bool) -> int:
    """Print the summary of a run that has just been written, and return the exit code."""
    from loadgen.report import console, print_summary
    from loadgen.summarise import summarise as summarise_run

    summary = summarise_run(folder, slo)
    if as_json:
        _print_document(summary.to_json())
    print_summary(summary, console(stderr=as_json))
    return Exit.DONE if summary.complete else _unfinished(folder)


def _unfinished(folder: "RunFolder") -> Exit:
    """Say why a run is not whole, where nobody stopped it."""
    from loadgen.sending import SIGNALLED

    why = folder.manifest().get("interrupted")
    if why is None or why == SIGNALLED:
        return Exit.INTERRUPTED
    sys.stderr.write(f"lanewise-load: {folder.path}: {why}\n")
    return Exit.RUNTIME


def replayed(options: ReplayOptions) -> "RunFolder":
    """Replay, showing on a terminal how far it is, and return the run folder.

    Raises:
        StopError: as `loadgen.replay.replay`.
    """
    from loadgen.live import shown
    from loadgen.replay import replay as run_replay

    with shown() as on_progress:
        return run_replay(options, on_progress=on_progress)


@app.command
def summarise(
    folder: Path,
    /,
    *,
    slo: SloOptions = _DEFAULT_SLO,
    json: Switch = False,
) -> int:
    """Say what a run shows: latencies by lane, outcomes, goodput, warnings.

    Parameters
    ----------
    folder
        Run folder.
    json
        Print one JSON document.
    """
    from loadgen.journal import RunFolder
    from loadgen.report import console, print_summary
    from loadgen.summarise import summarise as summarise_run

    summary = summarise_run(RunFolder(folder), slo.slo())
    if json:
        _print_document(summary.to_json())
    else:
        print_summary(summary, console())
    return Exit.DONE


@app.command
def compare(
    before: Path,
    after: Path,
    /,
    *,
    force: Switch = False,
    seed: int = 1,
    slo: SloOptions = _DEFAULT_SLO,
    json: Switch = False,
) -> int:
    """Compare two runs of one plan. Exit code 3: roll back. Exit code 4: not comparable, with the reason.

    Parameters
    ----------
    before
        Run folder A, or a baseline: then a difference within its own spread is noise.
    after
        Run folder B.
    force
        Compare even where conditions differ or several parameters were changed; they are listed.
    seed
        Of the bootstrap intervals.
    json
        Print one JSON document.
    """
    from loadgen.compare import NotComparableError, Verdict
    from loadgen.compare import compare as compare_runs
    from loadgen.journal import RunFolder
    from loadgen.report import console, print_comparison

    try:
        comparison = compare_runs(RunFolder(before), RunFolder(after), slo.slo(), force=force, seed=seed)
    except NotComparableError as error:
        if json:
            _print_document(error.document)
        raise
    if json:
        _print_document(comparison.to_json())
    else:
        print_comparison(comparison, console())
    return Exit.GATE if comparison.verdict is Verdict.ROLL_BACK else Exit.DONE


@app.command
def completion(shell: Literal["bash", "zsh", "fish"]) -> int:
    """Print the script that completes commands and options in a shell.

    bash: into ~/.local/share/bash-completion/completions/lanewise-load. zsh: into _lanewise-load in a folder of $fpath.
    fish: into ~/.config/fish/completions/lanewise-load.fish.

    Parameters
    ----------
    shell
        The shell that reads it.
    """
    sys.stdout.write(app.generate_completion(shell=shell))
    return Exit.DONE


def _print_document(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n")


def _print_pairs(document: dict[str, Any]) -> None:
    from loadgen.trace.shown import pairs

    sys.stdout.write(pairs(document))


def _stop(code: Exit, message: str) -> NoReturn:
    sys.stderr.write(f"lanewise-load: {message}\n")
    sys.exit(code)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run `lanewise-load`; the exit codes are those of `loadgen.failure.Exit`."""
    given = sys.argv[1:] if arguments is None else arguments
    app.help_epilogue = _MORE if len(given) < 2 else None  # the help of one command is about that command
    try:
        result = app(given, exit_on_error=False, print_error=False, result_action="return_value")
    except StopError as error:
        _stop(error.code, str(error))
    except CycloptsError as error:
        _stop(Exit.USAGE, str(error))
    except BrokenPipeError:
        sys.exit(Exit.DONE)
    except KeyboardInterrupt:
        _stop(Exit.INTERRUPTED, "interrupted")
    sys.exit(result if isinstance(result, int) else Exit.DONE)
