"""A real run for pictures: one trace direct and through lanewise at the same time, watched by a real Prometheus.

Two simulated engines, each behind a proxy of its own: one passes everything on (`experiment="baseline"`), one
schedules (`experiment="candidate"`). Both get the same requests at the same times, in real time. The cards of the row
`Ascend NPU` are a stand-in: an exporter with the metric names of npu-exporter whose HBM is constant.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from loadgen.children import Child, answers, free_address
from loadgen.failure import Exit
from tools.prometheus.render import documents
from tools.prometheus.server import ROOT, Prometheus, prometheus

BASELINE, CANDIDATE = "baseline", "candidate"
SCRAPE_S = 5
_READY_S = 30.0
_PATIENCE = ("--patience-short", "30", "--patience-long", "60")
"""A client without a first token leaves after this, as in the study (docs/algorithm.md)."""
_LAST_SCRAPES_S = 3.0 * SCRAPE_S


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A run that has been watched."""

    folder: Path
    start: float
    """Unix seconds."""
    end: float

    def write(self) -> None:
        """Keep its times beside its data."""
        (self.folder / "scene.json").write_text(
            json.dumps({**asdict(self), "folder": str(self.folder)}, indent=2) + "\n", encoding="utf-8"
        )

    @classmethod
    def read(cls, folder: Path) -> "Scene":
        """Read one that was written.

        Raises:
            FileNotFoundError: there is none.
        """
        kept = json.loads((folder / "scene.json").read_text(encoding="utf-8"))
        return cls(folder=folder, start=kept["start"], end=kept["end"])


def settings(name: str, engine: str, listen: str, admin: str, folder: Path) -> dict[str, Any]:
    """Return what the proxy of one arm is told."""
    arm: dict[str, Any] = (
        {"mode": "passthrough"}
        if name == BASELINE
        else {"scheduling": {"preset": "strict"}, "installments": {"mode": "auto"}}
    )
    return {
        "backends": [{"url": engine, "name": "engine-0"}],
        "listen": listen,
        "admin": admin,
        "state_dir": str(folder / f"{name}-state"),
        "metrics": {"experiment": name},
        "recorder": {"enabled": True, "directory": str(folder / f"{name}-trace")},
        **arm,
    }


def watched(targets: dict[str, list[tuple[str, dict[str, str]]]]) -> dict[str, Any]:
    """Return the configuration of Prometheus: for each job its targets and their labels."""
    return {
        "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
        "rule_files": sorted(name for name in documents(2.0) if name != "tests.yaml"),
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [at], "labels": labels} for at, labels in found]}
            for job, found in targets.items()
        ],
    }


def play(folder: Path, *, minutes: float, rate: float, seed: int) -> Scene:
    """Run everything once.

    Args:
        folder: for configurations, logs, run folders and the data of Prometheus.
        minutes: how long the trace is.
        rate: requests/s of it.
        seed: decides the trace.

    Raises:
        StopError: a process ended or did not get ready; the text leads to its log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        cards = stack.enter_context(_cards())
        targets: dict[str, list[tuple[str, dict[str, str]]]] = {"npu-exporter": [(cards, {})]}
        arms = {name: _arm(stack, name, folder) for name in (BASELINE, CANDIDATE)}
        targets["lanewise"] = [(arm.admin, {"experiment": name}) for name, arm in arms.items()]
        targets["vllm"] = [(arm.engine, {"experiment": name}) for name, arm in arms.items()]
        shown = free_address()
        targets["lanewise-load"] = [(shown, {"experiment": CANDIDATE})]
        stack.enter_context(_prometheus(folder, watched(targets)))
        start = time.time()
        options = ["--workload", "mixed", "--rate", f"{rate:g}", "--rows", f"{60 * minutes * rate:.0f}"]
        options += ["--seed", str(seed), "--no-certify", *_PATIENCE]
        with ThreadPoolExecutor() as pool:
            runs = []
            for name, arm in arms.items():
                own = [*options, "--target", f"http://{arm.listen}", "--label", name]
                own += ["--prometheus", shown] if name == CANDIDATE else []
                runs.append(pool.submit(_replay, folder, name, own))
        for run in runs:
            run.result()
        time.sleep(_LAST_SCRAPES_S)
        scene = Scene(folder=folder, start=start, end=time.time())
    scene.write()
    return scene


@dataclass(frozen=True, kw_only=True)
class _Arm:
    """Addresses of one arm."""

    engine: str
    listen: str
    admin: str


def _arm(stack: ExitStack, name: str, folder: Path) -> _Arm:
    """Start an engine and a proxy in front of it, until the stack is left."""
    arm = _Arm(engine=free_address(), listen=free_address(), admin=free_address())
    arguments = ["sim", "serve", "--profile", "8b", "--listen", arm.engine]
    engine = stack.enter_context(Child(f"engine of {name}", "loadgen", arguments, folder / f"{name}-engine.log"))
    engine.wait_until(lambda: answers(f"http://{arm.engine}/health"), _READY_S, "get ready")
    file = folder / f"{name}.yaml"
    told = settings(name, f"http://{arm.engine}", arm.listen, arm.admin, folder)
    file.write_text(yaml.safe_dump(told, sort_keys=False), encoding="utf-8")
    command = ["serve", "--config", str(file)]
    proxy = stack.enter_context(Child(f"proxy of {name}", "proxy", command, folder / f"{name}.log"))
    proxy.wait_until(lambda: answers(f"http://{arm.admin}/readyz"), _READY_S, "get ready")
    return arm


def _replay(folder: Path, name: str, options: list[str]) -> None:
    """Send the trace of one arm.

    Raises:
        RuntimeError: it was not sent.
    """
    log = folder / f"{name}-load.log"
    command = [sys.executable, "-m", "loadgen", "replay", *options, "--out", str(folder / f"run-{name}")]
    with log.open("wb") as said:
        done = subprocess.run(command, cwd=ROOT, stdout=said, stderr=subprocess.STDOUT, check=False)
    if done.returncode == Exit.INVALID:
        print(f"{name}: this machine was too busy to send on time; see {log}", file=sys.stderr)
    elif done.returncode:
        raise RuntimeError(f"the replay of {name} ended with code {done.returncode}; see {log}")


@contextmanager
def replayed(scene: Scene) -> Iterator[Prometheus]:
    """Serve the data of a run that is over."""
    with _prometheus(scene.folder, watched({})) as one:
        yield one


@contextmanager
def _prometheus(folder: Path, config: dict[str, Any]) -> Iterator[Prometheus]:
    inside = folder / "prometheus"
    inside.mkdir(exist_ok=True)
    for name, text in documents(2.0).items():
        (inside / name).write_text(text, encoding="utf-8")
    with prometheus(inside, free_address(), config) as one:
        yield one


class _Cards(BaseHTTPRequestHandler):
    """Text of an npu-exporter with two cards: what Ascend cards under vLLM show is made up, the names are not."""

    def do_GET(self) -> None:
        """Answer with two cards, whose utilisation moves a little."""
        swing = int(time.time()) % 7
        lines = []
        for card in (0, 1):
            labels = f'{{id="{card}",model_name="910B4",pod_name="vllm-{card}"}}'
            values = {
                "hbm_used_memory": 58300,
                "hbm_total_memory": 65536,
                "utilization": 78 + swing + 3 * card,
                "temperature": 51 + card,
                "power": 228 + 4 * swing,
                "health_status": 1,
            }
            lines += [f"npu_chip_info_{name}{labels} {value}" for name, value in values.items()]
        body = ("\n".join(lines) + "\n").encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def _cards() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Cards) as serving:
        thread = threading.Thread(target=serving.serve_forever, daemon=True)
        thread.start()
        yield f"127.0.0.1:{serving.server_address[1]}"
        serving.shutdown()
        thread.join()
