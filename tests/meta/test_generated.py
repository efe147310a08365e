"""What is generated from the sources is committed as it is generated."""

import importlib.util

import pytest
import yaml

from proxy.settings import load
from proxy.settings.show import missing_whys


@pytest.fixture(scope="module")
def generator(root):
    """The tool, as a module."""
    spec = importlib.util.spec_from_file_location("generate_docs", root / "tools/generate_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_documents_are_what_the_sources_say(generator, root):
    stale = [path for path, text in generator.documents().items() if (root / path).read_text(encoding="utf-8") != text]
    assert stale == [], "run python tools/generate_docs.py"


def test_the_documented_metrics_are_all_that_a_running_proxy_shows(generator):
    documented = {family.name for family in generator.sample_families()}
    assert len(documented) > 30
    assert all(name.startswith("lanewise_") for name in documented)


def test_every_shipped_configuration_is_valid_and_explains_itself(root):
    files = [root / "config/minimal.yaml", root / "config/full.yaml", *(root / "config/presets").glob("*.yaml")]
    assert len(files) >= 4
    for file in files:
        loaded = load(file)
        assert missing_whys(loaded) == (), file.name


@pytest.mark.parametrize("preset", ["strict", "gentle"])
def test_a_preset_file_says_what_its_name_stands_for(root, preset):
    from proxy.settings.sections import PRESETS

    written = yaml.safe_load((root / f"config/presets/{preset}.yaml").read_text(encoding="utf-8"))["scheduling"]
    assert written == {"preset": preset, **PRESETS[preset]}
