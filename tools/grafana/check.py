"""Ask a running Prometheus every query of every dashboard, and say which give nothing.

`python -m tools.grafana.check http://127.0.0.1:9090`; exits with 3 when a query has no data or is refused.
"""

import argparse
import json
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.prometheus.server import ROOT, Prometheus


@dataclass(frozen=True, kw_only=True)
class Screen:
    """What Grafana fills in."""

    window: str = "1m"
    """For `$__rate_interval`: four scrapes at least."""
    over_s: float = 300.0
    """How far back a panel reaches."""
    step_s: float = 15.0
    until: float | None = None
    """Unix seconds where a panel ends; None: now."""


def boards(folder: Path = ROOT / "grafana/dashboards") -> dict[str, dict[str, Any]]:
    """Return the dashboards by name."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}


def queries(board: dict[str, Any], screen: Screen) -> Iterator[tuple[str, str]]:
    """Yield the title of a panel and each of its expressions, as Grafana would send them."""
    values = {variable["name"]: _value(variable) for variable in board["templating"]["list"]}
    values["__rate_interval"] = screen.window
    values["__range"] = f"{screen.over_s:.0f}s"
    for panel in board["panels"]:
        for target in panel.get("targets") or ():
            yield panel["title"], re.sub(r"\$(\w+)", lambda found: values[found[1]], target["expr"])


def _value(variable: dict[str, Any]) -> str:
    if variable["type"] == "datasource" or variable.get("includeAll"):
        return str(variable.get("allValue", ""))
    return str(variable["current"]["value"])


def findings(prometheus: Prometheus, board: dict[str, Any], screen: Screen) -> Iterator[str]:
    """Yield one line for each query that is refused, has no series, or numbers nowhere."""
    for title, expr in queries(board, screen):
        try:
            series = prometheus.over(expr, screen.over_s, screen.step_s, screen.until)
        except ValueError as refused:
            yield f"{title}: refused: {refused}"
            continue
        if not series:
            yield f"{title}: no series: {expr}"
        elif all(math.isnan(float(value)) for one in series for _, value in one["values"]):
            yield f"{title}: no number: {expr}"


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prometheus", help="its URL, http://HOST:PORT")
    parser.add_argument("--window", default="1m", help="of rates; four scrapes at least (default: 1m)")
    parser.add_argument("--over", type=float, default=300.0, help="seconds to look back (default: 300)")
    asked = parser.parse_args(arguments)
    screen = Screen(window=asked.window, over_s=asked.over, step_s=max(1.0, asked.over / 20))
    found = [
        f"{name}: {line}"
        for name, board in boards().items()
        for line in findings(Prometheus(asked.prometheus), board, screen)
    ]
    print("\n".join(found) or "every query has data")
    return 3 if found else 0


if __name__ == "__main__":
    sys.exit(main())
