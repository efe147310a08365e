"""Pictures of the dashboards: what can be said of them without Chromium and without Grafana's packages."""

import json
import re

import pytest

from tools.grafana.check import boards
from tools.grafana.shots import SOURCES, built, cache, chromium, main


def read(name):
    return json.loads((SOURCES / name).read_text(encoding="utf-8"))


def test_the_lock_names_exact_packages_and_no_address_to_load_them_from():
    asked, locked = read("package.json"), read("package-lock.json")["packages"]
    wanted = {**asked["dependencies"], **asked["devDependencies"]}
    assert {name: locked[f"node_modules/{name}"]["version"] for name in wanted} == wanted
    assert [name for name, of in locked.items() if "resolved" in of] == []
    assert all(of["integrity"].startswith("sha512-") for name, of in locked.items() if name)


def test_there_is_a_way_to_draw_every_kind_of_panel_that_the_dashboards_have():
    kinds = {panel["type"] for board in boards().values() for panel in board["panels"]} - {"row"}
    known = re.search(r"const Kind = \{([^}]*)\}", (SOURCES / "panels.jsx").read_text(encoding="utf-8"))[1]
    assert kinds == set(re.findall(r"(\w+):", known))


def test_the_packages_lie_in_the_virtual_environment_or_where_one_says(monkeypatch, tmp_path):
    monkeypatch.delenv("GRAFANA_SHOTS_CACHE", raising=False)
    assert cache().parts[-2:] == (".venv", "grafana-shots")
    monkeypatch.setenv("GRAFANA_SHOTS_CACHE", str(tmp_path))
    assert cache() == tmp_path


def test_what_is_missing_on_the_machine_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="install Node 20 or newer"):
        built(tmp_path / "cache")
    monkeypatch.setattr("tools.grafana.shots._BROWSERS", ())
    monkeypatch.delenv("CHROMIUM", raising=False)
    with pytest.raises(FileNotFoundError, match="set CHROMIUM to its file"):
        chromium()


def test_a_folder_with_something_else_in_it_is_left_alone(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("tools.grafana.shots.built", lambda folder: folder)
    monkeypatch.setattr("tools.grafana.shots.chromium", lambda: "")
    (tmp_path / "letters").mkdir()
    assert main(["--out", str(tmp_path)]) == 1
    assert "holds something else" in capsys.readouterr().err
    assert (tmp_path / "letters").is_dir()
