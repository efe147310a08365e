"""Runs the cells of the study's tables, on as many processors as it may; the figures do not depend on how many."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context

from loadgen.failure import UsageError
from loadgen.sim.trials import Figures, Study, Trial, mean
from loadgen.tables import Case, Row, Table


@dataclass(frozen=True, slots=True)
class Span:
    """What all cells of a run share."""

    windows: int
    rows: int
    seed: int


@dataclass(frozen=True, slots=True)
class Cell:
    """One row at one workload and load."""

    row: Row
    case: Case
    backends: int
    engine: str
    """Which of the studies it belongs to."""

    def trial(self, span: Span) -> Trial:
        """Return what is to be measured."""
        workload, load = self.case
        return replace(
            self.row.trial,
            workload=workload,
            load=load * self.row.load_factor,
            backends=self.backends,
            windows=span.windows,
            rows=span.rows,
            seed=span.seed,
        )


@dataclass(frozen=True, slots=True)
class Line:
    """A row with its figures."""

    row: Row
    cells: Mapping[Case, Figures]
    averaged: tuple[Case, ...]

    @property
    def mean(self) -> Figures | None:
        """The mean over the cases that count for it; None when not all of them ran."""
        if not self.averaged or not all(case in self.cells for case in self.averaged):
            return None
        return mean([self.cells[case] for case in self.averaged])


def cells_of(table: Table) -> list[Cell]:
    """Return the cells of a table, row by row."""
    return [Cell(row, case, table.backends, table.engine) for row in table.rows for case in table.cases]


def lines_of(table: Table, figures: Iterator[Figures]) -> list[Line]:
    """Put figures, in the order of `cells_of`, back into rows."""
    return [Line(row, {case: next(figures) for case in table.cases}, table.averaged) for row in table.rows]


def run_cells(studies: Mapping[str, Study], cells: Sequence[Cell], span: Span, processes: int) -> Iterator[Figures]:
    """Measure the cells and return their figures, in order, as they come.

    Args:
        studies: by name of the engine. What they share, workloads and saturated throughputs, is built before others
            get a copy.
        cells: what to measure.
        span: windows, rows and seed of each.
        processes: how many work at once.

    Raises:
        UsageError: as `Study.run`, or flags that no engine could run with.
    """
    for engine, workload in dict.fromkeys((cell.engine, cell.case[0]) for cell in cells):
        studies[engine].saturated_per_s(workload)
    if processes == 1:
        for cell in cells:
            yield _measure(studies, cell, span)
        return
    with ProcessPoolExecutor(processes, get_context("spawn"), _equip, (studies, span)) as pool:
        try:
            yield from pool.map(_measure_here, cells)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _measure(studies: Mapping[str, Study], cell: Cell, span: Span) -> Figures:
    study = studies[cell.engine]
    if cell.row.flags:
        try:
            study = study.flagged(**cell.row.flags)
        except ValueError as error:
            raise UsageError(f"row {cell.row.name}: {error}") from None
    return study.run(cell.trial(span))


_EQUIPMENT: list[tuple[Mapping[str, Study], Span]] = []
"""Of a worker process: what it was started with."""


def _equip(studies: Mapping[str, Study], span: Span) -> None:
    _EQUIPMENT[:] = [(studies, span)]


def _measure_here(cell: Cell) -> Figures:
    ((studies, span),) = _EQUIPMENT
    return _measure(studies, cell, span)
