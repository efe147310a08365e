"""The `lanewise` command. Exit codes: 0 done, 1 runtime failure, 2 configuration or usage, 3 gate failed, 130 stopped.

Results go to stdout, everything else to stderr. What a command needs is imported inside it, so that `--help` and
`validate` do not wait for the server's libraries.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter

if TYPE_CHECKING:
    from proxy.settings import Address, Flag, Loaded

DONE, FAILED, USAGE, GATE, INTERRUPTED = 0, 1, 2, 3, 130
_PATIENCE_S = 3.0
_MOST_WORKERS = 64
_ORDER_PATIENCE_S = 60.0
"""A reload probes new backends first."""

_MORE = """\
FILES

lanewise.yaml is whatever --config or LANEWISE_CONFIG names; `lanewise config schema` prints its schema. Presets, \
alerts, dashboards and deployment files are in the folder that `lanewise files` prints.

ENVIRONMENT

LANEWISE_CONFIG names the file. LANEWISE_KEY sets a key, LANEWISE_SECTION__KEY one of a section: \
LANEWISE_SCHEDULING__PRESET=gentle. Flags win over the environment, this over the file. NO_COLOR switches colours off.

SIGNALS

SIGTERM and SIGINT drain, a second one ends the drain; SIGHUP reloads.

EXIT CODES

0 done; 1 runtime failure (a port in use, no proxy there); 2 configuration or usage; 3 gate failed; 130 interrupted.

EXAMPLES

lanewise serve --backend http://127.0.0.1:8000

lanewise validate --strict --config lanewise.yaml

lanewise completion bash > ~/.local/share/bash-completion/completions/lanewise
"""


def _release() -> str:
    from proxy.metrics.build import release_of  # noqa: PLC0415 - see the module docstring

    return release_of("lanewise")


app = App(
    name="lanewise",
    help="Scheduling proxy in front of vLLM and vLLM-Ascend servers.",
    help_format="plaintext",
    version=_release,
    result_action="return_value",
)
config = App(name="config", help="Show the configuration, or its schema.")
app.command(config)
app.command(
    "proxy.doctor.command:doctor",
    name="doctor",
    help="Say what in the configuration, the engines and the traffic does not fit, each with the next step.\n\n"
    "With --config (or --backend) that configuration is judged; with --admin alone the one that the proxy there has in "
    "force. Nothing is sent to the engines but reads. Exit code 3: something is an error.",
)
app.command(
    "proxy.explain_command:explain",
    name="explain",
    help="Say why a request was treated as it was.\n\n"
    "Three ways to ask: REQUEST_ID of a running proxy (--admin); REQUEST_ID in a recorded trace (here --record names "
    "the file or directory to look in); or --body FILE with --config, for what would be decided about it.",
)
backends = App(name="backends", help="Show the backends of a running proxy; take one out of service, or in again.")
app.command(backends)


class CommandError(Exception):
    """A command cannot go on.

    Attributes:
        code: exit code.
        sentences: one line each, for stderr.
    """

    def __init__(self, code: int, *sentences: str) -> None:
        super().__init__("\n".join(sentences))
        self.code = code
        self.sentences = sentences


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where settings come from. Flags win over LANEWISE_* variables, these over the file, the file over defaults."""

    config: Annotated[list[Path] | None, Parameter(name=["--config", "-c"], negative=())] = None
    """YAML file; without it the one that LANEWISE_CONFIG names, or none. Repeat it for several: later ones win."""
    backend: Annotated[list[str] | None, Parameter(negative=())] = None
    """Base URL of an engine, http://HOST:PORT; repeat it for several."""
    listen: str | None = None
    """HOST:PORT for clients."""
    admin: str | None = None
    """HOST:PORT for metrics, health and status."""
    preset: str | None = None
    """strict or gentle."""
    concurrency: str | None = None
    """Sequences that may run at once on each backend."""
    record: str | None = None
    """Write the trace into this directory."""
    set: Annotated[list[str] | None, Parameter(negative=())] = None
    """Any other key: --set scheduling.drop_factor=5; repeat it for several."""

    def flags(self) -> "list[Flag]":
        """Return what was given, as settings.

        Raises:
            CommandError: a `--set` without a value.
        """
        from proxy.settings import Flag  # noqa: PLC0415 - see the module docstring

        given: list[Flag] = []
        if self.backend:
            given.append(Flag("--backend", ("backends",), list(self.backend)))
        for name, path, value in (
            ("--listen", ("listen",), self.listen),
            ("--admin", ("admin",), self.admin),
            ("--preset", ("scheduling", "preset"), self.preset),
            ("--concurrency", ("scheduling", "concurrency"), self.concurrency),
            ("--record", ("recorder", "directory"), self.record),
        ):
            if value is not None:
                given.append(Flag(name, path, value))
        if self.record is not None:
            given.append(Flag("--record", ("recorder", "enabled"), True))
        return [*given, *(_setting(text) for text in self.set or ())]

    def arguments(self) -> list[str]:
        """Return the same as a command line, without what differs from worker to worker: addresses, trace directory."""
        given: list[str] = []
        for name, values in (("--config", self.config), ("--backend", self.backend), ("--set", self.set)):
            given += [part for value in values or () for part in (name, str(value))]
        for name, value in (("--preset", self.preset), ("--concurrency", self.concurrency)):
            given += [] if value is None else [name, value]
        return given

    @property
    def names_engines(self) -> bool:
        """Whether a configuration of its own is meant, rather than that of a proxy that runs."""
        variables = {name.upper() for name in os.environ}
        return bool(self.config or self.backend) or bool({"LANEWISE_CONFIG", "LANEWISE_BACKENDS"} & variables)

    def load(self) -> "Loaded":
        """Read all sources.

        Raises:
            CommandError: the configuration cannot be used.
        """
        from proxy.settings import ConfigurationError, load  # noqa: PLC0415

        try:
            return load(self.config, self.flags())
        except ConfigurationError as error:
            raise CommandError(USAGE, *error.sentences) from None


_NOTHING = Source()


@app.command
def serve(
    source: Source = _NOTHING, *, workers: int = 1, worker: Annotated[int | None, Parameter(show=False)] = None
) -> int:
    """Start the proxy. SIGTERM or Ctrl-C lets running requests finish, then ends it.

    Args:
        source: where settings come from.
        workers: processes that share the port and keep one set of limits; docs/several-proxies.md.
        worker: number of this process among them; the supervisor says it.
    """
    _check_import_names()
    _check_floors()
    if workers != 1:
        return _serve_with_workers(source, workers)
    loaded, flags = source.load(), source.flags()
    from proxy.app import StartError, run  # noqa: PLC0415
    from proxy.settings import ConfigurationError, load  # noqa: PLC0415

    _warn(loaded)
    try:
        return run(loaded, lambda: load(source.config, flags), worker)
    except StartError as error:
        raise CommandError(FAILED, str(error)) from None
    except ConfigurationError as error:
        raise CommandError(USAGE, *error.sentences) from None


@app.command
def validate(
    source: Source = _NOTHING,
    *,
    strict: Annotated[bool, Parameter(negative=())] = False,
    json_output: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Check a configuration without starting anything.

    Args:
        source: where settings come from.
        strict: also ask why each key differs from its default, and take warnings as errors.
        json_output: print one JSON document.
    """
    from proxy.settings import warnings  # noqa: PLC0415
    from proxy.settings.show import missing_whys  # noqa: PLC0415

    try:
        _check_floors()
        loaded = source.load()
        doubts = _read_files(loaded)
    except CommandError as error:
        if json_output:
            _print_json({"valid": False, "problems": list(error.sentences), "warnings": []})
        raise
    settings = loaded.settings
    settings.to_scheduling()
    settings.to_backend_limits()
    remarks = [*(f"{found.key}: {found.text}" for found in warnings(settings)), *doubts]
    unexplained = [f"{path}: differs from its default and no `why` says so" for path in missing_whys(loaded)]
    problems = [*remarks, *unexplained] if strict else []
    if json_output:
        _print_json({"valid": not problems, "config": settings.hash, "problems": problems, "warnings": remarks})
    if problems:
        raise CommandError(USAGE, *problems)
    for remark in remarks:
        _say(f"warning: {remark}")
    if not json_output:
        count = len(settings.backends)
        print(f"valid: configuration {settings.hash}, {count} backend{'s' if count > 1 else ''}")  # noqa: T201
    return DONE


@config.command
def show(
    source: Source = _NOTHING,
    *,
    resolved: Annotated[bool, Parameter(negative=())] = False,
    json_output: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Print what differs from the defaults, each key with its why.

    Args:
        source: where settings come from.
        resolved: every key, each with the source of its value.
        json_output: print one JSON document.
    """
    from proxy.settings import show as showing  # noqa: PLC0415

    loaded = source.load()
    if json_output:
        _print_json(showing.as_document(loaded, resolved=resolved))
    else:
        sys.stdout.write(showing.resolved(loaded) if resolved else showing.minimal(loaded))
    return DONE


@config.command
def schema(*, json_output: Annotated[bool, Parameter(name="--json", negative=())] = True) -> int:  # noqa: ARG001
    """Print the JSON schema of the configuration file.

    Args:
        json_output: it is JSON in any case.
    """
    from proxy.settings.show import schema as build  # noqa: PLC0415

    _print_json(build())
    return DONE


@app.command
def healthcheck(source: Source = _NOTHING, *, ready: Annotated[bool, Parameter(negative=())] = False) -> int:
    """Ask a running proxy whether it is alive: exit code 0 or 1. For containers.

    Args:
        source: where settings come from; only the admin address matters.
        ready: ask whether it is ready for requests instead.
    """
    path = "/readyz" if ready else "/livez"
    status, body = _ask(_admin(source), path)
    if status != 200:
        try:
            why = str(json.loads(body)["reason"])
        except (ValueError, KeyError, TypeError):
            why = " ".join(body.split())[:200]
        raise CommandError(FAILED, f"{path} answered {status}: {why}")
    return DONE


@app.command
def status(
    source: Source = _NOTHING, *, json_output: Annotated[bool, Parameter(name="--json", negative=())] = False
) -> int:
    """Show the lanes, backends and last rejections of a running proxy.

    Args:
        source: where settings come from; only the admin address matters.
        json_output: print one JSON document.
    """
    address = _admin(source)
    code, body = _ask(address, "/status.json", _admin_key(source))
    try:
        document = json.loads(body) if code == 200 else None
    except ValueError:
        document = None
    if not isinstance(document, dict) or "lanes" not in document:
        raise CommandError(FAILED, f"{address} does not answer like a lanewise admin listener (status {code})")
    if json_output:
        _print_json(document)
    else:
        from proxy.statustext import write  # noqa: PLC0415

        write(document)
    return DONE


@app.command(name="reload")
def reload_(
    source: Source = _NOTHING, *, json_output: Annotated[bool, Parameter(name="--json", negative=())] = False
) -> int:
    """Let a running proxy read its configuration again: all of it takes effect, or none.

    The proxy reads what it was started from, its own file, flags and environment; kill -HUP does the same without an
    answer. Exit code 2: it changed nothing, and the sentences say which key is wrong.

    Args:
        source: where settings come from; only the admin address matters, to find the proxy on this machine.
        json_output: print one JSON document.
    """
    return _order(source, {"do": "reload"}, json_output)


@app.command
def rollback(
    source: Source = _NOTHING,
    *,
    reason: str = "",
    json_output: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Return a running proxy to the configuration before the one in force, and judge that one bad.

    Again, it goes further back; configurations that were judged bad are passed over.

    Args:
        source: where settings come from; only the admin address matters, to find the proxy on this machine.
        reason: why, for whoever tries that configuration again.
        json_output: print one JSON document.
    """
    return _order(source, {"do": "rollback", "reason": reason}, json_output)


@app.command
def verdict(
    judgement: Literal["keep", "bad"],
    source: Source = _NOTHING,
    *,
    reason: str = "",
    json_output: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Write down what measuring said about the configuration in force of a running proxy.

    Args:
        judgement: keep, or bad: then a reload that goes on from it says so, or is refused under one_change strict.
        source: where settings come from; only the admin address matters, to find the proxy on this machine.
        reason: why.
        json_output: print one JSON document.
    """
    return _order(source, {"do": "verdict", "verdict": judgement, "reason": reason}, json_output)


@app.command
def files(*, json_output: Annotated[bool, Parameter(name="--json", negative=())] = False) -> int:
    """Print the folder with what comes with lanewise: presets, alerts, dashboards, deployment files.

    Args:
        json_output: print one JSON document, with the path of each file.
    """
    from proxy.shipped import folder, shipped  # noqa: PLC0415

    where = folder()
    if where is None:
        raise CommandError(FAILED, "this installation has no such folder: install the wheel, or use the source tree")
    if json_output:
        _print_json({"folder": str(where), "files": shipped(where)})
    else:
        print(where)  # noqa: T201
    return DONE


@app.command
def completion(shell: Literal["bash", "zsh", "fish"]) -> int:
    """Print the script that completes commands and options in a shell.

    bash: into ~/.local/share/bash-completion/completions/lanewise. zsh: into _lanewise in a folder of $fpath.
    fish: into ~/.config/fish/completions/lanewise.fish.

    Args:
        shell: the shell that reads it.
    """
    sys.stdout.write(app.generate_completion(shell=shell))
    return DONE


@backends.command(name="list")
def list_(
    source: Source = _NOTHING, *, json_output: Annotated[bool, Parameter(name="--json", negative=())] = False
) -> int:
    """Show where each backend stands and what runs there.

    Args:
        source: where settings come from; only the admin address matters, to find the proxy on this machine.
        json_output: print one JSON document.
    """
    return _order(source, {"do": "list_backends"}, json_output)


@backends.command
def drain(
    name: str,
    source: Source = _NOTHING,
    *,
    json_output: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Give a backend nothing new; what runs there finishes. It holds until `resume` or a restart of the proxy.

    Args:
        name: what the proxy calls it; `lanewise backends list` shows the names.
        source: where settings come from; only the admin address matters, to find the proxy on this machine.
        json_output: print one JSON document.
    """
    return _order(source, {"do": "drain_backend", "backend": name}, json_output)


@backends.command
def resume(
    name: str,
    source: Source = _NOTHING,
    *,
    json_output: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Let a drained backend serve again.

    Args:
        name: what the proxy calls it.
        source: where settings come from; only the admin address matters, to find the proxy on this machine.
        json_output: print one JSON document.
    """
    return _order(source, {"do": "resume_backend", "backend": name}, json_output)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: without the program's name; None: those of the process.

    Returns:
        The exit code.
    """
    given = sys.argv[1:] if arguments is None else arguments
    app.help_epilogue = _MORE if len(given) < 2 else None  # the help of one command is about that command
    try:
        result = app(given, exit_on_error=False, print_error=False)
    except CommandError as error:
        for sentence in error.sentences:
            _say(sentence)
        return error.code
    except CycloptsError as error:
        _say(f"{' '.join(str(error).split())} (lanewise --help shows what there is)")
        return USAGE
    except BrokenPipeError:
        # Whoever read our output has enough; keep the interpreter from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except KeyboardInterrupt:
        return INTERRUPTED
    return result if isinstance(result, int) else DONE


def _setting(text: str) -> "Flag":
    import yaml  # noqa: PLC0415

    from proxy.settings import Flag  # noqa: PLC0415

    key, equals, value = text.partition("=")
    if not equals or not key:
        raise CommandError(USAGE, f"--set {text}: write KEY=VALUE, for example --set scheduling.drop_factor=5")
    try:
        parsed = yaml.safe_load(value)
    except yaml.YAMLError:
        parsed = value
    return Flag(f"--set {key}", tuple(key.strip().split(".")), parsed)


def _serve_with_workers(source: Source, workers: int) -> int:
    if not 1 <= workers <= _MOST_WORKERS:
        raise CommandError(USAGE, f"--workers {workers}: write a number from 1 to {_MOST_WORKERS}")
    loaded = source.load()
    from proxy.workers.supervisor import WorkersError, run  # noqa: PLC0415

    _warn(loaded)
    try:
        return run(loaded.settings, source.arguments(), workers)
    except WorkersError as error:
        raise CommandError(FAILED, str(error)) from None


def _check_import_names() -> None:
    from importlib.metadata import packages_distributions  # noqa: PLC0415

    owners = sorted(set(packages_distributions().get("proxy", [])) - {"lanewise"})
    if owners:
        raise CommandError(
            FAILED,
            f"the package {owners[0]} is installed into the same environment and also owns the import name `proxy`: "
            "install lanewise into an environment of its own",
        )


def _check_floors() -> None:
    from proxy.floors import too_old  # noqa: PLC0415

    old = too_old()
    if old:
        raise CommandError(FAILED, *old)


def _admin(source: Source) -> "Address":
    """Return the admin address; a configuration that is broken elsewhere will do."""
    from proxy.settings import ConfigurationError, admin_address  # noqa: PLC0415

    try:
        return admin_address(source.config, source.flags())
    except ConfigurationError as error:
        raise CommandError(USAGE, *error.sentences) from None


def _order(source: Source, order: dict[str, str], json_output: bool) -> int:
    """Give an order to the proxy on this machine and print what became of it."""
    from proxy.control import ControlError, give  # noqa: PLC0415

    try:
        reply = give(_admin(source).port, order, _ORDER_PATIENCE_S)
    except ControlError as error:
        raise CommandError(FAILED, str(error)) from None
    done, sentences = reply.get("done") is True, [str(one) for one in reply.get("sentences", ())]
    if json_output:
        _print_json(reply)
    if not done:
        raise CommandError(USAGE, *sentences)
    for warning in reply.get("warnings", ()):
        _say(f"warning: {warning}")
    if not json_output:
        for line in (*reply.get("changed", ()), *sentences):
            print(line)  # noqa: T201
    return DONE


def _admin_key(source: Source) -> str | None:
    """Return the key of the admin listener, where the settings say where it is."""
    from proxy.settings import auth_section  # noqa: PLC0415

    auth = auth_section(source.config, source.flags())
    if not auth.guards_admin:
        return None
    from proxy.keys import plain_key  # noqa: PLC0415
    from proxy.settings import ConfigurationError  # noqa: PLC0415

    try:
        return plain_key("auth.admin_key", auth.admin_key_file, auth.admin_key_env, os.environ)
    except ConfigurationError as error:
        raise CommandError(USAGE, *error.sentences) from None


def _read_files(loaded: "Loaded") -> tuple[str, ...]:
    """Read what a configuration names, and return what is doubtful about it."""
    from proxy.settings.security import reads_files  # noqa: PLC0415

    if not reads_files(loaded.settings):
        return ()
    from proxy.credentials import read  # noqa: PLC0415
    from proxy.settings import ConfigurationError  # noqa: PLC0415

    try:
        return read(loaded.settings, os.environ).doubts(loaded.settings, time.time())
    except ConfigurationError as error:
        raise CommandError(USAGE, *error.sentences) from None


def _ask(address: "Address", path: str, key: str | None = None) -> tuple[int, str]:
    import http.client  # noqa: PLC0415

    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)  # noqa: S104 - compared, not bound
    connection = http.client.HTTPConnection(host, address.port, timeout=_PATIENCE_S)
    try:
        connection.request("GET", path, headers={} if key is None else {"Authorization": f"Bearer {key}"})
        answer = connection.getresponse()
        if answer.status == http.HTTPStatus.UNAUTHORIZED:
            known = "another key" if key is not None else "a key: name it with auth.admin_key_file or _env"
            raise CommandError(FAILED, f"the admin listener at {address} wants {known}")
        return answer.status, answer.read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise CommandError(FAILED, f"no answer from the admin listener at {address}: {reason}") from None
    finally:
        connection.close()


def _warn(loaded: "Loaded") -> None:
    from proxy.settings import warnings  # noqa: PLC0415

    for found in warnings(loaded.settings):
        _say(f"warning: {found.key}: {found.text}")


def _print_json(document: Any) -> None:
    sys.stdout.write(json.dumps(document, ensure_ascii=False, indent=1) + "\n")


def _say(text: str) -> None:
    sys.stderr.write(f"lanewise: {text}\n")
