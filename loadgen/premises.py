"""Finds out what a run depends on: what the operator tells, a command line, the proxy's status page, the engine."""

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import orjson
from cyclopts import Group, Parameter

from loadgen.failure import StopError, UsageError
from loadgen.flags import named
from loadgen.manifest import PREMISES, read_flags, told_by_flags, told_by_name

FLOOR_SCHEMA = "lanewise.floor/1"
_LISTENING = "0A"
"""State of a listening socket in /proc/net/tcp."""


@Parameter(name="*", group=Group("Premises"))
@dataclass(frozen=True, slots=True, kw_only=True)
class PremisesOptions:
    """What the result depends on, where nobody can be asked. `compare` refuses runs whose premises differ."""

    card: str | None = None
    """Kind of card, such as `Ascend 910B4`."""
    cards: int | None = None
    """Cards of one engine. None: the product of its parallel sizes, where its start flags are known."""
    model_size: str | None = None
    """Size of the model, such as `32B`. None: what its name says."""
    quantisation: Annotated[str | None, Parameter(name=("--quantisation", "--quantization"))] = None
    """Quantisation of the weights, such as `w8a8`. None: what its start flags or its name say."""
    premises: Path | None = None
    """YAML file with `card`, `cards`, `model_size`, `quantisation`; what is given beside it wins."""
    engine_flags: Path | None = None
    """File with the engine's start command, as it was typed."""
    engine_pid: int | None = None
    """Process of an engine on this machine: its command line is read."""
    engine_port: int | None = None
    """Port of an engine on this machine: the command line of whoever listens there is read."""
    proxy_status: Annotated[str | None, named("proxy-status")] = None
    """lanewise's admin listener, http://HOST:PORT: its configuration is kept with the run."""
    floor: Path | None = None
    """What `lanewise-load floor` wrote: the link's own latencies are kept with the run."""


_TOLD = {"card": "card", "cards": "cards", "model_size": "size", "quantisation": "quantisation"}
NOTHING = PremisesOptions()


def told(options: PremisesOptions) -> dict[str, Any]:
    """Return what the operator and the machine say, before anything is sent.

    Returns:
        Manifest keys: `premises` (name → value and source), `flags` (the engine's) with `flags_from`, `proxy`, `floor`.

    Raises:
        UsageError: a file, process or port cannot be read.
        StopError: the proxy's admin listener does not answer.
    """
    flags, source = _flags(options)
    premises = {name: _held(value, "engine flags") for name, value in told_by_flags(flags).items()}
    premises |= {name: _held(value, str(options.premises)) for name, value in _file(options.premises).items()}
    given = {ours: getattr(options, name) for name, ours in _TOLD.items() if getattr(options, name) is not None}
    premises |= {name: _held(value, "told") for name, value in given.items()}
    return {
        "premises": premises,
        "flags": flags,
        "flags_from": source,
        "proxy": None if options.proxy_status is None else proxy_facts(options.proxy_status),
        "floor": None if options.floor is None else read_floor(options.floor),
    }


def complete(found: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Return all premises: what was told, else what the model's name says; unknown ones are None.

    Args:
        found: premises that are known.
        model: the model that the engine serves.
    """
    by_name = {name: _held(value, "model name") for name, value in told_by_name(model).items()}
    whole = by_name | dict(found) | {"model": _held(model, "engine")}
    return {name: whole.get(name) for name in PREMISES}


def _held(value: Any, source: str) -> dict[str, Any]:
    return {"value": value, "source": source}


def _file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    import yaml  # noqa: PLC0415 - only where there is something to read

    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"--premises {path}: cannot be read: {' '.join(str(error).split())}") from None
    unknown = set(document) - set(_TOLD) if isinstance(document, dict) else {"no mapping"}
    if unknown:
        raise UsageError(f"--premises {path}: {', '.join(map(str, unknown))}; allowed: {', '.join(_TOLD)}")
    return {_TOLD[name]: value for name, value in document.items() if value is not None}


def _flags(options: PremisesOptions) -> tuple[dict[str, str], str | None]:
    chosen = [
        f"--{one.name.replace('_', '-')}"
        for one in fields(options)
        if one.name in {"engine_flags", "engine_pid", "engine_port"} and getattr(options, one.name) is not None
    ]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)} all name the engine's start flags; give one of them")
    if options.engine_flags is not None:
        return read_flags(_words(options.engine_flags)), f"file {options.engine_flags.name}"
    if options.engine_pid is not None:
        return read_flags(_command_line(options.engine_pid)), f"process {options.engine_pid}"
    if options.engine_port is not None:
        pid = _listener(options.engine_port)
        return read_flags(_command_line(pid)), f"process at port {options.engine_port}"
    return {}, None


def _words(path: Path) -> list[str]:
    """Read a start command as a shell would: several lines, continuation lines and comments are fine."""
    try:
        return shlex.split(path.read_text(encoding="utf-8").replace("\\\n", " "), comments=True)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise UsageError(f"--engine-flags {path}: cannot be read: {error}") from None


def _command_line(pid: int) -> list[str]:
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError as error:
        raise UsageError(
            f"the command line of process {pid} cannot be read: {error.strerror}; write the start command into a file "
            "and give it with --engine-flags"
        ) from None
    words = [word.decode("utf-8", "replace") for word in raw.split(b"\0") if word]
    if not words:
        raise UsageError(f"process {pid} has no command line; give the start command with --engine-flags")
    return words


def _listener(port: int) -> int:
    """Return the process that listens at a port of this machine."""
    inodes = {inode for name in ("tcp", "tcp6") for inode in _listening(Path("/proc/net") / name, port)}
    for folder in Path("/proc").iterdir() if inodes else ():
        if folder.name.isdecimal() and inodes & _sockets(folder / "fd"):
            return int(folder.name)
    raise UsageError(
        f"--engine-port {port}: no process that this user may look into listens there; give --engine-pid or "
        "--engine-flags"
    )


def _listening(table: Path, port: int) -> Iterator[str]:
    try:
        lines = table.read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return
    for line in lines:
        cells = line.split()
        if cells[3] == _LISTENING and int(cells[1].rpartition(":")[2], 16) == port:
            yield cells[9]


_SOCKET = re.compile(r"socket:\[(\d+)\]")


def _sockets(folder: Path) -> set[str]:
    found = set()
    with suppress(OSError):
        for link in folder.iterdir():
            with suppress(OSError):
                match = _SOCKET.fullmatch(str(link.readlink()))
                found |= {match.group(1)} if match else set()
    return found


def proxy_facts(address: str) -> dict[str, Any]:
    """Ask lanewise's admin listener what is in force.

    Args:
        address: `http://HOST:PORT`, or `HOST:PORT`.

    Returns:
        version, config (hash), mode, preset and settings (key → value, of what differs from the defaults).

    Raises:
        StopError: it does not answer, or not as lanewise does.
    """
    from loadgen.children import fetch  # noqa: PLC0415

    url = address if "://" in address else f"http://{address}"
    base = urlsplit(url)
    page = f"{base.scheme}://{base.netloc}/status.json"
    try:
        document = orjson.loads(fetch(page))
    except ValueError:
        document = None
    if not isinstance(document, dict) or "config" not in document:
        raise StopError(f"{page} does not answer as lanewise's admin listener does")
    settings = document.get("settings")
    kept = {name: document.get(name) for name in ("version", "config", "mode", "preset")}
    return kept | {"settings": settings if isinstance(settings, dict) else {"mode": kept["mode"]}}


def read_floor(path: Path) -> dict[str, Any]:
    """Read what `lanewise-load floor` wrote.

    Raises:
        UsageError: the file is none of it.
    """
    try:
        document = orjson.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"--floor {path}: cannot be read: {error}") from None
    if not isinstance(document, dict) or document.get("schema") != FLOOR_SCHEMA:
        raise UsageError(f"--floor {path}: schema is not {FLOOR_SCHEMA}; `lanewise-load floor` writes it")
    return document
