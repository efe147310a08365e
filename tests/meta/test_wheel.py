"""The wheel holds what a user needs, and works away from the source tree."""

import subprocess
import sys
import venv
import zipfile

import pytest

from proxy.statuspage import ASSETS


@pytest.fixture(scope="module")
def wheel(root, tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)],
        cwd=root,
        check=True,
        capture_output=True,
    )
    return next(out.glob("lanewise-*.whl"))


def test_the_top_level_names_are_exactly_the_two_packages(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name and ".data" not in name}
    assert tops == {"proxy", "loadgen"}


def test_the_shipped_configuration_and_profiles_are_inside(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    shipped = [name.split("/share/lanewise/")[1] for name in names if "/share/lanewise/" in name]
    assert {"config/minimal.yaml", "config/sim/8b.yaml", "config/workloads/mixed.yaml"} <= set(shipped)


def test_the_files_of_the_status_page_are_inside_with_the_licence_of_its_charts(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    wanted = {*ASSETS, "uPlot.LICENSE"}
    assert {name.rpartition("/")[2] for name in names if name.startswith("proxy/statuspage/assets/")} == wanted


@pytest.mark.slow
def test_both_commands_run_from_a_wheel_in_an_environment_of_their_own(wheel, tmp_path):
    env = tmp_path / "venv"
    venv.create(env, with_pip=False, system_site_packages=False)
    python = env / "bin/python"
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--quiet", str(wheel)],
        check=True,
        capture_output=True,
    )
    # The dependencies come from the environment under test; what is proved is that our own files suffice.
    here = subprocess.run(
        [sys.executable, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    (tmp_path / "venv/lib").mkdir(exist_ok=True)
    own = __import__("pathlib").Path(site)
    deps = tmp_path / "deps"
    deps.mkdir()
    for entry in __import__("pathlib").Path(here).iterdir():
        if "lanewise" not in entry.name and entry.name not in {"proxy", "loadgen"}:
            (deps / entry.name).symlink_to(entry)
    (own / "deps.pth").write_text(str(deps) + "\n")
    for command in ("lanewise", "lanewise-load"):
        done = subprocess.run(
            [env / "bin" / command, "--version"], cwd="/", capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip().endswith("0.1.0")
    done = subprocess.run(
        [env / "bin/lanewise", "validate", "--config", env / "share/lanewise/config/minimal.yaml"],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
