"""`lanewise explain`: the command. What it needs is imported inside it: see `proxy.cli`."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

from cyclopts import Parameter

from proxy.cli import _NOTHING, DONE, FAILED, USAGE, CommandError, Source, _admin, _admin_key, _ask, _print_json

if TYPE_CHECKING:
    from proxy.settings import Settings


def explain(
    request_id: str | None = None,
    source: Source = _NOTHING,
    *,
    body: Path | None = None,
    endpoint: str = "chat",
    context: int | None = None,
    json_output: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Say why a request was treated as it was.

    Three ways to ask: REQUEST_ID of a running proxy (--admin), which keeps the last `explain.keep`; REQUEST_ID in a
    recorded trace (--record FILE); or --body FILE with --config, for what would be decided about it: a dry run, no
    engine and no proxy needed.

    Args:
        request_id: as the answer's x-request-id says.
        source: where settings come from; --record names a trace file or directory to look in.
        body: a request body to decide about (JSON).
        endpoint: of that body: chat, completions, responses, messages, embeddings, pooling, or a path.
        context: the model's context (max_model_len) for that body; without it nothing is refused for its sake.
        json_output: print one JSON document.
    """
    if (request_id is None) == (body is None):
        raise CommandError(
            USAGE, "name either a REQUEST_ID or --body FILE, for example: lanewise explain --body a.json"
        )
    if body is not None:
        told = _would_be(source, body, endpoint, context)
    elif source.record is not None:
        told = _recorded(source, str(request_id))
    else:
        told = _remembered(source, str(request_id))
    if json_output:
        _print_json(told)
    else:
        from proxy.explain_text import lines  # noqa: PLC0415

        sys.stdout.write("".join(f"{line}\n" for line in lines(told)))
    return DONE


def _would_be(source: Source, body: Path, endpoint: str, context: int | None) -> dict[str, Any]:
    from proxy.explain_dry import NothingFoundError, dry_run  # noqa: PLC0415

    settings = source.load().settings
    try:
        return dry_run(settings, body.read_bytes(), endpoint, context, _learned(settings))
    except OSError as error:
        raise CommandError(USAGE, f"--body {body}: {error.strerror}") from None
    except NothingFoundError as error:
        raise CommandError(USAGE, str(error)) from None


def _learned(settings: "Settings") -> Mapping[str, Any] | None:
    """Return what a proxy of this configuration has learned of lengths on this machine; None: nothing is known."""
    from proxy.history import state_directory  # noqa: PLC0415
    from proxy.lengths import read_lengths  # noqa: PLC0415

    directory = state_directory(settings, os.environ)
    try:
        return None if directory is None else read_lengths(directory / f"lengths-{settings.admin.port}.json")
    except (OSError, ValueError):
        return None


def _recorded(source: Source, request_id: str) -> dict[str, Any]:
    from proxy.explain_dry import NothingFoundError, find_record, from_record  # noqa: PLC0415
    from proxy.wire.trace import TraceError  # noqa: PLC0415

    path = Path(str(source.record))
    try:
        record = find_record(path, request_id)
    except OSError as error:
        raise CommandError(USAGE, f"--record {path}: {error.strerror}") from None
    except TraceError as error:
        raise CommandError(USAGE, str(error)) from None
    except NothingFoundError as error:
        raise CommandError(FAILED, str(error)) from None
    # Here --record says where to look; as a setting it would make the configuration another one.
    return from_record(replace(source, record=None).load().settings if source.names_engines else None, record)


def _remembered(source: Source, request_id: str) -> dict[str, Any]:
    address = _admin(source)
    status, text = _ask(address, f"/explain.json?id={quote(request_id, safe='')}", _admin_key(source))
    try:
        told = json.loads(text)
    except ValueError:
        told = None
    if not isinstance(told, dict) or "found" not in told:
        raise CommandError(FAILED, f"{address} does not answer like a lanewise admin listener (status {status})")
    if not told.pop("found"):
        recent = [str(one.get("request_id")) for one in told.get("recent", ()) if isinstance(one, dict)]
        none = "it keeps none yet: none has ended since its start, or explain.keep is 0"
        kept = f"the last ones are {', '.join(recent[:5])}" if recent else none
        raise CommandError(FAILED, f"the proxy at {address} keeps no request {request_id!r}; {kept}")
    return told
