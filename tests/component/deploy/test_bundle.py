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


def bundled(root, out):
    """Return the unpacked bundle of this machine and interpreter."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    environment = {**os.environ, "VENV": sys.prefix}
    command = ["sh", str(root / "tools/bundle.sh"), "--python", version, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    with tarfile.open(next(out.glob("*.tar.gz"))) as archive:
        archive.extractall(out, filter="data")
    return next(path for path in out.iterdir() if path.is_dir())


def install(bundle, folder, *before):
    """Run the bundle's script, from elsewhere."""
    # Byte code of what is never imported here would take longer than all the rest.
    environment = clean_environment() | {"PYTHON": sys.executable, "PIP_NO_COMPILE": "1"}
    command = [*before, "sh", str(bundle / "install.sh"), str(folder)]
    return subprocess.run(command, cwd="/", capture_output=True, text=True, env=environment, check=False)


def run(program, *arguments):
    command = [str(program), *map(str, arguments)]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, env=clean_environment(), check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_bundle_installs_without_a_network_and_works_away_from_the_source_tree(root, tmp_path, serving, ask):
    (tmp_path / "dist").mkdir()
    bundle = bundled(root, tmp_path / "dist")
    done = install(bundle, tmp_path / "opt", *without_network())
    assert done.returncode == 0, done.stderr
    programs = tmp_path / "opt/bin"
    assert RELEASE.fullmatch(run(programs / "lanewise", "--version"))
    assert RELEASE.fullmatch(run(programs / "lanewise-load", "--version"))
    shipped = json.loads(run(programs / "lanewise", "files", "--json"))
    wanted = {"config/minimal.yaml", "deploy/systemd/lanewise.service", "config/prometheus/alerts.yaml"}
    assert wanted <= set(shipped["files"])
    minimal = f"{shipped['folder']}/config/minimal.yaml"
    assert run(programs / "lanewise", "validate", "--config", minimal).startswith("valid")
    assert_a_request_goes_through(programs, serving, ask)
    assert_a_changed_file_is_noticed(bundle, tmp_path / "other")


def assert_a_request_goes_through(programs, serving, ask):
    engine = free_address()
    simulated = [
        str(programs / "lanewise-load"),
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
            with serving("--backend", f"http://{engine}", program=[programs / "lanewise"], cwd="/") as proxy:
                proxy.wait_until_it_serves()
                status = 0
                while status != 200:  # the only sign of readiness is the next answer
                    status = ask(proxy.admin, "/readyz")[0]
                model = json.loads(ask(proxy.listen, "/v1/models")[1])["data"][0]["id"]
                asked = {"model": model, "prompt": "one two three", "max_tokens": 4}
                status, text = ask(proxy.listen, "/v1/completions", asked)
                assert (status, json.loads(text)["usage"]["completion_tokens"]) == (200, 4)
                assert proxy.end() == 0
        finally:
            process.terminate()


def assert_a_changed_file_is_noticed(bundle, folder):
    with (bundle / "LICENSE").open("a") as licence:
        licence.write("x")
    done = install(bundle, folder)
    assert (done.returncode, "not what it was" in done.stderr, folder.exists()) == (1, True, False)
