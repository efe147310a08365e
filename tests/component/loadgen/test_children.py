"""Child processes: waited for, ended in any case, their logs named."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from loadgen.children import Child, answers, fetch, free_address
from loadgen.failure import StopError


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Makes a module that a child can run."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def make(code):
        (tmp_path / "child_under_test.py").write_text(code)
        return "child_under_test"

    return make


def gone(pid):
    """Return whether no such process runs (a zombie has ended)."""
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


def test_a_child_ends_with_the_block(module, tmp_path):
    name = module("import signal; print('up', flush=True); signal.pause()")
    with Child("it", name, [], tmp_path / "log") as child:
        child.wait_until(lambda: "up" in child.log.read_text(), 10, "print")
    assert gone(child.pid)


def test_a_child_ends_when_the_block_fails(module, tmp_path):
    name = module("import signal; signal.pause()")
    with pytest.raises(RuntimeError), Child("it", name, [], tmp_path / "log") as child:
        raise RuntimeError
    assert gone(child.pid)


def test_a_child_that_ignores_the_request_to_end_is_killed(module, tmp_path):
    name = module(
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)\n"
        "while True: signal.pause()"
    )
    with Child("it", name, [], tmp_path / "log", patience_s=0.05) as child:
        child.wait_until(lambda: "up" in child.log.read_text(), 10, "print")
    assert gone(child.pid)


def test_a_child_that_dies_is_reported_with_its_log(module, tmp_path):
    name = module("raise SystemExit('no such card')")
    with Child("the engine", name, [], tmp_path / "log") as child, pytest.raises(StopError) as stopped:
        child.wait_until(lambda: False, 10, "get ready")
    assert "the engine ended with code 1" in str(stopped.value)
    assert str(tmp_path / "log") in str(stopped.value)
    assert "no such card" in str(stopped.value)


def test_waiting_has_an_end(module, tmp_path):
    name = module("import signal; signal.pause()")
    with (
        Child("it", name, [], tmp_path / "log") as child,
        pytest.raises(StopError, match="did not get ready within 0 s"),
    ):
        child.wait_until(lambda: False, 0, "get ready")


def test_a_child_does_not_see_the_operators_settings(module, tmp_path, monkeypatch):
    monkeypatch.setenv("LANEWISE_MODE", "observe")
    name = module("import os; print([name for name in os.environ if name.startswith('LANEWISE')], 'end', flush=True)")
    with Child("it", name, [], tmp_path / "log") as child:
        with pytest.raises(StopError):
            child.wait_until(lambda: False, 10, "stay")
        assert child.log.read_text().startswith("[] end")


def test_a_child_does_not_outlive_a_command_that_is_killed(module, tmp_path):
    name = module("import signal; print('up', flush=True); signal.pause()")
    parent = (
        "import sys, signal; from pathlib import Path; from loadgen.children import Child\n"
        f"child = Child('it', {name!r}, [], Path({str(tmp_path / 'log')!r}))\n"
        "child.wait_until(lambda: 'up' in child.log.read_text(), 10, 'print')\n"
        "print(child.pid, flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as command:
        pid = int(command.stdout.readline())
        command.kill()
        command.wait()
        for _ in range(100_000):
            if gone(pid):
                break
        assert gone(pid)


def test_ctrl_c_at_the_terminal_does_not_reach_a_child(module, tmp_path):
    name = module("import os; print(os.getpgid(0), flush=True); import signal; signal.pause()")
    with Child("it", name, [], tmp_path / "log") as child:
        child.wait_until(lambda: child.log.read_text().endswith("\n"), 10, "print")
        assert int(child.log.read_text()) != os.getpgid(0)


def test_nobody_answers_at_a_free_address():
    url = f"http://{free_address()}/"
    assert not answers(url)
    with pytest.raises(StopError, match="does not answer"):
        fetch(url)


def test_the_simulated_engine_runs_as_a_child_says_where_and_ends_by_itself(tmp_path):
    arguments = ["sim", "serve", "--profile", "8b", "--listen", "127.0.0.1:0", "--json"]
    with Child("the engine", "loadgen", arguments, tmp_path / "log") as child:
        child.wait_until(lambda: '"url"' in child.log.read_text(), 30, "listen")
        url = child.log.read_text().split('"url":"')[1].split('"')[0]
        assert answers(f"{url}/health")
        assert not answers(f"{url}/nothing")
        assert "computed" in child.log.read_text()
        os.kill(child.pid, signal.SIGINT)
        with pytest.raises(StopError, match="ended with code 0"):
            child.wait_until(lambda: False, 10, "stay")


def test_a_second_engine_on_the_same_port_ends_with_one_and_a_sentence(tmp_path):
    address = free_address()
    arguments = ["sim", "serve", "--listen", address]
    with Child("the first", "loadgen", arguments, tmp_path / "one") as first:
        first.wait_until(lambda: answers(f"http://{address}/health"), 30, "listen")
        with Child("the second", "loadgen", arguments, tmp_path / "two") as second:
            with pytest.raises(StopError, match="ended with code 1"):
                second.wait_until(lambda: False, 30, "stay")
            assert f"Cannot listen on {address}" in second.log.read_text()
