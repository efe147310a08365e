"""How long prompts are: from the metrics of a running proxy, or from a recorded trace."""

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from proxy.doctor.facts import Traffic
from proxy.wire import trace

_HISTOGRAM = "lanewise_request_prompt_tokens_bucket"
_BOUNDS = tuple(2**power for power in range(4, 23))
"""Prompt lengths that a trace is counted by, tokens."""


def from_metrics(samples: Mapping[str, Sequence[tuple[Mapping[str, str], float]]]) -> Traffic | None:
    """Read the prompt histogram of a proxy, all lanes together; None when it has none."""
    counts: dict[float, float] = {}
    for labels, value in samples.get(_HISTOGRAM, ()):
        try:
            bound = float(labels["le"])
        except (KeyError, ValueError):
            continue
        counts[bound] = counts.get(bound, 0.0) + value
    if float("inf") not in counts:
        return None
    total = int(counts.pop(float("inf")))
    bounds = tuple((bound, int(count)) for bound, count in sorted(counts.items()))
    return Traffic(total, bounds, "the proxy's metrics")


def from_lengths(lengths: Iterable[int], source: str) -> Traffic:
    """Count prompts by length."""
    ordered = sorted(lengths)
    return Traffic(len(ordered), tuple((float(b), bisect_right(ordered, b)) for b in _BOUNDS), source)


def read_trace(path: Path) -> Traffic:
    """Read prompt lengths of a trace file, or of all in a directory.

    Raises:
        OSError: it cannot be read.
        trace.TraceError: a line is no trace record; the text says where.
        ValueError: no file is there.
    """
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"{path}: no *.jsonl file is there")
    return from_lengths((tokens for file in files for tokens in _lengths(file)), str(path))


def _lengths(file: Path) -> Iterator[int]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.endswith(b"\n") or _whole(line):  # the last line may still be being written
                record = trace.decode(line, f"{file}:{number}")
                tokens = record.prompt_tokens if record.prompt_tokens is not None else record.prompt_tokens_estimated
                if tokens is not None:
                    yield tokens


def _whole(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
