"""What the naive forwarder is known to get wrong. The suite must see it, or it sees nothing.

The set is what the recorded outcomes of nine servers say of a naive forwarder, with these differences of the one that
is used here (`tests/bench/proxies/aiohttp_naive.py`): it parses JSON, so a body compressed twice and that of a GET end
in 500 (RAW-172, RAW-193); it accepts 64 MiB, so the bomb is inflated (RAW-171); it forwards `path_qs`, so the absolute
form is served (RAW-071, RAW-072). aiohttp logs a traceback for each request that is no HTTP; that is no matter of the
wire and does not count here.
"""

import json
import re
from pathlib import Path
from typing import Any

from tests.faults.case import Row

_NUMBERS = """
    0421 052 073 075 076 082 083 0900 0901 0902 0903 0904 0906 0907 0908 0909 0910 105 115 126 130 131 132 133
    142 143 144 145 160 170 171 172 173 174 192 193 194
"""
NAIVE_DIFFERS: dict[str, str] = {
    "RAW-002": "a GET of the models is not counted here: a proxy may answer it itself, and polls it",
    "RAW-071": "this forwarder sends path and query on; that one joined the client's target to its own URL",
    "RAW-072": "as RAW-071",
    "RAW-150": "the upstream here sends 100 Continue when it is asked; that recorder did not",
    "RAW-161": "that recorder counted it twice",
    "RAW-171": "this forwarder accepts 64 MiB, so it is inflating still; that one refused by its limit",
    "RAW-172": "this forwarder parses JSON, and a body that is compressed twice is none",
    "RAW-193": "this forwarder parses the body of every request as JSON",
    "RAW-194": "the upstream here answers HEAD without a body; that recorder sent one",
}
"""Rows where its statuses or its requests upstream are other than those recorded elsewhere, and why."""
NAIVE_FAILS = frozenset(f"RAW-{number}" for number in _NUMBERS.split())


def differences(rows: list[Row]) -> list[str]:
    """Return one sentence for each row where the naive forwarder did other than it is known to do."""
    found = []
    for row in rows:
        wrong = [text for text in row.unmet if not text.startswith("got.traceback")]
        if bool(wrong) != (row.case.id in NAIVE_FAILS):
            verb = "failed, and is known to pass" if wrong else "passed, and is known to fail"
            found.append(f"{row.case.id} {verb}: {'; '.join(wrong)[:200]}")
    return found


def recorded(path: Path) -> dict[str, tuple[list[int], int]]:
    """Read what the naive forwarder did when nine servers were compared: statuses and requests upstream of each row.

    Args:
        path: `outcomes.jsonl`, one JSON object a line.
    """
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line]
    return {row["id"]: _outcome(row["naive_proxy"]) for row in rows}


def _outcome(text: str) -> tuple[list[int], int]:
    """Read `200,400 closed, 1`, or `200x300, 300`."""
    answers, _, requests = text.rpartition(", ")
    many = re.match(r"(\d{3})x(\d+)", answers)
    statuses = [int(many[1])] * int(many[2]) if many else [int(code) for code in re.findall(r"\b\d{3}\b", answers)]
    return [status for status in statuses if status >= 200], int(requests)


def beside(rows: list[dict[str, Any]], known: dict[str, tuple[list[int], int]]) -> list[dict[str, Any]]:
    """Lay what the naive forwarder did now beside what is recorded of it.

    Args:
        rows: of a run against it, as they are written.
        known: see `recorded`.

    Returns:
        One row each: `id, passed, known_to_fail, got, recorded, same`.
    """
    found = []
    for row in rows:
        statuses, requests = known[row["id"]]
        got = row["got"]
        seen = got["statuses"] if isinstance(got["statuses"], list) else [200] * got["ok"]
        now = (seen, got["upstream"]["requests"])
        found.append(
            {
                "id": row["id"],
                "passed": not [text for text in row["unmet"] if not text.startswith("got.traceback")],
                "known_to_fail": row["id"] in NAIVE_FAILS,
                "got": _told(*now),
                "recorded": _told(statuses, requests),
                "same": now == (statuses, requests),
            }
        )
    return found


def _told(statuses: list[int], requests: int) -> str:
    answers = ", ".join(map(str, statuses)) if len(statuses) < 10 else f"{statuses[0]} x {len(statuses)}"
    return f"{answers or 'no answer'}; {requests} upstream"
