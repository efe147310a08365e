"""Real processes on free ports: started, waited for, and stopped in any case."""

import json
import os
import select
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from loadgen.children import free_address

PATIENCE_S = 60


def environment():
    """The tests' own environment without settings of lanewise."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LANEWISE_")} | {"NO_COLOR": "1"}


@dataclass
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str


@dataclass
class Server:
    """A process that serves until it is stopped."""

    process: subprocess.Popen
    log: list[str] = field(default_factory=list)

    def says(self, words):
        """Read its stderr until a line has these words, and return that line."""
        for line in self.process.stderr:
            self.log.append(line)
            if words in line:
                return line
        raise AssertionError(f"ended without saying {words!r}: {''.join(self.log)}")

    def stop(self):
        """Ask it to end and return its exit code."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGTERM)
        try:
            self.process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
        return self.process.returncode


@pytest.fixture(scope="session")
def call(root):
    """Runs a module of ours as a command: `call("loadgen", "trace", "info", …)`."""

    def run(module, *arguments, timeout=PATIENCE_S, cwd=root):
        command = [sys.executable, "-m", module, *map(str, arguments)]
        done = subprocess.run(
            command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=timeout, check=False
        )
        return Done(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture(scope="session")
def acceptance(call):
    """Runs a check of tools/acceptance and returns its document, whatever it says."""

    def run(name, *arguments, timeout=180):
        done = call(f"tools.acceptance.{name}", *arguments, "--json", timeout=timeout)
        assert done.code in {0, 3, 4}, done.err
        return json.loads(done.out)

    return run


@pytest.fixture
def server(root):
    """Starts a server of ours: `with server("proxy", "serve", …) as one`."""

    @contextmanager
    def start(module, *arguments):
        command = [sys.executable, "-m", module, *map(str, arguments)]
        process = subprocess.Popen(
            command, cwd=root, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        with process, ExitStack() as after:
            one = Server(process)
            after.callback(one.stop)
            yield one

    return start


@pytest.fixture
def address():
    """Finds a free loopback HOST:PORT."""
    return free_address


@pytest.fixture
def get():
    """Asks a server: status and body of a GET, or None when nobody answers."""

    def ask(url):
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return None

    return ask


@pytest.fixture
def until(get):
    """Waits for a status: `until("http://…/readyz", 200)` returns the body."""

    def wait(url, status):
        for _ in range(20 * PATIENCE_S):
            answer = get(url)
            if answer is not None and answer[0] == status:
                return answer[1]
            select.select([], [], [], 0.05)  # the only sign is the next answer
        raise AssertionError(f"{url} did not answer {status}")

    return wait
