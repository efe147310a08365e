"""The result table in docs/faults.md."""

from pathlib import Path

from tests.faults.case import Row


def write_table(path: Path, rows: list[Row]) -> None:
    """Write the table."""
    path.write_text("\n".join(row.case.id for row in rows), "utf-8")
