"""Write what is generated: docs/configuration.md, docs/metrics.md, docs/dependencies.md, config/full.yaml.

`python tools/generate_docs.py` writes them; with `--check` it says which are out of date and exits with 1.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from prometheus_client.metrics_core import Metric

from loadgen.telemetry.exposed import LoadMetrics, RunFacts, Running
from proxy.backends import BackendView, State
from proxy.credentials import Credentials
from proxy.exchange import Exchange
from proxy.floors import floors
from proxy.inforce import InForce
from proxy.keys import Keyring
from proxy.metrics.leases import lease_families, worker_families
from proxy.metrics.lengths import length_families
from proxy.metrics.requests import RequestMetrics
from proxy.metrics.senders import SenderMetrics
from proxy.metrics.series import OVERHEAD, Histogram
from proxy.metrics.state import backend_families, recorder_families, scheduler_families
from proxy.metrics.whole import own_families
from proxy.policy.dispatch import Dispatcher
from proxy.policy.leases.hold import Terms
from proxy.policy.leases.member import Member
from proxy.policy.length import LengthEstimator
from proxy.policy.reuse import PrefixReuse
from proxy.policy.tenants import TenantSnapshot
from proxy.recorder import Counts
from proxy.settings import Settings
from proxy.settings.show import full_file, reference
from proxy.settings.tree import Key
from proxy.wire.facts import Endpoint, Facts, TextCensus

ROOT = Path(__file__).resolve().parent.parent
_MODEL, _BACKEND, _TENANT = "MODEL", "BACKEND", "TENANT"
_RUN = ("run_id", "arm", "trace_sha", "seed")


def documents() -> dict[str, str]:
    """Return every generated file by its path in the repository."""
    return {
        "docs/configuration.md": configuration(),
        "docs/metrics.md": metrics(),
        "docs/dependencies.md": dependencies(),
        "config/full.yaml": full_file(),
    }


_CONFIGURATION = """# Configuration

<!-- Generated from proxy/settings by tools/generate_docs.py. Change the descriptions there. -->

Values come from four places; the first one that has a key wins:

1. flags: `--backend URL`, `--listen`, `--admin`, `--preset`, `--concurrency`, `--record DIR`, and any other key as
   `--set scheduling.drop_factor=5`
2. environment: `LANEWISE_` and the key, levels joined by two underscores: `LANEWISE_SCHEDULING__DROP_FACTOR=5`. Lists
   are written with commas: `LANEWISE_BACKENDS=http://10.0.0.1:8000,http://10.0.0.2:8000`
3. the YAML file of `--config` or `LANEWISE_CONFIG`
4. the defaults below

`lanewise config show --resolved` prints every value with the place it comes from. `lanewise validate` names everything
that is wrong at once: file, line, key, and what is allowed. Keep the smallest set that you need, and write under `why`
why each key is there and when it can go: `lanewise validate --strict` asks for it.

A duration has a unit: `500ms`, `1s`, `2m` (us, ms, s, m, h, d). A size has a unit: `64MiB` (B, KB, MB, GB, TB, KiB,
MiB, GiB, TiB). A bare number where a unit is needed is refused. A count is a whole number; `32k` is 32,000 and `32K` is
32,768, as in vLLM's own flags.

The smallest file that works is [config/minimal.yaml](../config/minimal.yaml); every key at its default is in
[config/full.yaml](../config/full.yaml).
"""
_DEPENDENCIES = """# Why each dependency, and why at least this version

<!-- Generated from proxy/floors.toml by tools/generate_docs.py. Change the rows there. -->

`make check` holds this table against `pyproject.toml` and against what is installed. `lanewise serve` does not start on
anything older, `lanewise validate` and `lanewise doctor` name it. `make sbom` lists everything in `requirements.lock`
([security.md](security.md)).

| package | floor | why it is here | why this floor |
|---|---|---|---|
"""
_METRICS = """# Metrics

<!-- Generated from proxy/metrics by tools/generate_docs.py. Change the texts there. -->

`/metrics` of the admin listener, as Prometheus text or OpenMetrics. Base units only: seconds, tokens, bytes, ratios.
Labels come from the configuration (`lane`, `backend`, `model`, `tenant`) or are closed sets, listed here; a model that
is not named in the configuration counts as `other`. All series exist from the start, at 0, except where a value can be
unknown: an unknown value has no series. Scrape every 15 s.

| metric | type | labels | meaning |
|---|---|---|---|
"""


def dependencies() -> str:
    """Write the table of dependencies from proxy/floors.toml."""
    rows = (f"| {one.package} | {one.version} | {one.purpose} | {one.reason} |\n" for one in floors())
    return _DEPENDENCIES + "".join(rows)


def configuration() -> str:
    """Write the reference of the configuration from the descriptions of its fields."""
    return _CONFIGURATION + "".join(_key(key, kind, default) for key, kind, default in reference())


def _key(key: Key, kind: str, default: str) -> str:
    text = key.field.description or (key.section.__doc__ or "" if key.section is not None else "")
    depth = "###" if "." in key.path else "##"
    name = key.path.rpartition(".")[2]
    shown = default if default in {"", "required"} else f"default = {default}"
    usage = f"`[ {name}: <{kind}> | {shown} ]`\n\n" if shown else ""
    return f"\n{depth} `{key.path}`\n\n{usage}{' '.join(text.split())}\n"


_LOAD = (
    "`lanewise-load replay --prometheus HOST:PORT` serves these while it runs. Times are those of the plan: at",
    "`--speed X` the wall clock's times X.",
    "",
    "| metric | type | labels | meaning |",
    "|---|---|---|---|",
)


def metrics() -> str:
    """Write the list of metrics from the families themselves."""
    families = tuple(sample_families())
    lines = [_row(family) for family in families]
    lines += ["", "Beside these: `process_*` and `python_*` of the Prometheus client library.", ""]
    sent = tuple(load_families())
    lines += ["## Of the load generator", "", *_LOAD, *(_row(family) for family in sent), "", "## Buckets", ""]
    lines += ["| metric | upper bounds |", "|---|---|"]
    lines += [_bounds(family) for family in (*families, *sent) if family.type == "histogram"]
    return _METRICS + "\n".join(lines) + "\n"


def sample_families() -> Iterator[Metric]:
    """Yield every family of ours, of a proxy with one backend, one named model, one tenant and a recorder."""
    settings = Settings.model_validate(
        {"backends": [{"url": "http://127.0.0.1:8000", "name": _BACKEND, "models": [_MODEL], "kv_tokens": 1}]}
    )
    view = BackendView(
        _BACKEND, "http://127.0.0.1:8000", State.UP, waiting=0.0, running=0.0, kv_usage=0.0, scrape_age_s=0.0
    )
    snapshot = Dispatcher(settings.to_scheduling(), settings.to_backend_limits()).snapshot(0.0)
    yield from RequestMetrics(settings).families()
    yield from scheduler_families(snapshot)
    yield from _sender_families(settings)
    yield from backend_families((view,))
    yield from recorder_families(Counts())
    estimator = LengthEstimator()
    estimator.learn(_MODEL, TextCensus(latin=4), 1, 1)
    yield from length_families({}, estimator, (_MODEL,))
    yield from Credentials(clients=Keyring(()), admin=Keyring(()), ends=0.0).families()
    terms = {f"b/{_BACKEND}": Terms((1, 1, 1), (1, 1, 1), 0.0, (1, 1, 1)), f"t/{_TENANT}": Terms((1,), (1,), 0.0, (1,))}
    yield from lease_families(Member("00", 3, 1.5, 30.0), Histogram(OVERHEAD), terms)
    yield from worker_families([])
    yield from own_families(lag=Histogram(OVERHEAD), in_force=InForce(settings))


def load_families() -> Iterator[Metric]:
    """Yield every family of a replay."""
    facts = RunFacts(run_id="", arm="", trace_sha="", seed=1)
    now = Running(elapsed_s=0.0, speed=1.0, sent=0, in_flight=0, late_ns=())
    yield from LoadMetrics(np.zeros(0, np.int64), facts, lambda: now).families()


def _sender_families(settings: Settings) -> Iterator[Metric]:
    senders = SenderMetrics(settings)
    senders.observe(Exchange("", 0.0, 0.0, tenant=_TENANT, facts=Facts(Endpoint.CHAT)))
    known = dict.fromkeys(("counter", "waiting_requests", "waiting_tokens", "running", "granted"), 0)
    tenant = TenantSnapshot(name=_TENANT, **known, granted_tokens=0, rejected=0, dropped=0)
    yield from senders.families((tenant,), PrefixReuse())


def _row(family: Metric) -> str:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    labels: dict[str, dict[str, None]] = {}
    for sample in family.samples:
        for label, value in sample.labels.items():
            if label != "le":
                labels.setdefault(label, {})[value] = None
    shown = ", ".join(_label(label, list(values)) for label, values in labels.items())
    return f"| `{name}` | {family.type} | {shown} | {family.documentation} |"


def _label(label: str, values: list[str]) -> str:
    free = {"backend": _BACKEND, "model": _MODEL, "tenant": _TENANT, "sha": "", "version": ""} | dict.fromkeys(_RUN, "")
    return label if label in free else f"{label} ({', '.join(values)})"


def _bounds(family: Metric) -> str:
    bounds = dict.fromkeys(sample.labels["le"] for sample in family.samples if "le" in sample.labels)
    return f"| `{family.name}` | {' '.join(bound.removesuffix('.0') for bound in bounds)} |"


def main(arguments: list[str]) -> int:
    """Write the files, or compare them with `--check`.

    Returns:
        0, or 1 when a compared file differs.
    """
    stale = []
    for path, text in documents().items():
        file = ROOT / path
        if "--check" in arguments:
            if not file.exists() or file.read_text(encoding="utf-8") != text:
                stale.append(path)
        else:
            file.write_text(text, encoding="utf-8")
    for path in stale:
        print(f"{path} is out of date: run python tools/generate_docs.py")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
