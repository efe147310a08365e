"""The image's recipe and the compose stack, as far as they can be judged without a container engine."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from proxy.cli import main

DOCKERFILE = "deploy/container/Dockerfile"
COMPOSE = "deploy/compose/compose.yaml"


@pytest.fixture(scope="module")
def recipe(root):
    """The instructions of the Dockerfile, one a line, and those of the last stage."""
    text = re.sub(r"\\\n\s*", " ", (root / DOCKERFILE).read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    last = max(n for n, line in enumerate(lines) if line.startswith("FROM "))
    return lines, lines[last:]


@pytest.fixture(scope="module", params=["demo", "ascend"])
def stack(root, check, request):
    """The stack of one profile, as compose understands it."""
    done = check("docker-compose", "--file", root / COMPOSE, "--profile", request.param, "config", "--format", "json")
    assert (done.code, done.err) == (0, "")
    return json.loads(done.out)


def test_hadolint_finds_nothing_in_the_dockerfile(root, check):
    done = check("hadolint", root / DOCKERFILE)
    assert (done.code, done.out) == (0, "")


def test_hadolint_would_notice_a_root_user(root, check, tmp_path):
    wrong = tmp_path / "Dockerfile"
    wrong.write_text((root / DOCKERFILE).read_text() + "USER root\n")
    assert "DL3002" in check("hadolint", wrong).out


def test_the_image_runs_as_a_user_with_a_number_and_checks_itself(recipe):
    _, last = recipe
    assert "USER 10001:10001" in last
    assert [line for line in last if line.startswith("HEALTHCHECK") and '["lanewise", "healthcheck"]' in line]


def test_nothing_is_built_in_the_last_stage_and_pip_does_not_stay(recipe):
    lines, last = recipe
    assert len([line for line in lines if line.startswith("FROM ")]) == 2
    commands = " ".join(line for line in last if line.startswith("RUN "))
    assert "pip uninstall" in commands
    assert not re.search(r"pip install|apt-get|gcc|curl|wget", commands)


def test_what_the_image_sets_are_settings_and_they_stand_over_the_file(recipe, root, monkeypatch, capsys):
    _, last = recipe
    told = dict(re.findall(r"(LANEWISE_\w+)=(\S+)", next(line for line in last if line.startswith("ENV "))))
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert main(["config", "show", "--resolved", "--json", "--config", str(root / "deploy/compose/lanewise.yaml")]) == 0
    shown = json.loads(capsys.readouterr().out)["settings"]
    in_force = {key: shown[key]["value"] for key in ("listen", "admin", "state_dir")}
    assert in_force == {"listen": "0.0.0.0:8080", "admin": "0.0.0.0:9100", "state_dir": "/var/lib/lanewise"}


def test_every_file_that_the_image_is_made_of_is_let_in_and_exists(root):
    kept = [line[1:] for line in (root / f"{DOCKERFILE}.dockerignore").read_text().splitlines() if line.startswith("!")]
    assert [name for name in kept if not (root / name).exists()] == []
    project = (root / "pyproject.toml").read_text()
    needed = {"proxy", "loadgen", "config", "deploy", "grafana", "README.md", "LICENSE", "hatch_build.py"}
    assert {name for name in needed if name in project} == needed
    assert needed <= set(kept)


def test_every_file_that_the_stack_mounts_exists(stack, root):
    ours = [
        Path(mount["source"])
        for service in stack["services"].values()
        for mount in service.get("volumes", ())
        if mount["type"] == "bind" and Path(mount["source"]).is_relative_to(root) and "/model" not in mount["source"]
    ]
    assert len(ours) >= 7
    assert [str(path) for path in ours if not path.exists()] == []


def test_the_stack_opens_no_port_beyond_this_machine(stack):
    ports = [port for service in stack["services"].values() for port in service.get("ports", ())]
    assert {port["host_ip"] for port in ports} == {"127.0.0.1"}


def test_the_proxy_of_the_stack_gets_more_time_to_end_than_its_drain(stack, root):
    assert stack["services"]["lanewise"]["stop_grace_period"] == "5m30s"
    assert stack["services"]["lanewise"]["read_only"] is True
    assert main(["validate", "--strict", "--config", str(root / "deploy/compose/lanewise.yaml")]) == 0


def test_exactly_one_engine_has_the_name_that_the_configuration_asks_for(stack):
    named = [
        name
        for name, service in stack["services"].items()
        for network in service["networks"].values()
        if network and "inference" in network.get("aliases", ())
    ]
    assert named in (["engine"], ["vllm"])


def test_the_rules_are_found_where_prometheus_of_the_stack_looks_for_them(root, promtools, tmp_path):
    shutil.copy(root / "deploy/compose/prometheus.yaml", tmp_path)
    for name in ("recording.yaml", "alerts.yaml"):
        shutil.copy(root / "config/prometheus" / name, tmp_path)
    command = [Path(promtools) / "promtool", "check", "config", tmp_path / "prometheus.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_misspelt_key_of_the_stack_would_be_noticed(root, check, tmp_path):
    wrong = tmp_path / "compose.yaml"
    wrong.write_text((root / COMPOSE).read_text().replace("stop_grace_period", "stop_grace_time"))
    assert check("docker-compose", "--file", wrong, "--profile", "demo", "config", "-q").code != 0
