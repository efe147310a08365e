"""Both READMEs say the same, and every command in them runs."""

import csv
import json
import os
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BIN = Path(sys.executable).parent
MAKE_TARGETS = {"demo", "test"}
SILENT = {"lanewise healthcheck"}
"""Says all by its exit code."""


def blocks(text, language):
    return [body for kind, body in BLOCK.findall(text) if kind == language]


def commands(root):
    return [line for body in blocks((root / "README.md").read_text(), "sh") for line in body.splitlines()]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_both_readmes_have_the_same_commands_files_and_sections(root):
    english, chinese = (root / "README.md").read_text(), (root / "README.zh.md").read_text()
    assert BLOCK.findall(english) == BLOCK.findall(chinese)
    assert [h.split(" ")[0] for h in re.findall(r"^#+ .*", english, re.MULTILINE)] == [
        h.split(" ")[0] for h in re.findall(r"^#+ .*", chinese, re.MULTILINE)
    ]
    english_links, chinese_links = (
        [link.replace(".zh.md", ".md") for link in re.findall(r"\]\(([^)#]+)\)", text)] for text in (english, chinese)
    )
    assert english_links == chinese_links


def test_every_file_that_the_readme_links_to_exists(root):
    for page in ("README.md", "README.zh.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", (root / page).read_text()):
            assert (root / target).exists(), target


def test_the_make_targets_of_the_readme_exist_and_ci_runs_them(root):
    targets = {line.split()[1] for line in commands(root) if line.startswith("make ")}
    assert targets == MAKE_TARGETS
    ci = (root / ".ci/run").read_text()
    for target in targets:
        subprocess.run(["make", "-n", target], cwd=root, check=True, capture_output=True)
        assert f"make {target}" in ci


@pytest.mark.slow
def test_every_command_of_the_readme_runs(root, tmp_path):
    (tmp_path / "lanewise.yaml").write_text(blocks((root / "README.md").read_text(), "yaml")[0])
    write_traces(tmp_path)
    ports = {"8000": free_port(), "8080": free_port()}
    admin = f"127.0.0.1:{free_port()}"
    env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "LANEWISE_ADMIN": admin, "NO_COLOR": "1"}
    lines = [line for line in commands(root) if not line.startswith("make ")]
    for old, new in ports.items():
        lines = [line.replace(f"127.0.0.1:{old}", f"127.0.0.1:{new}") for line in lines]
    servers = sorted((line for line in lines if " serve " in line), key=lambda line: line.startswith("lanewise serve"))
    with running(servers[0], env, tmp_path), running(servers[1], env, tmp_path):
        await_ready(f"http://{admin}/readyz")
        for line in lines:
            if line in servers:
                continue
            done = subprocess.run(
                shlex.split(line), cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False
            )
            if done.returncode == 4 and line.startswith("lanewise-load compare") and "client-limited" in done.stderr:
                continue  # the honest answer on a machine that is too busy to measure on; the README says so
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
            assert done.stdout.strip() or line in SILENT, f"{line} printed nothing"


@contextmanager
def running(line, env, folder):
    with subprocess.Popen(shlex.split(line), cwd=folder, env=env, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0


def await_ready(url):
    for _ in range(400):
        try:
            with urllib.request.urlopen(url, timeout=1) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        select.select([], [], [], 0.05)  # the only sign of readiness is the next answer
    raise AssertionError(f"{url} did not become ready")


def write_traces(folder):
    """A small trace in Azure's format, and a folder laid out like the public one, large enough for one window."""
    rows = [(f"2023-11-16 18:15:{46 + i // 10:02d}.{i % 10}805900", 374 + 40 * i, 20 + i) for i in range(20)]
    with (folder / "trace.csv").open("w", newline="") as out:
        csv.writer(out).writerows([("TIMESTAMP", "ContextTokens", "GeneratedTokens"), *rows])
    azure, moon = folder / "traces/azure", folder / "traces/mooncake"
    azure.mkdir(parents=True)
    moon.mkdir(parents=True)
    for name in ("conv", "code"):
        with (azure / f"AzureLLMInferenceTrace_{name}.csv").open("w", newline="") as out:
            write = csv.writer(out)
            write.writerow(("TIMESTAMP", "ContextTokens", "GeneratedTokens"))
            for i in range(4500):
                at = i * 0.18
                stamp = f"2023-11-16 {18 + int(at // 3600):02d}:{int(at % 3600 // 60):02d}:{at % 60:010.7f}"
                write.writerow((stamp, 200 + i * 37 % 2600, 10 + i * 13 % 200))
    with (moon / "conversation_trace.jsonl").open("w") as out:
        for i in range(1200):
            length = 900 + i * 911 % 20000
            ids = [i * 100 + block for block in range(-(-length // 512))]
            row = {"timestamp": i // 10 * 3000, "input_length": length, "output_length": 50, "hash_ids": ids}
            out.write(json.dumps(row) + "\n")
