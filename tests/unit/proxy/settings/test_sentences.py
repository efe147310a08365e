"""Every bad configuration is answered with exactly the sentences of one table; every good one is taken."""

from pathlib import Path

import pytest
import yaml

from proxy.settings import ConfigurationError, load

GOLDEN = Path(__file__).resolve().parents[4] / "tests/golden/config"
MESSAGES = yaml.safe_load((GOLDEN / "messages.yaml").read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def in_the_golden_folder(monkeypatch):
    """File names in messages are then short."""
    monkeypatch.chdir(GOLDEN)


def test_the_table_names_every_bad_file():
    assert sorted(MESSAGES) == sorted(path.name.removesuffix(".bad.yaml") for path in GOLDEN.glob("*.bad.yaml"))


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_a_bad_configuration_is_answered_with_its_sentences(name):
    with pytest.raises(ConfigurationError) as caught:
        load(Path(f"{name}.bad.yaml"))
    assert list(caught.value.sentences) == MESSAGES[name]


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.glob("*.good.yaml")))
def test_a_good_configuration_is_taken(name):
    assert load(Path(name)).settings.backends
