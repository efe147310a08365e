"""What a Grafana needs to come up with everything in it: data source, folder, alerts.

The alerts are those of Prometheus, for a Grafana that evaluates them itself: load recording.yaml into Prometheus in any
case, and alerts.yaml only where Prometheus evaluates. A rule of ours gives series only where it holds, so Grafana
counts each series as one alert and no series as none.
"""

from typing import Any

import yaml

from tools.prometheus.alerts import alerts
from tools.prometheus.nouns import Alert, Objectives
from tools.prometheus.render import RUNBOOK

FOLDER = "grafana/provisioning"
SOURCE_UID = "lanewise-prometheus"
_MADE = "# Made by `python -m tools.grafana.build`: change tools/grafana, not this file.\n"


def provisioning() -> dict[str, str]:
    """Return every file by its path in the repository."""
    return {
        f"{FOLDER}/datasources/lanewise.yaml": _written(_sources()),
        f"{FOLDER}/dashboards/lanewise.yaml": _written(_providers()),
        f"{FOLDER}/alerting/lanewise.yaml": _written(_rules()),
    }


def _sources() -> dict[str, Any]:
    source = {
        "name": "lanewise Prometheus",
        "uid": SOURCE_UID,
        "type": "prometheus",
        "access": "proxy",
        "url": "$PROMETHEUS_URL",
        "isDefault": False,
        "editable": False,
        "jsonData": {"timeInterval": "15s", "httpMethod": "POST", "prometheusType": "Prometheus"},
    }
    return {"apiVersion": 1, "datasources": [source]}


def _providers() -> dict[str, Any]:
    provider = {
        "name": "lanewise",
        "orgId": 1,
        "folder": "lanewise",
        "folderUid": "lanewise",
        "type": "file",
        "disableDeletion": True,
        "allowUiUpdates": False,
        "updateIntervalSeconds": 30,
        "options": {"path": "/etc/grafana/lanewise/dashboards", "foldersFromFilesStructure": False},
    }
    return {"apiVersion": 1, "providers": [provider]}


def _rules() -> dict[str, Any]:
    rules = [_rule(alert) for alert in alerts(Objectives())]
    group = {"orgId": 1, "name": "lanewise", "folder": "lanewise", "interval": "15s", "rules": rules}
    return {"apiVersion": 1, "groups": [group]}


def _rule(alert: Alert) -> dict[str, Any]:
    name = alert.name if alert.window is None else f"{alert.name} {alert.window}"
    labels = {"severity": alert.severity, **({} if alert.window is None else {"window": alert.window})}
    return {
        "uid": name.lower().replace(" ", "-"),
        "title": name,
        "condition": "C",
        "data": [
            _query("A", SOURCE_UID, {"expr": alert.expr, "instant": True, "range": False}),
            # What is left of the expression always holds, whatever its value.
            _query("C", "__expr__", {"type": "math", "expression": "is_number($A) || is_inf($A) || is_nan($A)"}),
        ],
        "for": alert.wait or "0s",
        "noDataState": "OK",
        "execErrState": "Error",
        "labels": labels,
        "annotations": {
            "summary": _filled(alert.summary.en),
            "summary_zh": _filled(alert.summary.zh),
            "description": alert.description.en,
            "description_zh": alert.description.zh,
            "runbook_url": f"{RUNBOOK}#{alert.name.lower()}",
        },
    }


def _query(ref: str, source: str, model: dict[str, Any]) -> dict[str, Any]:
    return {
        "refId": ref,
        "relativeTimeRange": {"from": 600, "to": 0},
        "datasourceUid": source,
        "model": {"refId": ref, "datasource": {"uid": source}, **model},
    }


def _filled(text: str) -> str:
    """Return a text of Prometheus as Grafana fills it in: the value is that of query A."""
    return text.replace("$value", "$values.A.Value")


def _written(document: dict[str, Any]) -> str:
    return _MADE + yaml.safe_dump(document, allow_unicode=True, sort_keys=False, width=120)
