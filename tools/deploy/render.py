"""Makes the plain manifests of `deploy/kubernetes/base` from the chart, so that both say the same.

    python -m tools.deploy.render      writes them; a test compares

The configuration is left out: kustomize makes its ConfigMap from `lanewise.yaml`, under a name that changes with it.
"""

import subprocess
from pathlib import Path
from typing import Any

import yaml

from tools.deploy.checkers import environment

ROOT = Path(__file__).resolve().parent.parent.parent
CHART = ROOT / "deploy/helm/lanewise"
BASE = ROOT / "deploy/kubernetes/base/lanewise.yaml"
_MADE = "# Made by `python -m tools.deploy.render` from deploy/helm/lanewise: change the chart, not this file.\n"
_OF_HELM = {"helm.sh/chart", "app.kubernetes.io/managed-by"}


def template(release: str, *arguments: str) -> str:
    """Return what `helm template` prints for the chart.

    Args:
        release: name of the release.
        arguments: further ones of helm, such as `--set`.

    Raises:
        RuntimeError: helm refuses the values; the text says why.
    """
    command = ["helm", "template", release, str(CHART), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


def base() -> str:
    """Return the plain manifests, one YAML stream."""
    rendered = yaml.load_all(template("lanewise"), Loader=yaml.CSafeLoader)
    documents = [one for one in rendered if one["kind"] != "ConfigMap"]
    return _MADE + "---\n".join(yaml.safe_dump(_plain(one), sort_keys=False, width=120) for one in documents)


def _plain(value: Any) -> Any:
    """Leave out what says that Helm put it there, or that the rollout is Helm's."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {key: _plain(one) for key, one in value.items() if key not in _OF_HELM and key != "checksum/config"}
    return {key: one for key, one in kept.items() if not (key == "annotations" and not one)}


if __name__ == "__main__":
    BASE.write_text(base())
