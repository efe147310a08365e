"""From the shots of a run to its summary: the definitions of docs/latencies.md, in numpy."""

from loadgen.journal import RunFolder
from loadgen.summary import Slo, Summary


def summarise(run: RunFolder, slo: Slo = Slo()) -> Summary:  # noqa: B008
    """Read a run folder and say what it shows.

    Args:
        run: the run folder, complete or not.
        slo: what makes a request good.

    Raises:
        UsageError: the folder is no run folder.
    """
    raise NotImplementedError
