"""The result table in docs/faults.md, made from the rows of one run."""

import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.faults.case import KINDS
from tests.faults.control import NAIVE_DIFFERS

Line = dict[str, Any]
"""One row of runs/faults/latest.json."""

_TITLES = {
    "raw": "Bytes: HTTP framing, paths and headers",
    "json": "Bodies: JSON",
    "semantics": "Bodies: request fields",
    "lifecycle": "Clients and engines that leave, stall, cut and lie",
    "admission": "Full queues",
    "operations": "Signals, disks, clocks, names, secrets",
    "clients": "Client libraries",
    "loadgen": "The load generator",
}
_INTRODUCTION = """\
# Faults

What breaks proxies, and what this one does with it. `make faults` runs every row below on real sockets: a client that
writes raw bytes, `lanewise serve` (or `lanewise-load`) as a process, and a recording upstream behind it that keeps
every byte it gets. It takes about six minutes on two cores, writes `runs/faults/latest.json` (rows
`id, expected, got, passed`) and this page, and exits 3 when a row fails. One row or one kind:
`.venv/bin/python -m tests.faults RAW-010 LIFE-06`, `--kind operations`.

- `expected` is a rule, `got` is what was observed, `passed` is computed from the two (`tests/faults/rules.py`).
  Each raw row demands in addition: no 5xx (501 and 505 are refusals), no traceback in the log, and the next connection
  is served.
- **The control**: `.venv/bin/python -m tests.faults --target naive` runs the raw rows against a naive forwarder, which
  must fail a known set of them (`tests/faults/control.py`). A suite that it passes sees nothing. What it did is laid
  beside what is recorded of it elsewhere (`--outcomes`).
- **What is scaled**: the time limits of 20 to 900 s in production are 1 to 3 s here; 10,000 aborts are 1,500
  (`FAULTS_ABORTS`), two hours of soak are 20 s (`FAULTS_SOAK_S`), a stream of more than 300 s is one of ten time
  limits (`FAULTS_STREAM_S`), the full disk is 64 kB.
- **What is planted**: a wall clock that jumps, a blocked event loop and a slow disk are put inside the process under
  test by `tests/faults/inject/sitecustomize.py`; a full disk and changing host names by a mount namespace.
- A client that closes its half of the connection after its request is taken for one that left (LIFE-04): the slot is
  free at once and the engine's connection is closed. `socat` and `nc -N` do that; HTTP clients do not.
- **Judged with a source**, where another outcome could be wished for: blanks in a request line may be split leniently
  (RAW-080: RFC 9112, 3); HEAD is answered 405, as vLLM does (RAW-194: RFC 9110, 15.5.6); a compressed body is 415 and
  is not looked at (RAW-174: RFC 9110, 15.5.16); no protocol is changed to (RAW-145: RFC 9110, 7.8, an upgrade may be
  ignored or refused); a second request on the connection is judged by itself (RAW-191).
- **The client rows** drive real libraries, which are installed into `runs/clients` once ([clients.md](clients.md));
  `FAULTS_CLIENTS=off` leaves them out.
- Rows that could not be observed say `not run: needs …` and count as failed.
"""
_LEFT_OUT = {"held_after", "body", "words", "first", "log", "said", "tail", "traceback", "next_connection", "no_5xx"}
_CELL = 160


def write_table(path: Path, rows: list[Line], control: list[Line]) -> None:
    """Write the page; `control` holds the rows of the last run against the naive forwarder, if there was one."""
    parts = [_INTRODUCTION, _counts(rows)]
    parts += [_failures(rows)] if not all(row["passed"] for row in rows) else []
    parts += [_control(control)] if control else []
    parts += [_kind(kind, [row for row in rows if row["kind"] == kind]) for kind in KINDS]
    path.write_text("\n".join(part for part in parts if part).rstrip() + "\n", "utf-8")


def _counts(rows: list[Line]) -> str:
    lines = [
        f"## Result\n\naiohttp {version('aiohttp')}, uvloop {version('uvloop')}.\n",
        "| kind | rows | passed | not run |",
    ]
    lines.append("|---|---|---|---|")
    for kind in KINDS:
        of = [row for row in rows if row["kind"] == kind]
        not_run = sum("not run" in row["got"] for row in of)
        lines.append(f"| {kind} | {len(of)} | {sum(row['passed'] for row in of)} | {not_run or ''} |")
    passed, not_run = sum(row["passed"] for row in rows), sum("not run" in row["got"] for row in rows)
    lines.append(f"| all | {len(rows)} | {passed} | {not_run or ''} |")
    return "\n".join(lines) + "\n"


def _failures(rows: list[Line]) -> str:
    lines = ["## What fails\n", "| id | sent or broken | missed |", "|---|---|---|"]
    lines += [
        f"| {row['id']} | {_cell(row['input'])} | {_cell('; '.join(row['unmet']), 300)} |"
        for row in rows
        if not row["passed"]
    ]
    return "\n".join(lines) + "\n"


def _control(rows: list[Line]) -> str:
    """What the naive forwarder fails, and how that agrees with what is recorded of it elsewhere."""
    failed = [row for row in rows if [text for text in row["unmet"] if not text.startswith("got.traceback")]]
    compared = [row["control"] for row in rows if "control" in row]
    lines = [
        "## The control\n",
        f"The naive forwarder fails {len(failed)} of {len(rows)} raw rows, those that it is known to fail: "
        + ", ".join(row["id"].removeprefix("RAW-") for row in failed)
        + ".\n",
    ]
    if compared:
        same = sum(one["same"] for one in compared)
        lines += [
            "Its outcomes beside those recorded of nine servers elsewhere (statuses, and requests that reached the",
            f"upstream): {same} of {len(compared)} are the same. The others, with the reason:\n",
            "| id | here | recorded | why |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| {one['id']} | {one['got']} | {one['recorded']} | {NAIVE_DIFFERS.get(one['id'], '**unknown**')} |"
            for one in compared
            if not one["same"]
        ]
    return "\n".join(lines) + "\n"


def _kind(kind: str, rows: list[Line]) -> str:
    if not rows:
        return ""
    lines = [f"## {_TITLES[kind]}\n", "| id | sent or broken | what must happen | seen | |", "|---|---|---|---|---|"]
    for row in rows:
        wanted = row["why"] or _said(row["expected"])
        verdict = "passed" if row["passed"] else "**failed**"
        lines.append(f"| {row['id']} | {_cell(row['input'])} | {_cell(wanted)} | {_cell(_seen(row))} | {verdict} |")
    return "\n".join(lines) + "\n"


def _seen(row: Line) -> str:
    if row["kind"] == "raw" and "statuses" in row["got"]:
        got = row["got"]
        statuses = got["statuses"] if isinstance(got["statuses"], str) else ", ".join(map(str, got["statuses"]))
        return f"{statuses or 'no answer'}{', closed' if got['closed'] else ''}; {got['upstream']['requests']} upstream"
    return _said(_without_noise(row["got"]))


def _without_noise(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_noise(inner) for key, inner in value.items() if key not in _LEFT_OUT}
    if isinstance(value, list) and len(value) > 3:
        return [*value[:2], "…"]
    return round(value, 3) if isinstance(value, float) else value


def _said(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text.replace('"', "").strip("{}")


def _cell(text: str, most: int = _CELL) -> str:
    text = re.sub(r"/\S*faults-\w+/", "", text)
    text = "".join(c if c.isprintable() else " " for c in text).replace("|", "\\|").replace("<", "&lt;")
    return text if len(text) <= most else text[: most - 1] + "…"
