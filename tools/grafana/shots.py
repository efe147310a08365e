"""Pictures of the dashboards: drawn by Grafana's own components in Chromium, from a real run.

`python -m tools.grafana.shots` (`make grafana-shots`) runs a trace direct and through lanewise under a real Prometheus
(`tools.grafana.scene`), then draws every panel of every dashboard from the JSON that is shipped. `--again` draws once
more from the data of the run before. It needs node, npm and Chromium; Grafana's packages (about 460 MB) go into a
folder of their own in the virtual environment. Exits with 3 when a panel has no data.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from loadgen.failure import StopError
from tools.grafana.check import Screen, boards, findings
from tools.grafana.scene import SCRAPE_S, Scene, play, replayed
from tools.prometheus.server import ROOT, Prometheus

SOURCES = ROOT / "tools/grafana/drawing"
DASHBOARDS = ROOT / "grafana/dashboards"
WINDOW_S = 60
"""For `$__rate_interval`, as with a scrape every 15 s."""
WIDTH_PX = 1400
_BROWSERS = ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome")


def cache() -> Path:
    """Return the folder of Grafana's packages and of the built page."""
    return Path(os.environ.get("GRAFANA_SHOTS_CACHE", ROOT / ".venv/grafana-shots"))


def chromium() -> str:
    """Return the browser.

    Raises:
        FileNotFoundError: there is none.
    """
    for file in (os.environ.get("CHROMIUM", ""), *_BROWSERS):
        if file and Path(file).is_file():
            return file
    raise FileNotFoundError("no Chromium found: install it, or set CHROMIUM to its file")


def built(folder: Path) -> Path:
    """Install Grafana's packages where they are missing, build the page, and return its folder.

    Args:
        folder: for all of it.

    Raises:
        FileNotFoundError: there is no npm.
        subprocess.CalledProcessError: npm or the build failed; what it said is on stderr.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("no npm on the PATH: install Node 20 or newer")
    folder.mkdir(parents=True, exist_ok=True)
    wanted = hashlib.sha256(b"".join((SOURCES / name).read_bytes() for name in ("package.json", "package-lock.json")))
    stamp = folder / "installed"
    for file in SOURCES.iterdir():
        shutil.copy(file, folder / file.name)
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != wanted.hexdigest():
        # Not `ci`, which refuses a lock without the optional parts of other platforms.
        options = ["--no-save", "--ignore-scripts", "--legacy-peer-deps", "--no-audit", "--no-fund"]
        command = [npm, "install", *options]
        subprocess.run(command, cwd=folder, stdout=sys.stderr, check=True)
        stamp.write_text(wanted.hexdigest(), encoding="utf-8")
    subprocess.run([npm, "run", "--silent", "build"], cwd=folder, stdout=sys.stderr, check=True)
    return folder / "dist"


def draw(watched: Prometheus, scene: Scene, page: Path, out: Path, theme: str) -> list[Path]:
    """Take one picture of each dashboard.

    Args:
        watched: Prometheus with the data of the scene.
        scene: its times.
        page: the built page; what it was built with is beside it.
        out: folder for the pictures.
        theme: light or dark.

    Raises:
        subprocess.CalledProcessError: something failed inside the page; what it said is on stderr.
    """
    out.mkdir(parents=True, exist_ok=True)
    about = {"from": round(scene.start), "to": round(scene.end), "window": WINDOW_S, "theme": theme, "width": WIDTH_PX}
    files = {name: out / f"{name}.png" for name in boards()}
    asked = {
        "page": str(page),
        "dashboards": str(DASHBOARDS),
        "prometheus": watched.url,
        "chromium": chromium(),
        "shots": [{"board": name, "out": str(file.absolute()), **about} for name, file in files.items()],
    }
    command = ["node", str(page.parent / "shoot.mjs"), json.dumps(asked)]
    subprocess.run(command, stdout=sys.stderr, check=True)
    return list(files.values())


def empty(watched: Prometheus, scene: Scene) -> list[str]:
    """Return a line for each query that has no data over the scene."""
    over = scene.end - scene.start
    screen = Screen(window=f"{WINDOW_S}s", over_s=over, step_s=SCRAPE_S, until=scene.end)
    return [f"{name}: {line}" for name, board in boards().items() for line in findings(watched, board, screen)]


def _emptied(folder: Path) -> None:
    """Remove what a run before has left.

    Raises:
        FileExistsError: what is there is something else.
    """
    if folder.exists() and any(folder.iterdir()):
        if not (folder / "prometheus").is_dir():
            raise FileExistsError(f"--out {folder}: holds something else than such a run; name another folder")
        shutil.rmtree(folder)


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "runs/grafana", help="folder (default: runs/grafana)")
    parser.add_argument("--again", action="store_true", help="draw from the data that is there")
    parser.add_argument("--minutes", type=float, default=8.0, help="of the trace (default: 8)")
    parser.add_argument("--rate", type=float, default=2.5, help="requests/s (default: 2.5; 2.64 saturate the engine)")
    parser.add_argument("--seed", type=int, default=1, help="decides the trace (default: 1)")
    parser.add_argument("--theme", choices=("light", "dark"), default="light", help="of the pictures (default: light)")
    asked = parser.parse_args(arguments)
    try:
        page = built(cache())
        chromium()
        if asked.again:
            scene = Scene.read(asked.out)
        else:
            _emptied(asked.out)
            scene = play(asked.out, minutes=asked.minutes, rate=asked.rate, seed=asked.seed)
        with replayed(scene) as watched:
            pictures = draw(watched, scene, page, asked.out, asked.theme)
            found = empty(watched, scene)
    except (OSError, RuntimeError, StopError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(map(str, pictures)))
    print("\n".join(found), file=sys.stderr)
    return 3 if found else 0


if __name__ == "__main__":
    sys.exit(main())
