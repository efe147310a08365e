"""The command `merge`: the run folders of several load generators become one."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from loadgen.failure import UsageError
from loadgen.flags import Switch
from loadgen.journal import RunFolder
from loadgen.summary import Slo


def merge(
    *folders: Path,
    out: Annotated[Path, Parameter(required=True)],
    json: Switch = False,
) -> int:
    """Merge the run folders of all shards of one plan into one run.

    Parameters
    ----------
    folders
        Run folders of `replay --shard`, one of each shard.
    out
        Run folder to write; must not exist or be empty.
    json
        Print the summary of the merged run as one JSON document.
    """
    from loadgen.cli import print_run  # noqa: PLC0415
    from loadgen.shards.merge import merge as merge_runs  # noqa: PLC0415

    if len(folders) < 2:
        raise UsageError("merge: give the run folders of at least two shards")
    return print_run(merge_runs([RunFolder(path) for path in folders], out), Slo(), as_json=json)
