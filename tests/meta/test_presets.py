"""The shipped configurations pass the strictest check, and what they say about their figures can be run."""

import re
import shlex

import pytest

from loadgen.cli import app as loadgen_app
from proxy.cli import main
from proxy.settings import load
from proxy.settings.show import differing, missing_whys

SITUATIONS = ("single-card", "several-cards", "long-context", "high-concurrency")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    import os

    for name in [name for name in os.environ if name.upper().startswith("LANEWISE")]:
        monkeypatch.delenv(name)


@pytest.fixture(params=[*SITUATIONS, "strict", "gentle"])
def preset(request, root):
    return root / f"config/presets/{request.param}.yaml"


@pytest.fixture(params=SITUATIONS)
def situation(request, root):
    return root / f"config/presets/{request.param}.yaml"


def comments(path):
    return [line.lstrip("# ").rstrip() for line in path.read_text().splitlines() if line.startswith("#")]


def test_every_preset_is_tested(root):
    shipped = {path.stem for path in (root / "config/presets").glob("*.yaml")}
    assert shipped == {*SITUATIONS, "strict", "gentle"}


def test_a_preset_passes_the_strict_check_without_a_warning(preset, capsys):
    assert main(["validate", "--strict", "--config", str(preset)]) == 0
    assert capsys.readouterr().err == ""


def test_a_preset_for_a_situation_changes_something_and_no_more_than_it_explains(situation):
    loaded = load(situation)
    assert missing_whys(loaded) == ()
    tuned = [key for key in differing(loaded) if key != "backends"]
    backends = [key for key in loaded.settings.why if key.startswith("backends[")]
    assert tuned
    assert sorted(loaded.settings.why) == sorted([*tuned, *backends])


def test_each_reason_says_when_the_key_can_go(situation):
    whys = load(situation).settings.why
    assert [key for key, why in whys.items() if not re.search(r"[Dd]rop it|[Bb]ack to", why)] == []


def test_the_commands_behind_the_figures_are_commands(situation):
    text = " ".join(comments(situation))
    commands = re.findall(r"(lanewise-load study .*?--windows 2(?: --[a-z-]+ \S+)*)", text)
    assert commands
    for command in commands:
        _, bound, rest = loadgen_app.parse_known_args(shlex.split(command)[1:])[:3]
        assert rest == []
        assert bound.arguments["windows"] == 2


def test_config_show_prints_each_key_of_a_preset_with_its_reason(situation, capsys):
    assert main(["config", "show", "--config", str(situation)]) == 0
    shown = capsys.readouterr().out
    for key, why in load(situation).settings.why.items():
        name = key.rpartition(".")[2]
        assert re.search(rf"{name}.*# why: .*{re.escape(why[:40])}|# why: .*{name}: {re.escape(why[:40])}", shown), key
