"""Parts that the deployment tests share."""

import http.client
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from loadgen.children import free_address

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
