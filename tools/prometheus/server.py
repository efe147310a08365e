"""A real Prometheus on loopback, for tests and pictures: started in a folder, asked, stopped."""

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE_S = 30.0
_POLL_S = 0.1


def binaries() -> Path:
    """Return the folder with prometheus and promtool.

    Raises:
        FileNotFoundError: there is neither a Prometheus nor apt; the text says what to do.
    """
    script = ["sh", str(ROOT / "tools/prometheus.sh")]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FileNotFoundError(done.stderr.strip())
    return Path(done.stdout.strip())


def promtool(*arguments: str | Path, given: str = "", cwd: Path | None = None) -> tuple[int, str]:
    """Run promtool and return its exit code and all that it said.

    Args:
        arguments: of the command.
        given: its stdin.
        cwd: folder that it runs in.
    """
    command = [str(binaries() / "promtool"), *map(str, arguments)]
    done = subprocess.run(command, input=given, cwd=cwd, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


class Prometheus:
    """A running server, by its HTTP interface."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **parameters: str | float) -> Any:
        """Ask and return the `data` of the answer.

        Raises:
            ValueError: Prometheus refuses; the text is its reason.
        """
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self.url}{path}?{query}", timeout=PATIENCE_S) as answer:
                return json.loads(answer.read())["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise ValueError(f"{path}?{query}: {error.read().decode()}") from None

    def series(self, expr: str) -> list[dict[str, Any]]:
        """Return what an expression gives now."""
        found: list[dict[str, Any]] = self.get("/api/v1/query", query=expr)["result"]
        return found

    def over(self, expr: str, seconds: float, step: float, until: float | None = None) -> list[dict[str, Any]]:
        """Return what an expression gave in the seconds before a moment; None: before now."""
        end = time.time() if until is None else until
        found: list[dict[str, Any]] = self.get(
            "/api/v1/query_range", query=expr, start=end - seconds, end=end, step=step
        )["result"]
        return found

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire."""
        return {
            alert["labels"]["alertname"] for alert in self.get("/api/v1/alerts")["alerts"] if alert["state"] == "firing"
        }

    def wait(self, what: str, met: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        """Ask again and again until something holds.

        Raises:
            TimeoutError: it did not.
        """
        until = time.monotonic() + patience_s
        while not met():
            if time.monotonic() > until:
                raise TimeoutError(f"not within {patience_s:g} s: {what}")
            time.sleep(_POLL_S)


@contextmanager
def prometheus(folder: Path, address: str, config: dict[str, Any]) -> Iterator[Prometheus]:
    """Run a Prometheus in a folder until the block ends.

    Args:
        folder: for its file, its log and its data.
        address: loopback HOST:PORT to listen on.
        config: what prometheus.yaml holds; relative paths in it start from the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "prometheus.yaml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    command = [
        str(binaries() / "prometheus"),
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--enable-feature=exemplar-storage",
        "--storage.tsdb.retention.time=1d",
    ]
    with (folder / "prometheus.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        try:
            one = Prometheus(f"http://{address}")
            one.wait("Prometheus is ready", lambda: _ready(one, process))
            yield one
        finally:
            process.terminate()
            process.wait(timeout=PATIENCE_S)


def _ready(one: Prometheus, process: subprocess.Popen[bytes]) -> bool:
    if process.poll() is not None:
        raise RuntimeError("Prometheus ended at once: its log is beside its file")
    try:
        with urllib.request.urlopen(f"{one.url}/-/ready", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
