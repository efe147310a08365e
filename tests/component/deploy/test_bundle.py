"""The offline bundle, installed into an empty environment without a network, works away from the source tree."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile

import pytest

from loadgen.children import free_address

pytestmark = pytest.mark.slow
RELEASE = re.compile(r"\d+\.\d+\.\d+ \(commit [0-9a-f]{12}(-dirty)?\)\n")


def clean_environment():
    """Nothing that leads back to the tree, or to a registry."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("LANEWISE_", "PYTHON", "PIP_"))}


def without_network():
    """What cuts a command off from every network, where the kernel lets us."""
    unshare = shutil.which("unshare")
    if unshare and subprocess.run([unshare, "-rn", "true"], capture_output=True, check=False).returncode == 0:
        return [unshare, "-rn"]
    return []


@pytest.fixture(scope="module")
def bundle(root, tmp_path_factory):
    """The unpacked bundle of this machine and interpreter."""
    out = tmp_path_factory.mktemp("bundle")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    environment = {**os.environ, "VENV": sys.prefix}
    command = ["sh", str(root / "tools/bundle.sh"), "--python", version, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    with tarfile.open(next(out.glob("*.tar.gz"))) as archive:
        archive.extractall(out, filter="data")
    return next(path for path in out.iterdir() if path.is_dir())


@pytest.fixture(scope="module")
def installed(bundle, tmp_path_factory):
    """The folder of programs of an environment that holds the bundle and nothing else."""
    folder = tmp_path_factory.mktemp("opt") / "lanewise"
    # Byte code of what is never imported here would take longer than all the rest.
    environment = clean_environment() | {"PYTHON": sys.executable, "PIP_NO_COMPILE": "1"}
    command = [*without_network(), "sh", str(bundle / "install.sh"), str(folder)]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "bin"


def run(program, *arguments):
    command = [str(program), *map(str, arguments)]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, env=clean_environment(), check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_both_commands_say_version_and_commit(installed):
    assert RELEASE.fullmatch(run(installed / "lanewise", "--version"))
    assert RELEASE.fullmatch(run(installed / "lanewise-load", "--version"))


def test_the_shipped_files_are_found_and_the_least_configuration_is_valid(installed):
    told = json.loads(run(installed / "lanewise", "files", "--json"))
    assert {"config/minimal.yaml", "deploy/systemd/lanewise.service", "config/prometheus/alerts.yaml"} <= {
        *told["files"]
    }
    assert run(installed / "lanewise", "validate", "--config", f"{told['folder']}/config/minimal.yaml").startswith(
        "valid"
    )


def test_a_request_goes_through_the_proxy_to_the_simulated_engine(installed, serving, ask):
    engine = free_address()
    simulated = [
        str(installed / "lanewise-load"),
        "sim",
        "serve",
        "--profile",
        "8b",
        "--listen",
        engine,
        "--speed",
        "50",
    ]
    with subprocess.Popen(simulated, cwd="/", env=clean_environment(), stderr=subprocess.DEVNULL) as process:
        try:
            with serving("--backend", f"http://{engine}", program=[installed / "lanewise"], cwd="/") as proxy:
                proxy.wait_until_it_serves()
                await_ready(ask, proxy.admin)
                asked = {"model": "sim-8b", "prompt": "one two three", "max_tokens": 4}
                asked["model"] = json.loads(ask(proxy.listen, "/v1/models")[1])["data"][0]["id"]
                status, text = ask(proxy.listen, "/v1/completions", asked)
                assert (status, json.loads(text)["usage"]["completion_tokens"]) == (200, 4)
                assert proxy.end() == 0
        finally:
            process.terminate()


def await_ready(ask, admin):
    status = 0
    while status != 200:  # each answer waits for nothing; the proxy looks again every few milliseconds of this loop
        status = ask(admin, "/readyz")[0]


def test_a_file_that_was_changed_is_noticed_before_anything_is_installed(bundle, tmp_path):
    copy = shutil.copytree(bundle, tmp_path / "bundle")
    with (copy / "LICENSE").open("a") as licence:
        licence.write("x")
    environment = clean_environment() | {"PYTHON": sys.executable}
    command = ["sh", str(copy / "install.sh"), str(tmp_path / "opt")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, "not what it was" in done.stderr, (tmp_path / "opt").exists()) == (1, True, False)
