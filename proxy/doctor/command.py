"""`lanewise doctor`: the command. What it needs is imported inside it: see `proxy.cli`."""

import datetime as dt
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from proxy.cli import _NOTHING, DONE, FAILED, GATE, USAGE, CommandError, Source, _admin, _admin_key, _print_json


def doctor(
    source: Source = _NOTHING,
    *,
    trace: Path | None = None,
    apart: str = "2s",
    json_output: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Say what in the configuration, the engines and the traffic does not fit together, each with the next step.

    With --config (or --backend) that configuration is judged against the engines; with --admin alone the one that the
    proxy there has in force. Either way the proxy is asked what it sees, where one runs. Nothing is sent to the engines
    but reads of /health, /metrics, /version, /v1/models and /server_info. Exit code 3: something is an error.

    Args:
        source: where settings come from.
        trace: a recorded trace (file or directory) to take prompt lengths from, instead of the proxy's metrics.
        apart: time between two looks at the engines' queues.
        json_output: print one JSON document.
    """
    from proxy.doctor.finding import lines  # noqa: PLC0415
    from proxy.doctor.gather import GatherError  # noqa: PLC0415
    from proxy.doctor.visit import Visit, visit  # noqa: PLC0415
    from proxy.settings.units import parse_duration  # noqa: PLC0415

    try:
        seconds = parse_duration(apart)
    except ValueError as error:
        raise CommandError(USAGE, f"--apart {apart}: {error}") from None
    own = source.names_engines
    called = Visit(source.load().settings if own else None, _admin(source), trace, seconds, _admin_key(source))
    try:
        result, asked = visit(called, dt.datetime.now(dt.UTC).date())
    except GatherError as error:
        raise CommandError(FAILED, str(error), "or give the configuration: lanewise doctor --config FILE") from None
    except OSError as error:
        raise CommandError(USAGE, f"--trace {trace}: {error.strerror or error}") from None
    except ValueError as error:
        raise CommandError(USAGE, f"--trace {error}") from None
    if json_output:
        _print_json({"asked": asked, **result.document()})
    else:
        sys.stdout.write("".join(f"{line}\n" for line in lines(result, asked)))
    return DONE if result.healthy else GATE
