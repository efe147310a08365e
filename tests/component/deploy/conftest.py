"""Parts that the deployment tests share."""

import http.client
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from loadgen.children import free_address
from tools.deploy import checkers

PATIENCE_S = 30


class Proxy:
    """`lanewise serve` as a process."""

    def __init__(self, *arguments, program=(sys.executable, "-m", "proxy"), cwd=None, environment=None):
        self.listen, self.admin = free_address(), free_address()
        command = [*map(str, program), "serve", "--listen", self.listen, "--admin", self.admin, *map(str, arguments)]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("LANEWISE_")}
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, cwd=cwd, env={**clean, **(environment or {})}
        )

    def wait_until_it_serves(self):
        for line in self.process.stderr:
            if "listens on" in line:
                return line
        raise AssertionError("it ended before it served")

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
        return self.process.returncode


@pytest.fixture(autouse=True)
def _no_settings_of_ours(monkeypatch):
    for name in [name for name in os.environ if name.startswith("LANEWISE_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def serving():
    """Runs a proxy as long as the block: `with serving("--backend", URL) as proxy`."""

    @contextmanager
    def serve(*arguments, **more):
        proxy = Proxy(*arguments, **more)
        try:
            yield proxy
        finally:
            proxy.end()

    return serve


@pytest.fixture(scope="session")
def ask():
    """One HTTP request: `ask(address, path, body)` gives status and text."""

    def send(address, path, body=None):
        host, port = address.rsplit(":", 1)
        connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
        try:
            text = None if body is None else json.dumps(body)
            connection.request("POST" if body else "GET", path, text, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    return send


@dataclass
class Done:
    """A program that has ended."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def check():
    """Runs one of the programs that check deploy/: `check("hadolint", file)`."""
    try:
        environment = checkers.environment()
    except checkers.UnavailableError as why:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(why))

    def run(program, *arguments, **more):
        command = [program, *map(str, arguments)]
        done = subprocess.run(
            command, capture_output=True, text=True, env={**environment, **more.pop("env", {})}, check=False, **more
        )
        return Done(done.returncode, done.stdout, done.stderr)

    return run
