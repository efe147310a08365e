"""The unit file as systemd reads it, and the proxy as systemd hears it."""

import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
MOST_EXPOSED = 2.0
"""systemd's own measure, from 0 (nothing can be reached) to 10."""


@pytest.fixture(scope="module")
def unit(root, tmp_path_factory):
    """The unit as it stands, but for the folder of the program, which must exist where it is verified."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze: Debian's package systemd has it (tools/system-packages.sh)")
    text = (root / "deploy/systemd/lanewise.service").read_text()
    assert text.count("/opt/lanewise/bin/lanewise ") == 2
    file = tmp_path_factory.mktemp("unit") / "lanewise.service"
    file.write_text(text.replace("/opt/lanewise/bin", str(BIN)))
    return file


def analyze(*arguments):
    return subprocess.run(["systemd-analyze", *map(str, arguments)], capture_output=True, text=True, check=False)


def test_systemd_finds_nothing_to_say_about_the_unit(unit):
    done = analyze("verify", "--man=no", unit)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_misspelt_key_would_be_noticed(unit, tmp_path):
    wrong = tmp_path / "lanewise.service"
    wrong.write_text(unit.read_text().replace("Restart=on-failure", "Restrat=on-failure"))
    assert "Restrat" in analyze("verify", "--man=no", wrong).stderr


def test_little_of_the_machine_is_exposed_to_the_service(unit):
    told = analyze("security", "--offline=true", "--no-pager", unit).stdout
    level = re.search(r"Overall exposure level for lanewise.service: ([\d.]+)", told)
    assert level is not None
    assert float(level[1]) <= MOST_EXPOSED


def test_the_service_sees_what_its_own_process_metrics_are_made_of(unit):
    """Without the boot time in /proc/stat the collector tells nothing about the process, and says nothing either."""
    keys = {line.partition("=")[0] for line in unit.read_text().splitlines()}
    assert "ProcSubset" not in keys


def test_the_service_manager_hears_of_the_start_a_reload_and_the_end(serving, tmp_path):
    file = tmp_path / "lanewise.yaml"
    file.write_text("backends: [http://127.0.0.1:1]\nscheduling: {concurrency: 20}\n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)

        def told():
            return dict(line.split("=", 1) for line in manager.recv(4096).decode().splitlines())

        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "600000000"}
        with serving("--config", file, environment=environment) as proxy:
            ready = told()
            assert ready["READY"] == "1"
            assert ready["STATUS"] == f"enforce on {proxy.listen}, 0 of 1 backends up"
            assert told()["WATCHDOG"] == "1"
            file.write_text(file.read_text().replace("20", "21"))
            reload = [sys.executable, "-m", "proxy", "reload", "--config", str(file), "--admin", proxy.admin]
            subprocess.run(reload, check=True, capture_output=True)
            assert told()["RELOADING"] == "1"
            assert told()["READY"] == "1"
            assert proxy.end() == 0
            stopping = told()
            assert (stopping["STOPPING"], int(stopping["EXTEND_TIMEOUT_USEC"]) > 300e6) == ("1", True)
