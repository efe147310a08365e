"""Write config/prometheus: rules, alerts, and the cases for `promtool test rules`.

`python -m tools.prometheus.render` writes them, `--check` says which are out of date and exits with 1.
`--out DIR --factor 60` writes the same rules with every `for` and every window divided by 60, for tests against a
running Prometheus; names of rules stay. `--runbook URL` puts the runbook where your people find it.
"""

import argparse
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from tools.prometheus.alerts import alerts
from tools.prometheus.nouns import Alert, Case, Fired, Objectives
from tools.prometheus.recording import recordings

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = "config/prometheus"
RUNBOOK = "docs/runbook.md"
EVERY_S = 15.0
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+)(ms|s|m|h|d)")
_WINDOW = re.compile(r"\[([0-9a-z]+)\]")
_MADE = "# Made by `python -m tools.prometheus.render`: change tools/prometheus, not this file.\n"
_FACTOR = "# Every `for` and every window is divided by {factor:g}: for tests only.\n"


def seconds(duration: str) -> float:
    """Read a duration of Prometheus, such as `1h30m`."""
    return sum(int(count) * _UNITS[unit] for count, unit in _DURATION.findall(duration))


def divided(duration: str, factor: float) -> str:
    """Return a duration divided by a factor, in whole milliseconds."""
    if factor == 1:
        return duration
    return f"{max(1, round(1000 * seconds(duration) / factor))}ms"


def scaled(expr: str, factor: float) -> str:
    """Return an expression whose windows are divided by a factor."""
    return _WINDOW.sub(lambda found: f"[{divided(found[1], factor)}]", expr)


def documents(factor: float = 1.0, runbook: str = RUNBOOK, objectives: Objectives | None = None) -> dict[str, str]:
    """Return every file by its name.

    Args:
        factor: what `for` and windows are divided by.
        runbook: page that alerts lead to.
        objectives: what is promised; None: the defaults.
    """
    wanted = objectives or Objectives()
    every = divided("15s", factor) if factor == 1 else f"{max(1, round(EVERY_S / factor))}s"
    rules = [_recording(one.record, scaled(one.expr, factor)) for one in recordings(wanted)]
    known = tuple(alerts(wanted))
    fires = [_alert(one, factor, runbook) for one in known]
    files = {
        "recording.yaml": _written([{"name": "lanewise", "interval": every, "rules": rules}], factor),
        "alerts.yaml": _written([{"name": "lanewise-alerts", "interval": every, "rules": fires}], factor),
    }
    if factor == 1:
        files["tests.yaml"] = _MADE + _yaml(_tests(known, runbook))
    return files


def _written(groups: list[dict[str, Any]], factor: float) -> str:
    return _MADE + (_FACTOR.format(factor=factor) if factor != 1 else "") + _yaml({"groups": groups})


def _recording(record: str, expr: str) -> dict[str, Any]:
    return {"record": record, "expr": expr}


def _alert(alert: Alert, factor: float, runbook: str) -> dict[str, Any]:
    wait = {} if alert.wait is None else {"for": divided(alert.wait, factor)}
    return {
        "alert": alert.name,
        "expr": scaled(alert.expr, factor),
        **wait,
        "labels": _labels(alert),
        "annotations": _annotations(alert, runbook),
    }


def _labels(alert: Alert) -> dict[str, str]:
    return {"severity": alert.severity, **({} if alert.window is None else {"window": alert.window})}


def _annotations(alert: Alert, runbook: str) -> dict[str, str]:
    return {
        "summary": alert.summary.en,
        "summary_zh": alert.summary.zh,
        "description": alert.description.en,
        "description_zh": alert.description.zh,
        "runbook_url": f"{runbook}#{alert.name.lower()}",
    }


def _tests(known: Iterable[Alert], runbook: str) -> dict[str, Any]:
    of = {(alert.name, alert.window): alert for alert in known}
    return {
        "rule_files": ["recording.yaml", "alerts.yaml"],
        "evaluation_interval": "15s",
        "tests": [_test(name, case, of, runbook) for (name, _), alert in of.items() for case in alert.cases],
    }


def _test(name: str, case: Case, of: dict[tuple[str, str | None], Alert], runbook: str) -> dict[str, Any]:
    expected = [_expected(of[name, fired.window], fired, runbook) for fired in case.fired]
    return {
        "name": f"{name}: {case.name}" + ("" if expected else " (silent)"),
        "interval": case.interval,
        "input_series": [{"series": series, "values": values} for series, values in case.series.items()],
        "alert_rule_test": [{"eval_time": case.at, "alertname": name, "exp_alerts": expected}],
    }


def _expected(alert: Alert, fired: Fired, runbook: str) -> dict[str, Any]:
    def fill(text: str) -> str:
        text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: fired.labels[found[1]], text)
        return re.sub(r"\{\{ \$value[^}]*\}\}", fired.value, text)

    return {
        "exp_labels": {**fired.labels, **_labels(alert)},
        "exp_annotations": {name: fill(text) for name, text in _annotations(alert, runbook).items()},
    }


class _Plain(yaml.SafeDumper):
    """Writes lists indented under their key, and expressions of several lines as such."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, indentless=False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Plain.add_representer(str, _text)


def _yaml(document: dict[str, Any]) -> str:
    return yaml.dump(document, Dumper=_Plain, allow_unicode=True, sort_keys=False, width=120)


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--out", type=Path, default=ROOT / FOLDER, help="folder (default: config/prometheus)")
    parser.add_argument("--factor", type=float, default=1.0, help="divide every `for` and window by this")
    parser.add_argument("--runbook", default=RUNBOOK, help="page that alerts lead to (default: docs/runbook.md)")
    asked = parser.parse_args(arguments)
    if not asked.factor >= 1:
        parser.error(f"--factor {asked.factor:g}: must be 1 or more")
    files = documents(asked.factor, asked.runbook)
    if asked.check:
        stale = [
            name
            for name, text in files.items()
            if not (asked.out / name).is_file() or (asked.out / name).read_text(encoding="utf-8") != text
        ]
        print("\n".join(f"out of date: {asked.out / name}" for name in stale) or "up to date")
        return 1 if stale else 0
    asked.out.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (asked.out / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
