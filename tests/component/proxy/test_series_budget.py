"""A scrape of every shipped configuration stays within the budget of series, and has all children from the start."""

import pytest
from prometheus_client.metrics_core import Metric

from proxy.backends import Backends
from proxy.metrics.whole import Metrics
from proxy.policy.dispatch import Dispatcher
from proxy.settings import Settings, load

BUDGET = 2000
"""Series: the time that a scrape takes from the streams grows with them."""
LARGEST = {
    "backends": [
        {"url": f"http://127.0.0.1:{8000 + card}", "name": f"card-{card}", "models": list("abc")} for card in range(4)
    ],
    "tenants": {"by": "key", "named": [{"name": f"team-{n}", "keys": [f"{n:064x}"]} for n in range(4)]},
}


def samples_of(settings):
    dispatcher = Dispatcher(settings.to_scheduling(), settings.to_backend_limits())
    metrics = Metrics(
        settings,
        snapshot=lambda: dispatcher.snapshot(0.0),
        backends=Backends(settings, lambda _name, _up: None),
    )
    families: list[Metric] = list(metrics.families())
    return [(sample.name, tuple(sorted(sample.labels.items()))) for family in families for sample in family.samples]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    import os

    for name in [name for name in os.environ if name.upper().startswith("LANEWISE")]:
        monkeypatch.delenv(name)


async def test_every_shipped_configuration_stays_within_the_budget(root):
    files = [root / "config/full.yaml", *(root / "config/presets").glob("*.yaml")]
    counted = {file.name: len(samples_of(load(file).settings)) for file in files}
    assert len(counted) > 6
    assert {name: count for name, count in counted.items() if count > BUDGET} == {}


async def test_four_backends_with_three_models_stay_within_the_budget_too():
    assert 1400 < len(samples_of(Settings.model_validate(LARGEST))) <= BUDGET


async def test_no_series_appears_twice():
    samples = samples_of(Settings.model_validate(LARGEST))
    assert len(samples) == len(set(samples))
