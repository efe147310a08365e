"""What a supervisor asks of its workers."""

import os
import signal
import socket
from itertools import pairwise
from unittest.mock import Mock, call

import pytest

from proxy.cli import Source
from proxy.settings import Address, Settings
from proxy.workers.supervisor import Supervisor, Worker, WorkersError

HERE = "127.0.0.1"


@pytest.fixture
def supervisor():
    made = Supervisor(Settings.model_validate({"backends": [f"http://{HERE}:8000"]}), (), 2)
    yield made
    made._stack.close()


def worker(number=1, pid=None, *, ready=False):
    process = None if pid is None else Mock(pid=pid, returncode=None)
    return Worker(number, Address(HERE, 9100 + number), process, was_ready=ready)


def test_each_worker_has_its_own_addresses_and_its_share_whatever_the_arguments_set():
    given = ("--backend", f"http://{HERE}:8000", "--set", f"admin={HERE}:1", "--set", f"listen={HERE}:2")
    settings = Settings.model_validate({"backends": [f"http://{HERE}:8000"], "listen": f"{HERE}:8080"})
    command = Supervisor(settings, given, 2)._command(worker(2))
    assert (command[0], command[-2:]) == ("serve", ["--worker", "2"])
    said = [value for flag, value in pairwise(command) if flag == "--set"]
    told = Source(backend=[f"http://{HERE}:8000"], set=said).load().settings
    assert (str(told.listen), str(told.admin), told.share) == (f"{HERE}:8080", f"{HERE}:9102", 2)


def test_a_port_whose_last_connections_linger_can_be_taken(supervisor):
    with socket.create_server((HERE, 0)) as before:
        port = before.getsockname()[1]
        with socket.create_connection((HERE, port)) as client:
            before.accept()[0].close()  # who closes first keeps the connection in TIME_WAIT
            assert client.recv(1) == b""
    assert supervisor._reserve(Address(HERE, port)) == port


def test_a_port_where_somebody_listens_cannot(supervisor):
    with socket.create_server((HERE, 0)) as other, pytest.raises(WorkersError, match="Address already in use"):
        supervisor._reserve(Address(HERE, other.getsockname()[1]))


def test_a_worker_that_starts_gets_no_order_to_reload(supervisor, monkeypatch):
    sent = Mock()
    monkeypatch.setattr(os, "kill", sent)
    supervisor.workers = [worker(1, 11, ready=True), worker(2, 12), worker(3)]
    supervisor._pass_on(signal.SIGHUP)
    assert sent.mock_calls == [call(11, signal.SIGHUP)]
    supervisor._pass_on(signal.SIGTERM)
    assert sent.mock_calls[1:] == [call(11, signal.SIGTERM), call(12, signal.SIGTERM)]
