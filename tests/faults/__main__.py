"""Run the fault suite: `python -m tests.faults`. Exit code 0: every row passed; 3: some did not; 2: wrong usage;
130: interrupted."""

import argparse
import asyncio
import json
import resource
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.faults import raw, suite
from tests.faults.case import CASES, KINDS, Case, Row, run
from tests.faults.control import beside, differences, recorded
from tests.faults.station import POOL, ROOT, StartError, Station, start
from tests.faults.table import write_table

STATIONS = 4
"""Proxies that the raw cases are spread over."""
CONTROL = ROOT / "runs/faults/naive.json"
"""What the control did, for the page."""
BESIDE = 4
"""Other cases that run at the same time."""


def main(arguments: Sequence[str]) -> int:
    """Run what was asked for; see the module docstring for the exit code."""
    options = _options(arguments)
    _raise_descriptor_limit()
    chosen = [one for one in CASES.values() if _wanted(one, options)]
    if not chosen:
        print("no case has that id or kind", file=sys.stderr)
        return 2
    began = time.monotonic()
    try:
        rows = asyncio.run(_run_all(chosen, options))
    except (asyncio.CancelledError, KeyboardInterrupt):
        print("interrupted: nothing is written", file=sys.stderr)
        return 130
    seconds = time.monotonic() - began
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if options.target == "naive":
        return _judge_control(rows, options)
    lines = _merged(options.out, rows) if options.merge else [row.as_json() for row in rows]
    options.out.write_text(json.dumps(lines, indent=1, ensure_ascii=False) + "\n", "utf-8")
    if options.table:
        control = json.loads(CONTROL.read_text("utf-8")) if CONTROL.exists() else []
        write_table(ROOT / "docs/faults.md", lines, control)
    _print_summary(rows, seconds, options.out)
    return 0 if all(row.passed for row in rows) else 3


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("ids", nargs="*", help="run these rows alone (default: all)")
    parser.add_argument("--kind", choices=KINDS, action="append", help="run this kind alone; may be repeated")
    parser.add_argument(
        "--target",
        choices=("lanewise", "naive"),
        default="lanewise",
        help="naive: the control, a forwarder that must fail a known set of the raw rows",
    )
    parser.add_argument("--out", type=Path, help="default: runs/faults/latest.json, or naive.json there")
    parser.add_argument(
        "--outcomes",
        type=Path,
        default=ROOT.parent / "shared/faults/outcomes.jsonl",
        help="recorded outcomes of other servers, which the control is laid beside where the file exists",
    )
    parser.add_argument("--merge", action="store_true", help="keep the rows of the last run that are not run now")
    parser.add_argument("--table", action="store_true", help="also write docs/faults.md")
    options = parser.parse_args(arguments)
    options.out = options.out or (CONTROL if options.target == "naive" else ROOT / "runs/faults/latest.json")
    return options


def _merged(out: Path, rows: list[Row]) -> list[dict[str, Any]]:
    """The lines of the file, those of the cases that ran put anew; lines of cases that are gone are dropped."""
    kept = json.loads(out.read_text("utf-8")) if out.exists() else []
    lines = {line["id"]: line for line in kept if line["id"] in CASES} | {row.case.id: row.as_json() for row in rows}
    return sorted(lines.values(), key=lambda line: (KINDS.index(line["kind"]), line["id"]))


def _wanted(one: Case, options: argparse.Namespace) -> bool:
    if options.ids:
        return one.id in options.ids
    if options.target == "naive":
        return one.kind == "raw"
    return not options.kind or one.kind in options.kind


def _raise_descriptor_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _run_all(chosen: list[Case], options: argparse.Namespace) -> list[Row]:
    """Raw cases on a few stations, then others side by side (the longest first), then one by one what must be alone."""
    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)  # processes under test end with it
    others = sorted((one for one in chosen if one.kind != "raw"), key=lambda one: -KINDS.index(one.kind))
    slots = asyncio.Semaphore(BESIDE)

    async def beside(one: Case) -> Row:
        async with slots:
            return _said(await run(one))

    rows = await _run_raw([one for one in chosen if one.kind == "raw"], options.target)
    rows += await asyncio.gather(*(beside(one) for one in others if not one.alone))
    for one in others:
        if one.alone:
            rows.append(_said(await run(one)))
    await POOL.close()
    return sorted(rows, key=lambda row: (KINDS.index(row.case.kind), row.case.id))


async def _run_raw(cases: list[Case], target: str) -> list[Row]:
    todo = list(reversed(cases))
    rows: list[Row] = []
    failed: list[StartError] = []

    async def work() -> None:
        try:
            async with start(target=target) as station:
                while todo:
                    rows.append(_said(await run(_at(todo.pop(), station))))
        except StartError as error:
            failed.append(error)

    await asyncio.gather(*(work() for _ in range(min(STATIONS, (len(cases) + 5) // 6))))
    return rows + [_said(Row(one, {"no station": str(failed[0])}, ["no proxy could be started"], 0.0)) for one in todo]


def _at(one: Case, station: Station) -> Case:
    number = one.id.removeprefix("RAW-")
    kind = raw.TABLE[number][0]
    return suite.replaced(one, lambda: raw.observe(station, number, kind))


def _said(row: Row) -> Row:
    if not row.passed:
        print(f"{row.case.id:9} {'; '.join(row.unmet)[:300]}", file=sys.stderr, flush=True)
    return row


def _print_summary(rows: list[Row], seconds: float, out: Path) -> None:
    for kind in KINDS:
        of = [row for row in rows if row.case.kind == kind]
        if of:
            passed = sum(row.passed for row in of)
            not_run = sum("not run" in row.got for row in of)
            tail = f", {not_run} not run" if not_run else ""
            print(f"{kind:11} {passed:3} of {len(of):3} passed{tail}")
    print(f"{sum(row.passed for row in rows)} of {len(rows)} passed in {seconds:.0f} s: {out}")


def _judge_control(rows: list[Row], options: argparse.Namespace) -> int:
    """The naive forwarder must fail what it is known to fail: a suite that passes it sees nothing."""
    lines = [row.as_json() for row in rows]
    if options.outcomes.exists():
        compared = {one["id"]: one for one in beside(lines, recorded(options.outcomes))}
        lines = [line | {"control": compared[line["id"]]} for line in lines]
        same = sum(one["same"] for one in compared.values())
        print(f"{same} of {len(lines)} rows have the recorded statuses and requests upstream")
        for one in compared.values():
            if not one["same"]:
                print(f"{one['id']}: {one['got']}; recorded: {one['recorded']}")
    options.out.write_text(json.dumps(lines, indent=1, ensure_ascii=False) + "\n", "utf-8")
    found = differences(rows)
    print("\n".join(found) or "the naive forwarder fails exactly the rows that it is known to fail")
    return 3 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
