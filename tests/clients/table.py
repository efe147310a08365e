"""The table of docs/clients.md, between its marks, made from the rows of one run."""

from pathlib import Path
from typing import Any

from tests.clients.engine import CASES, LIBRARIES

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
Line = dict[str, Any]


def write_table(page: Path, lines: list[Line]) -> None:
    """Put the table into the page."""
    before, _, rest = page.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{_table(lines)}\n{END}{after}", "utf-8")


def _table(lines: list[Line]) -> str:
    by = {(line["library"], line["case"]): line for line in lines}
    libraries = [one for one in LIBRARIES if any(library == one for library, _ in by)]
    rows = [f"| client | {' | '.join(CASES)} |", f"|---|{'---|' * len(CASES)}"]
    for library in libraries:
        version = next(line["version"] for line in lines if line["library"] == library)
        cells = [_cell(by[library, case]) if (library, case) in by else "" for case in CASES]
        rows.append(f"| {library} {version} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _cell(line: Line) -> str:
    got = line["got"]
    shown = got.get("error") or ""
    status = got.get("status")
    if not shown and isinstance(status, int) and status >= 400:
        shown = f"the answer {status}"
    elif shown and status:
        shown = f"{shown} {status}"
    if not shown:
        shown = got.get("tool") or (got.get("text") or "nothing").strip()
    if got["attempts"] != 1:
        waits = got["gaps_s"]
        shown += f", {got['attempts']} attempts"
        if waits:
            shown += f" ({min(waits):.1f} to {max(waits):.1f} s apart)"
    return shown if line["passed"] else f"**{shown}**"
