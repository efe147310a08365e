"""Which requests of a closed loop met it full: the first wave starts together, and at the end it runs dry. Pure."""

import numpy as np

from loadgen.columns import Columns, Mask


def full(columns: Columns, places: int) -> Mask:
    """Return which requests were sent after the first `places`, and ended before the last one was sent.

    Args:
        columns: of the run.
        places: requests in flight; 0 where they are not held, then only those after the last send are left out.
    """
    at = np.argsort(np.nan_to_num(columns.sent, nan=np.inf), kind="stable")
    order = np.empty(len(at), dtype=np.int64)
    order[at] = np.arange(len(at))
    last = np.inf if np.isnan(columns.sent).all() else float(np.nanmax(columns.sent))
    with np.errstate(invalid="ignore"):
        return np.asarray((order >= places) & (columns.end <= last))
