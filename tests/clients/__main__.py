"""Drive real client libraries through the proxy: `python -m tests.clients`.

Exit code 0: every library shows what it should; 1: the libraries could not be had; 2: wrong usage; 3: one shows
something else; 130: interrupted.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.clients.engine import CASES, LIBRARIES
from tests.clients.environment import HOME, MissingError, environment
from tests.clients.matrix import run
from tests.clients.table import write_table
from tests.faults.station import ROOT


def main(arguments: Sequence[str]) -> int:
    """Run what was asked for; see the module docstring for the exit code."""
    options = _options(arguments)
    try:
        where = environment(make=True)
        if where.node_folder is None:
            print("no Node 20 with npm: the JavaScript libraries are left out", file=sys.stderr)
        rows = asyncio.run(run(where, tuple(options.client or LIBRARIES), tuple(options.case or CASES)))
    except MissingError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: nothing is written", file=sys.stderr)
        return 130
    lines = [row.as_json() for row in rows]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(lines, indent=1, ensure_ascii=False) + "\n", "utf-8")
    if options.table:
        write_table(ROOT / "docs/clients.md", lines)
    failed = [line for line in lines if not line["passed"]]
    for line in failed:
        print(f"{line['library']}, {line['case']}: {'; '.join(line['unmet'])}", file=sys.stderr)
    print(f"{len(lines) - len(failed)} of {len(lines)} as expected: {options.out}")
    return 3 if failed else 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    parser.add_argument(
        "--library", dest="client", choices=LIBRARIES, action="append", help="drive this one alone; may be repeated"
    )
    parser.add_argument("--case", choices=CASES, action="append", help="run this case alone; may be repeated")
    parser.add_argument("--out", type=Path, default=HOME / "latest.json", help="default: runs/clients/latest.json")
    parser.add_argument("--table", action="store_true", help="write the table into docs/clients.md")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
